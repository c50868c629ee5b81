//! Products of a tile for many rows: both factors are reused so often that rearranging one of them pays.
//!
//! ```text
//! panel      two vectors of columns:   row 0: c c c c   row 1: c c c c   ...         what one block reads is contiguous
//! keys       a column for each key, a row for each element              scores =  queries * panels
//! values     a column for each element, a row for each key              out    += weights * panels
//! product    for some rows, for one panel: sums in registers over all its rows
//! ```
//!
//! Panels have floats whatever the format: each element is converted once for all rows. Filling panels costs a load and a
//! store per vector, and a few shuffles where columns become rows; the product consists of multiply-adds only.
#![expect(unsafe_code, reason = "rows are read through pointers that the caller has checked")]

use super::rows::{AheadOf, ElementFormat, LANES_MAX, TileRows, ask, load_some, padded};
use crate::kernels::simd::Lanes;

/// The number of vectors of columns in a panel.
const WIDE: usize = 2;

/// The number of columns of a panel.
pub(super) const fn width<V: Lanes>() -> usize {
    WIDE * V::COUNT
}

/// Memory for rows and columns in panels. The width of a panel depends on the kernels.
#[derive(Debug)]
pub(crate) struct Panels<'a> {
    pub floats: &'a mut [f32],
    /// The number of rows of a panel.
    pub rows: usize,
    pub columns: usize,
}

impl Panels<'_> {
    /// The number of floats in panels with this many rows and columns. The last panel may be wider than its content.
    pub fn floats(rows: usize, columns: usize) -> usize {
        rows * columns.next_multiple_of(WIDE * LANES_MAX)
    }

    /// A call that copies rows of one head into panels; panics unless the rows are inside their memory and `fit`.
    pub(super) fn lay(&mut self, rows: TileRows<'_>, at: usize, fit: bool) -> Lay {
        rows.check();
        assert!(rows.elements.is_direct(rows.dim) && rows.heads == 1, "rows of one head that are read in place");
        assert!(fit && self.floats.len() >= Panels::floats(self.rows, self.columns), "rows outside their panels");
        Lay {
            rows: rows.first(),
            stride: rows.stride,
            count: rows.count,
            dim: rows.dim,
            ahead: rows.ahead_of_first(),
            panels: self.floats.as_mut_ptr(),
            panel_rows: self.rows,
            at,
        }
    }
}

/// Rows of elements, and their place in panels.
#[derive(Clone, Copy)]
pub(super) struct Lay {
    pub rows: *const u8,
    /// The distance from one row to the next in bytes.
    pub stride: usize,
    pub count: usize,
    pub dim: usize,
    pub ahead: AheadOf,
    /// The panels, and the number of rows for which each has memory.
    pub panels: *mut f32,
    pub panel_rows: usize,
    /// The column or row of the panels for the first row.
    pub at: usize,
}

/// Copies rows to columns: row `at + i` of the call becomes column `at + i` of the panels. Columns after the last one, up to
/// the next multiple of four, and rows of the panels, up to a whole vector, get arbitrary numbers.
///
/// # Safety
///
/// The rows are readable, the panels are writable for the columns rounded up to four and `dim` rows rounded up to a vector,
/// and the machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn lay_columns<V: Lanes, F: ElementFormat>(a: Lay) {
    let width = width::<V>();
    // SAFETY: the caller's promise; indices after the last row repeat it.
    unsafe {
        let mut index = 0;
        while index < a.count {
            let column = a.at + index;
            let to = a.panels.add(column / width * a.panel_rows * width + column % width);
            if column.is_multiple_of(4) {
                let mut rows = [a.rows; 4];
                for (next, row) in rows.iter_mut().enumerate() {
                    *row = a.rows.add((index + next).min(a.count - 1) * a.stride);
                    ask::<V>(*row, a.dim * F::BITS / 8, a.ahead.from(a.rows.add(index * a.stride)));
                }
                for at in (0..a.dim).step_by(V::COUNT) {
                    let four = [
                        load::<V, F>(rows[0], at, a.dim),
                        load::<V, F>(rows[1], at, a.dim),
                        load::<V, F>(rows[2], at, a.dim),
                        load::<V, F>(rows[3], at, a.dim),
                    ];
                    V::put_columns(four, to.add(at * width), width);
                }
                index += 4;
            } else {
                let row = a.rows.add(index * a.stride);
                for at in (0..a.dim).step_by(V::COUNT) {
                    let mut floats = [0.0; LANES_MAX];
                    load::<V, F>(row, at, a.dim).store(floats.as_mut_ptr());
                    for (next, float) in floats.into_iter().enumerate().take(V::COUNT) {
                        *to.add((at + next) * width) = float;
                    }
                }
                index += 1;
            }
        }
    }
}

