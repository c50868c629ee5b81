//! Query rows times keys.
//!
//! ```text
//! for four keys, for up to four query rows:  16 sums, side by side in registers, over the head's elements
//! ```
//!
//! Each key is read once for four query rows, each query row once for four keys. Keys that are floats are bound by the memory
//! that they come from, as long as it is further than the second cache: what is needed soon is asked for all at once. Others
//! are bound by arithmetic, and it is asked for a line at a time in between, which is 4 % less of it.
#![expect(unsafe_code, reason = "rows are read through pointers that the caller has checked")]

use super::ahead::{AheadOf, ask};
use crate::kernels::simd::Lanes;
use crate::kernels::simd::format::{Format, load_some};

/// What is multiplied, and where the products go.
///
/// Query rows are `query_stride` floats apart and zero behind their elements; a row of scores takes four floats at a time.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub queries: *const f32,
    pub query_stride: usize,
    pub heads: usize,
    /// Query rows of each head.
    pub rows: usize,
    pub keys: *const u8,
    /// Bytes from the keys of a head to those of the next.
    pub key_head_stride: usize,
    /// Bytes from a key to the next.
    pub key_stride: usize,
    pub ahead: AheadOf,
    pub count: usize,
    pub dim: usize,
    pub out: *mut f32,
    pub out_stride: usize,
}

/// # Safety
///
/// The rows that `a` names are readable, those of `out` writable for `count` rounded up to four, and the machine has the
/// instructions of `V`.
#[inline(always)]
pub(super) unsafe fn scores<V: Lanes, F: Format>(a: Scores) {
    for head in 0..a.heads {
        // SAFETY: as the caller promises.
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
/// As for [`scores`], of one head.
#[inline(always)]
unsafe fn of_head<V: Lanes, F: Format>(a: Scores) {
    for first in (0..a.count).step_by(4) {
        // SAFETY: as the caller promises; what is beyond the last key or row repeats it.
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
                // Sixteen sums and what they are made of need more than 16 registers.
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

/// The products of `ROWS` query rows from `row` on, and how many they are. Asks for what is `ahead` of each key meanwhile; for
/// nothing where that is 0.
///
/// # Safety
///
/// As for [`scores`].
#[inline(always)]
unsafe fn block<V: Lanes, F: Format, const ROWS: usize>(
    a: &Scores,
    keys: [*const u8; 4],
    first: usize,
    row: usize,
    ahead: isize,
) -> usize {
    // SAFETY: as the caller promises.
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
/// `ROWS` query rows are readable for a vector each.
#[inline(always)]
unsafe fn add_products<V: Lanes, const ROWS: usize>(
    sums: &mut [[V; 4]; ROWS],
    queries: *const f32,
    stride: usize,
    key: [V; 4],
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        unsafe {
            let query = V::load(queries.add(row * stride));
            for (sum, key) in sums.iter_mut().zip(key) {
                *sum = query.mul_add(key, *sum);
            }
        }
    }
}
