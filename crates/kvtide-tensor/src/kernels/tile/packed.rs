//! Products of a few rows with packed weights: each weight is read once, in the order of memory, by all rows.
//!
//! ```text
//! panel      32 columns     element 0 of the input: c c c ..   element 1: c c c ..   ...
//! product    for some rows and one panel: sums in registers over all elements of the input
//! ```
//! Weights are converted to floats in registers. A number is the sum of its products in their order, as in `panels.rs`.
#![expect(unsafe_code, reason = "rows are read through pointers that the caller has checked")]

use super::rows::ElementFormat;
use crate::kernels::simd::Lanes;

/// The number of columns of a panel: a cache line of halves.
pub(crate) const PACKED: usize = 32;

/// Some rows, and a panel.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub panel: *const u8,
    pub inner: usize,
    /// Bytes from a line of the panel to the one to prefetch; 0 if it is in a cache.
    pub ahead: usize,
    pub rows: *const f32,
    /// The distance from one row to the next in floats.
    pub stride: usize,
    pub count: usize,
    /// `[rows, PACKED]`.
    pub out: *mut f32,
}

/// # Safety
///
/// The rows and the panel are readable, the output is writable, and the machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn product<V: Lanes, F: ElementFormat>(a: Packed) {
    // The sums of a few rows and many columns, or of more rows and fewer columns, fit in registers beside a column and a
    // factor. A sum waits for the one before, so at least eight are needed for a machine that adds two at a time.
    let mut row = 0;
    while row < a.count {
        let (rest, vectors) = (a.count - row, PACKED / V::COUNT);
        // SAFETY: the caller's promise.
        unsafe {
            // The first rows bring the panel into a cache.
            let ahead = if row == 0 { a.ahead } else { 0 };
            let part = Packed { rows: a.rows.add(row * a.stride), out: a.out.add(row * PACKED), ahead, ..a };
            row += match rest {
                12.. if V::REGISTERS >= 32 => parts::<V, F, 2, 12>(part),
                6.. => parts::<V, F, 2, 6>(part),
                4.. => parts::<V, F, 2, 4>(part),
                2.. if vectors >= 4 => parts::<V, F, 4, 2>(part),
                2.. => parts::<V, F, 2, 2>(part),
                _ if vectors >= 8 => parts::<V, F, 8, 1>(part),
                _ if vectors >= 4 => parts::<V, F, 4, 1>(part),
                _ => parts::<V, F, 2, 1>(part),
            };
        }
    }
}

/// Computes the products of the first `ROWS` rows, `VECTORS` vectors of columns at a time, and returns `ROWS`.
///
/// # Safety
///
/// As for [`product`].
#[inline(always)]
unsafe fn parts<V: Lanes, F: ElementFormat, const VECTORS: usize, const ROWS: usize>(a: Packed) -> usize {
    for first in (0..PACKED).step_by(VECTORS * V::COUNT) {
        // SAFETY: the caller's promise.
        unsafe {
            let ahead = if first == 0 { a.ahead } else { 0 };
            let panel = a.panel.add(first * F::BITS / 8);
            block::<V, F, VECTORS, ROWS>(Packed { panel, out: a.out.add(first), ahead, ..a });
        }
    }
    ROWS
}

/// # Safety
///
/// As for [`product`], with the first `VECTORS` vectors of each line.
#[inline(always)]
unsafe fn block<V: Lanes, F: ElementFormat, const VECTORS: usize, const ROWS: usize>(a: Packed) {
    let line = PACKED * F::BITS / 8;
    // SAFETY: the caller's promise; any address may be prefetched.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
        // Row pointers advance with the panel; computing them in the loop would add checks there.
        let mut rows = [a.rows; ROWS];
        for (next, row) in rows.iter_mut().enumerate() {
            *row = a.rows.add(next * a.stride);
        }
        let mut panel = a.panel;
        for _ in 0..a.inner {
            if a.ahead != 0 {
                for part in (0..line).step_by(64) {
                    V::prefetch(panel.wrapping_add(a.ahead + part));
                }
            }
            let mut columns = [V::splat(0.0); VECTORS];
            for (next, column) in columns.iter_mut().enumerate() {
                *column = F::load(panel, next * V::COUNT);
            }
            for (row, sums) in rows.iter_mut().zip(&mut sums) {
                let factor = V::splat(**row);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = factor.mul_add(column, *sum);
                }
                *row = row.wrapping_add(1);
            }
            panel = panel.wrapping_add(line);
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (next, sum) in sums.into_iter().enumerate() {
                sum.store(a.out.add(row * PACKED + next * V::COUNT));
            }
        }
    }
}
