//! The two products of a tile: query rows with its keys, weights with its values.
//!
//! ```text
//! scores   for four keys, for up to four query rows:  16 sums, side by side in registers, over the head's elements
//! weigh    for some values, for up to four output rows, for a few vectors of a row:  row += weight * value, in registers
//! ```
//!
//! Each key is read once for four query rows, each query row once for four keys. Float keys are bound by memory bandwidth if
//! they are beyond the second-level cache, so all bytes of the next keys are prefetched at once. Keys in other formats are
//! bound by arithmetic, and are prefetched line by line between the products, which costs 4 % less. Values are read in
//! ascending order, a few rows at a time, so that the memory sees one stream.
#![expect(unsafe_code, reason = "rows are read through pointers that the caller has checked")]

use super::rows::{AheadOf, ElementFormat, ask, load_some};
use crate::kernels::simd::Lanes;

/// The factors of the scores, and the place of the products.
///
/// Query rows are `query_stride` floats apart, with zeros after their elements; a row of scores takes four floats at a time.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub queries: *const f32,
    pub query_stride: usize,
    pub heads: usize,
    /// The number of query rows of each head.
    pub rows: usize,
    pub keys: *const u8,
    /// The distance from one head's keys to the next head's in bytes.
    pub key_head_stride: usize,
    /// The distance from one key to the next in bytes.
    pub key_stride: usize,
    pub ahead: AheadOf,
    pub count: usize,
    pub dim: usize,
    pub out: *mut f32,
    pub out_stride: usize,
}

/// # Safety
///
/// The rows that `a` refers to are readable, those of `out` writable for `count` rounded up to four, and the machine has the
/// instructions of `V`.
#[inline(always)]
pub(super) unsafe fn scores<V: Lanes, F: ElementFormat>(a: Scores) {
    for head in 0..a.heads {
        // SAFETY: the caller's promise.
        unsafe {
            of_head::<V, F>(Scores {
                queries: a.queries.add(head * a.rows * a.query_stride),
                keys: a.keys.add(head * a.key_head_stride),
                out: a.out.add(head * a.rows * a.out_stride),
                ..a
            });
        }
    }
}

/// # Safety
///
/// As for [`scores`], with one head.
#[inline(always)]
unsafe fn of_head<V: Lanes, F: ElementFormat>(a: Scores) {
    for first in (0..a.count).step_by(4) {
        // SAFETY: the caller's promise; indices after the last key or row repeat it.
        unsafe {
            let mut keys = [a.keys; 4];
            for (next, key) in keys.iter_mut().enumerate() {
                *key = a.keys.add((first + next).min(a.count - 1) * a.key_stride);
            }
            let mut ahead = a.ahead.from(keys[0]);
            if F::BITS == 32 {
                for key in keys {
                    ask::<V>(key, a.dim * F::BITS / 8, ahead);
                }
                ahead = 0;
            }
            let mut row = 0;
            while row < a.rows {
                // Sixteen sums and their factors need more than 16 registers.
                row += match (a.rows - row).min(V::REGISTERS / 8) {
                    1 => block::<V, F, 1>(&a, keys, first, row, ahead),
                    2 => block::<V, F, 2>(&a, keys, first, row, ahead),
                    3 => block::<V, F, 3>(&a, keys, first, row, ahead),
                    _ => block::<V, F, 4>(&a, keys, first, row, ahead),
                };
                ahead = 0;
            }
        }
    }
}