/// A vector of a row with `dim` elements, followed by zeros.
///
/// # Safety
///
/// The row has `dim` elements, more than `at`, and the machine has the instructions of `V`.
#[inline(always)]
unsafe fn load<V: Lanes, F: ElementFormat>(row: *const u8, at: usize, dim: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe { if dim - at < V::COUNT { load_some::<F, V>(row, at, dim - at) } else { F::load::<V>(row, at) } }
}

/// Copies rows to rows: row `at + i` of every panel gets its part of row `i`. Columns after the last element, up to the
/// padded length of a row, get zeros: NaN that an earlier call left there would count as NaN of this call.
///
/// # Safety
///
/// The rows are readable, the panels are writable for `at + count` rows and `padded(dim)` columns, and the machine has the
/// instructions of `V`.
#[inline(always)]
pub(super) unsafe fn lay_rows<V: Lanes, F: ElementFormat>(a: Lay) {
    let width = width::<V>();
    // SAFETY: the caller's promise.
    unsafe {
        for index in 0..a.count {
            let row = a.rows.add(index * a.stride);
            ask::<V>(row, a.dim * F::BITS / 8, a.ahead.from(row));
            let to = a.panels.add((a.at + index) * width);
            for at in (0..a.dim).step_by(V::COUNT) {
                let to = to.add(at / width * a.panel_rows * width + at % width);
                load::<V, F>(row, at, a.dim).store(to);
            }
            for at in (a.dim.next_multiple_of(V::COUNT)..padded(a.dim)).step_by(V::COUNT) {
                V::splat(0.0).store(to.add(at / width * a.panel_rows * width + at % width));
            }
        }
    }
}

/// Rows of floats times the columns of panels.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub rows: *const f32,
    /// The distance from one row to the next in floats.
    pub stride: usize,
    pub count: usize,
    /// The panels, the number of rows for which each has memory, and the first row that is multiplied.
    pub panels: *const f32,
    pub panel_rows: usize,
    pub first: usize,
    /// The elements of a row, which is also the number of rows of the panels.
    pub inner: usize,
    /// The number of columns, a multiple of a vector.
    pub columns: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    /// True if products are added to the output, else they replace it.
    pub adds: bool,
}

/// # Safety
///
/// The memory that `a` refers to is readable, its output is writable, and the machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn product<V: Lanes>(a: Product) {
    for first in (0..a.columns).step_by(width::<V>()) {
        // SAFETY: the caller's promise.
        unsafe {
            let panels = a.panels.add(first * a.panel_rows + a.first * width::<V>());
            let panel = Product { panels, out: a.out.add(first), ..a };
            match a.columns - first {
                rest if rest < width::<V>() => of_panel::<V, 1>(panel),
                _ => of_panel::<V, WIDE>(panel),
            }
        }
    }
}

/// # Safety
///
/// As for [`product`], with the first `VECTORS` vectors of a panel.
#[inline(always)]
unsafe fn of_panel<V: Lanes, const VECTORS: usize>(a: Product) {
    let mut row = 0;
    while row < a.count {
        // SAFETY: the caller's promise.
        unsafe {
            let part = Product { rows: a.rows.add(row * a.stride), out: a.out.add(row * a.out_stride), ..a };
            // As many sums as fit in registers next to the vectors of the panel and one of the row.
            row += match a.count - row {
                12.. if V::REGISTERS >= 32 => block::<V, VECTORS, 12>(part),
                6.. if V::REGISTERS < 32 => block::<V, VECTORS, 6>(part),
                8.. => block::<V, VECTORS, 8>(part),
                4.. => block::<V, VECTORS, 4>(part),
                2.. => block::<V, VECTORS, 2>(part),
                _ => block::<V, VECTORS, 1>(part),
            };
        }
    }
}

/// Computes the products of the first `ROWS` rows, and returns `ROWS`.
///
/// # Safety
///
/// As for [`of_panel`].
#[inline(always)]
unsafe fn block<V: Lanes, const VECTORS: usize, const ROWS: usize>(a: Product) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
        if a.adds {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (next, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(a.out.add(row * a.out_stride + next * V::COUNT));
                }
            }
        }
        // Row pointers advance with the panel; computing them in the loop would add checks there.
        let mut rows = [a.rows; ROWS];
        for (next, row) in rows.iter_mut().enumerate() {
            *row = a.rows.add(next * a.stride);
        }
        let mut panel = a.panels;
        let end = panel.add(a.inner * width::<V>());
        while panel < end {
            let mut columns = [V::splat(0.0); VECTORS];
            for (next, column) in columns.iter_mut().enumerate() {
                *column = V::load(panel.add(next * V::COUNT));
            }
            for (row, sums) in rows.iter_mut().zip(&mut sums) {
                let factor = V::splat(**row);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = factor.mul_add(column, *sum);
                }
                *row = row.wrapping_add(1);
            }
            panel = panel.add(width::<V>());
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (next, sum) in sums.into_iter().enumerate() {
                sum.store(a.out.add(row * a.out_stride + next * V::COUNT));
            }
        }
    }
    ROWS
}
