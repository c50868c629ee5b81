//! Products of a few rows with packed weights: each weight is read once, in the order of memory, by all rows.
//!
//! ```text
//! panel      32 columns     element 0 of the input: c c c ..   element 1: c c c ..   ...
//! product    for some elements of the input, which stay in the first-level cache:
//!                for some rows and some columns: sums in registers, while the next elements are prefetched
//! ```
//! Weights are converted to floats in registers. A number is the sum of its products in their order, as in `panels.rs`.
#![expect(unsafe_code, reason = "rows are read through pointers that the caller has checked")]

use std::ops::Range;

use super::rows::{AHEAD, ElementFormat, Elements};
use crate::kernels::simd::Lanes;

/// The number of columns of a panel: a cache line of halves.
pub(crate) const PACKED: usize = 32;

/// A panel of packed weights, or some elements of it: `[elements of a row, PACKED]`.
#[derive(Clone, Copy)]
pub(crate) struct PackedPanel<'a> {
    pub(super) elements: Elements,
    pub(super) bytes: &'a [u8],
    /// The number of elements of a row.
    pub(super) inner: usize,
    /// The memory that is prefetched meanwhile.
    pub(super) ahead: *const u8,
}

impl<'a> PackedPanel<'a> {
    /// A panel, whose following bytes are prefetched while it is multiplied.
    pub fn new(elements: Elements, bytes: &'a [u8], inner: usize) -> Self {
        PackedPanel { elements, bytes, inner, ahead: bytes.as_ptr().wrapping_add(AHEAD) }
    }

    /// Some elements of the panel. Those behind them are prefetched.
    pub fn part(self, inner: Range<usize>) -> Self {
        let [start, end] = [inner.start, inner.end].map(|element| self.elements.row_bytes(element * PACKED));
        let ahead = self.bytes.as_ptr().wrapping_add(end);
        PackedPanel { bytes: &self.bytes[start..end], inner: inner.len(), ahead, ..self }
    }
}

/// Some rows, and a panel or a part of it.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub panel: *const u8,
    /// Memory that is prefetched meanwhile.
    pub ahead: *const u8,
    pub inner: usize,
    pub rows: *const f32,
    /// The distance from one row to the next in floats.
    pub stride: usize,
    pub count: usize,
    /// `[rows, PACKED]`.
    pub out: *mut f32,
    /// True if products are added to the output, else they replace it.
    pub adds: bool,
}

/// # Safety
///
/// The rows and the panel are readable, the output is writable, and the machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn product<V: Lanes, F: ElementFormat>(a: Packed) {
    let line = PACKED * F::BITS / 8;
    for first in (0..a.inner).step_by(AHEAD / line) {
        let inner = (AHEAD / line).min(a.inner - first);
        let (adds, ahead) = (a.adds || first > 0, a.ahead.wrapping_add(first * line));
        // SAFETY: the caller's promise.
        unsafe {
            let (panel, rows) = (a.panel.add(first * line), a.rows.add(first));
            of_lines::<V, F>(Packed { panel, ahead, inner, rows, adds, ..a });
        }
    }
}

/// Multiplies lines that fit in the first-level cache. Meanwhile prefetches as many from `ahead` on, evenly, so that the memory
/// has work during all products.
///
/// # Safety
///
/// As for [`product`].
#[inline(always)]
unsafe fn of_lines<V: Lanes, F: ElementFormat>(a: Packed) {
    let mut ahead = a.ahead;
    // The sums of a few rows and many columns, or of more rows and fewer columns, fit in registers beside a column and a
    // factor. A sum waits for the one before, so at least eight are needed for a machine that adds two at a time.
    let mut row = 0;
    while row < a.count {
        let (rest, vectors) = (a.count - row, PACKED / V::COUNT);
        // SAFETY: the caller's promise.
        unsafe {
            let part = Packed { rows: a.rows.add(row * a.stride), out: a.out.add(row * PACKED), ..a };
            row += match rest {
                12.. if V::REGISTERS >= 32 => parts::<V, F, 2, 12>(part, &mut ahead),
                8.. if V::REGISTERS >= 32 => parts::<V, F, 2, 8>(part, &mut ahead),
                6.. => parts::<V, F, 2, 6>(part, &mut ahead),
                4.. => parts::<V, F, 2, 4>(part, &mut ahead),
                2.. if vectors >= 4 => parts::<V, F, 4, 2>(part, &mut ahead),
                2.. => parts::<V, F, 2, 2>(part, &mut ahead),
                _ if vectors >= 8 => parts::<V, F, 8, 1>(part, &mut ahead),
                _ if vectors >= 4 => parts::<V, F, 4, 1>(part, &mut ahead),
                _ => parts::<V, F, 2, 1>(part, &mut ahead),
            };
        }
    }
}

/// Computes the products of the first `ROWS` rows, `VECTORS` vectors of columns at a time, and returns `ROWS`. Prefetches its
/// share of the lines from `ahead` on, and moves `ahead` behind them.
///
/// # Safety
///
/// As for [`product`].
#[inline(always)]
unsafe fn parts<V: Lanes, F: ElementFormat, const VECTORS: usize, const ROWS: usize>(
    a: Packed,
    ahead: &mut *const u8,
) -> usize {
    let every = a.count * PACKED / (ROWS * VECTORS * V::COUNT);
    for first in (0..PACKED).step_by(VECTORS * V::COUNT) {
        // SAFETY: the caller's promise.
        unsafe {
            let panel = a.panel.add(first * F::BITS / 8);
            block::<V, F, VECTORS, ROWS>(Packed { panel, out: a.out.add(first), ..a }, ahead, every);
        }
    }
    ROWS
}

/// Prefetches a line for each `every` lines that are read.
///
/// # Safety
///
/// As for [`product`], with the first `VECTORS` vectors of each line.
#[inline(always)]
unsafe fn block<V: Lanes, F: ElementFormat, const VECTORS: usize, const ROWS: usize>(
    a: Packed,
    ahead: &mut *const u8,
    every: usize,
) {
    let line = PACKED * F::BITS / 8;
    // SAFETY: the caller's promise; any address may be prefetched.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
        if a.adds {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (next, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(a.out.add(row * PACKED + next * V::COUNT));
                }
            }
        }
        // Row pointers advance with the panel; computing them in the loop would add checks there.
        let mut rows = [a.rows; ROWS];
        for (next, row) in rows.iter_mut().enumerate() {
            *row = a.rows.add(next * a.stride);
        }
        let (mut panel, mut asked, mut left) = (a.panel, *ahead, every);
        for _ in 0..a.inner {
            left -= 1;
            if left == 0 {
                left = every;
                for part in (0..line).step_by(64) {
                    V::prefetch(asked.wrapping_add(part));
                }
                asked = asked.wrapping_add(line);
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
        *ahead = asked;
        for (row, sums) in sums.into_iter().enumerate() {
            for (next, sum) in sums.into_iter().enumerate() {
                sum.store(a.out.add(row * PACKED + next * V::COUNT));
            }
        }
    }
}