/// Computes the products of `ROWS` query rows from `row` on, and returns `ROWS`. Prefetches at the distance `ahead` from
/// each key meanwhile, unless `ahead` is 0.
///
/// # Safety
///
/// As for [`scores`].
#[inline(always)]
unsafe fn block<V: Lanes, F: ElementFormat, const ROWS: usize>(
    a: &Scores,
    keys: [*const u8; 4],
    first: usize,
    row: usize,
    ahead: isize,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        let queries = a.queries.add(row * a.query_stride);
        let mut sums = [[V::splat(0.0); 4]; ROWS];
        let mut at = 0;
        while at + V::COUNT <= a.dim {
            let byte = at * F::BITS / 8;
            if byte.is_multiple_of(64) {
                for key in keys {
                    ask::<V>(key.wrapping_add(byte), 1, ahead);
                }
            }
            let key = [
                F::load::<V>(keys[0], at),
                F::load::<V>(keys[1], at),
                F::load::<V>(keys[2], at),
                F::load::<V>(keys[3], at),
            ];
            add_products(&mut sums, queries.add(at), a.query_stride, key);
            at += V::COUNT;
        }
        if at < a.dim {
            let rest = a.dim - at;
            let key = [
                load_some::<F, V>(keys[0], at, rest),
                load_some::<F, V>(keys[1], at, rest),
                load_some::<F, V>(keys[2], at, rest),
                load_some::<F, V>(keys[3], at, rest),
            ];
            add_products(&mut sums, queries.add(at), a.query_stride, key);
        }
        for (next, of_row) in sums.into_iter().enumerate() {
            let out = a.out.add((row + next) * a.out_stride + first);
            out.cast::<[f32; 4]>().write_unaligned(V::sums(of_row));
        }
    }
    ROWS
}

/// # Safety
///
/// `ROWS` query rows are readable, one vector each.
#[inline(always)]
unsafe fn add_products<V: Lanes, const ROWS: usize>(
    sums: &mut [[V; 4]; ROWS],
    queries: *const f32,
    stride: usize,
    key: [V; 4],
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let query = V::load(queries.add(row * stride));
            for (sum, key) in sums.iter_mut().zip(key) {
                *sum = query.mul_add(key, *sum);
            }
        }
    }
}

/// The bytes of the values of one block: few enough to stay in the first-level cache while all output rows use them.
const BLOCK_BYTES: usize = 4096;

/// The weights and values, and the place of the sums. Output rows are `out_stride` floats apart, and all of that is
/// writable.
#[derive(Clone, Copy)]
pub(super) struct Weigh {
    pub weights: *const f32,
    pub weight_stride: usize,
    pub heads: usize,
    /// The number of output rows of each head.
    pub rows: usize,
    pub values: *const u8,
    /// The distance from one head's values to the next head's in bytes.
    pub value_head_stride: usize,
    /// The distance from one value to the next in bytes.
    pub value_stride: usize,
    pub ahead: AheadOf,
    pub count: usize,
    pub dim: usize,
    pub out: *mut f32,
    pub out_stride: usize,
}

/// # Safety
///
/// The rows that `a` refers to are readable, those of `out` writable for `dim` rounded up to a vector, and the machine has
/// the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn weigh<V: Lanes, F: ElementFormat, const LONG: usize, const SHORT: usize>(a: Weigh) {
    let block = (BLOCK_BYTES / (a.dim * F::BITS / 8).max(1)).clamp(8, 32);
    for head in 0..a.heads {
        // SAFETY: the caller's promise.
        unsafe {
            let of_head = Weigh {
                weights: a.weights.add(head * a.rows * a.weight_stride),
                values: a.values.add(head * a.value_head_stride),
                out: a.out.add(head * a.rows * a.out_stride),
                ..a
            };
            weigh_head::<V, F, LONG, SHORT>(of_head, block);
        }
    }
}

