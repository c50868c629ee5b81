//! Adds values, weighed, to the output rows.
//!
//! ```text
//! for some values, for up to four output rows, for a few vectors of a row:  row += weight * value, in registers
//! ```
//!
//! Values are read from front to back, a few rows at a time, so that the memory sees one stream.
#![expect(unsafe_code, reason = "rows are read through pointers that the caller has checked")]

use super::ahead::{AheadOf, ask};
use crate::kernels::simd::Lanes;
use crate::kernels::simd::format::{Format, load_some};

/// Bytes of the values of one block: few enough to stay in the first cache while each of its output rows is worked on.
const BLOCK_BYTES: usize = 4096;

/// What is weighed, and where the sums go. Output rows are `out_stride` floats apart and may be written up to there.
#[derive(Clone, Copy)]
pub(super) struct Weigh {
    pub weights: *const f32,
    pub weight_stride: usize,
    pub heads: usize,
    /// Output rows of each head.
    pub rows: usize,
    pub values: *const u8,
    /// Bytes from the values of a head to those of the next.
    pub value_head_stride: usize,
    /// Bytes from a value to the next.
    pub value_stride: usize,
    pub ahead: AheadOf,
    pub count: usize,
    pub dim: usize,
    pub out: *mut f32,
    pub out_stride: usize,
}

/// # Safety
///
/// The rows that `a` names are readable, those of `out` writable for `dim` rounded up to a vector, and the machine has the
/// instructions of `V`.
#[inline(always)]
pub(super) unsafe fn weigh<V: Lanes, F: Format, const LONG: usize, const SHORT: usize>(a: Weigh) {
    let block = (BLOCK_BYTES / (a.dim * F::BITS / 8).max(1)).clamp(8, 32);
    for head in 0..a.heads {
        // SAFETY: as the caller promises.
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
/// As for [`weigh`], of one head, `block` values at a time.
#[inline(always)]
unsafe fn weigh_head<V: Lanes, F: Format, const LONG: usize, const SHORT: usize>(a: Weigh, block: usize) {
    for first in (0..a.count).step_by(block) {
        let count = block.min(a.count - first);
        let mut row = 0;
        while row < a.rows {
            // SAFETY: as the caller promises.
            unsafe {
                let part = Weigh {
                    weights: a.weights.add(row * a.weight_stride + first),
                    values: a.values.add(first * a.value_stride),
                    out: a.out.add(row * a.out_stride),
                    count,
                    ..a
                };
                // As many sums as there are registers for: of long pieces where a value is a float already, else of more rows,
                // so that each value is made a float less often.
                // The first four rows ask for what comes: floats in both of their passes, for with one of them a decode step from
                // memory took a fifth longer. Rows behind them find it asked for.
                let ahead = if row < 4 { a.ahead.from(part.values) } else { 0 };
                row += match a.rows - row {
                    1 => rows::<V, F, LONG, 1>(&part, ahead),
                    2 | 3 => rows::<V, F, LONG, 2>(&part, ahead),
                    _ if F::BITS == 32 => rows::<V, F, LONG, 2>(&part, ahead),
                    _ => rows::<V, F, SHORT, 4>(&part, ahead),
                };
            }
        }
    }
}

/// # Safety
///
/// As for [`weigh`], for `ROWS` rows.
#[inline(always)]
unsafe fn rows<V: Lanes, F: Format, const VECTORS: usize, const ROWS: usize>(a: &Weigh, ahead: isize) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        let mut at = 0;
        while at + VECTORS * V::COUNT <= a.dim {
            add::<V, F, VECTORS, ROWS>(a, at, ahead);
            at += VECTORS * V::COUNT;
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
/// As for [`weigh`]; the elements `at .. at + VECTORS * V::COUNT` are in the rows.
#[inline(always)]
unsafe fn add<V: Lanes, F: Format, const VECTORS: usize, const ROWS: usize>(a: &Weigh, at: usize, ahead: isize) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (next, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(a.out.add(row * a.out_stride + at + next * V::COUNT));
            }
        }
        for token in 0..a.count {
            let from = a.values.add(token * a.value_stride);
            if at == 0 {
                ask::<V>(from, a.dim * F::BITS / 8, ahead);
            }
            let mut value = [V::splat(0.0); VECTORS];
            for (next, value) in value.iter_mut().enumerate() {
                *value = F::load::<V>(from, at + next * V::COUNT);
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let weight = V::splat(*a.weights.add(row * a.weight_stride + token));
                for (sum, value) in sums.iter_mut().zip(value) {
                    *sum = weight.mul_add(value, *sum);
                }
            }
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
/// As for [`weigh`]; fewer elements than a vector holds are left behind `at`.
#[inline(always)]
unsafe fn add_rest<V: Lanes, F: Format, const ROWS: usize>(a: &Weigh, at: usize) {
    // SAFETY: as the caller promises.
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