/// # Safety
///
/// As for [`weigh`], with one head, `block` values at a time.
#[inline(always)]
unsafe fn weigh_head<V: Lanes, F: ElementFormat, const LONG: usize, const SHORT: usize>(a: Weigh, block: usize) {
    for first in (0..a.count).step_by(block) {
        let count = block.min(a.count - first);
        let mut row = 0;
        while row < a.rows {
            // SAFETY: the caller's promise.
            unsafe {
                let part = Weigh {
                    weights: a.weights.add(row * a.weight_stride + first),
                    values: a.values.add(first * a.value_stride),
                    out: a.out.add(row * a.out_stride),
                    count,
                    ..a
                };
                // As many sums as fit in registers: over long pieces of a row for floats, over more rows for other formats,
                // so that each value is converted less often. The first four rows prefetch the next values; with floats both
                // of their passes do, because with only one a decode step from memory took a fifth longer. For later rows
                // the values have already been prefetched.
                let ahead = if row < 4 { a.ahead.from(part.values) } else { 0 };
                row += match a.rows - row {
                    1 => rows::<V, F, LONG, 1>(&part, ahead),
                    2 | 3 => rows::<V, F, LONG, 2>(&part, ahead),
                    8.. if V::REGISTERS >= 32 && F::BITS < 32 => rows::<V, F, 1, 8>(&part, ahead),
                    _ if F::BITS == 32 => rows::<V, F, LONG, 2>(&part, ahead),
                    _ => rows::<V, F, SHORT, 4>(&part, ahead),
                };
            }
        }
    }
}

/// # Safety
///
/// As for [`weigh`], with `ROWS` rows.
#[inline(always)]
unsafe fn rows<V: Lanes, F: ElementFormat, const VECTORS: usize, const ROWS: usize>(a: &Weigh, ahead: isize) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = 0;
        while at + VECTORS * V::COUNT <= a.dim {
            add::<V, F, VECTORS, ROWS>(a, at, ahead);
            at += VECTORS * V::COUNT;
        }
        // A head of 64 elements is four of the longest vectors. With single vectors, decode steps took a quarter longer.
        while VECTORS > 4 && at + 4 * V::COUNT <= a.dim {
            add::<V, F, 4, ROWS>(a, at, ahead);
            at += 4 * V::COUNT;
        }
        while at + V::COUNT <= a.dim {
            add::<V, F, 1, ROWS>(a, at, ahead);
            at += V::COUNT;
        }
        if at < a.dim {
            add_rest::<V, F, ROWS>(a, at);
        }
    }
    ROWS
}

/// # Safety
///
/// As for [`weigh`]; the rows have the elements `at .. at + VECTORS * V::COUNT`.
#[inline(always)]
unsafe fn add<V: Lanes, F: ElementFormat, const VECTORS: usize, const ROWS: usize>(a: &Weigh, at: usize, ahead: isize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (next, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(a.out.add(row * a.out_stride + at + next * V::COUNT));
            }
        }
        // Computed once; in the loop, the pointers would be computed with checks.
        let mut weights = [a.weights; ROWS];
        for (row, weights) in weights.iter_mut().enumerate() {
            *weights = a.weights.add(row * a.weight_stride);
        }
        let byte = at * F::BITS / 8;
        let mut from = a.values;
        for token in 0..a.count {
            // A cache line is prefetched by the piece in which it begins.
            if byte.is_multiple_of(64) {
                ask::<V>(from.wrapping_add(byte), VECTORS * V::COUNT * F::BITS / 8, ahead);
            }
            let mut value = [V::splat(0.0); VECTORS];
            for (next, value) in value.iter_mut().enumerate() {
                *value = F::load::<V>(from, at + next * V::COUNT);
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let weight = V::splat(*weights[row].add(token));
                for (sum, value) in sums.iter_mut().zip(value) {
                    *sum = weight.mul_add(value, *sum);
                }
            }
            from = from.wrapping_add(a.value_stride);
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (next, sum) in sums.into_iter().enumerate() {
                sum.store(a.out.add(row * a.out_stride + at + next * V::COUNT));
            }
        }
    }
}

/// # Safety
///
/// As for [`weigh`]; from `at` on the rows have fewer elements than a vector.
#[inline(always)]
unsafe fn add_rest<V: Lanes, F: ElementFormat, const ROWS: usize>(a: &Weigh, at: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for token in 0..a.count {
            let value = load_some::<F, V>(a.values.add(token * a.value_stride), at, a.dim - at);
            for row in 0..ROWS {
                let out = a.out.add(row * a.out_stride + at);
                let weight = V::splat(*a.weights.add(row * a.weight_stride + token));
                weight.mul_add(value, V::load(out)).store(out);
            }
        }
    }
}
