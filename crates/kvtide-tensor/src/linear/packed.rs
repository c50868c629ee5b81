//! Products of rows with packed weights. See `kernels/tile/packed.rs` for the form of the weights.
//!
//! ```text
//! up to 128 rows     some elements of a panel are multiplied as they are, then those that follow
//! more rows          some elements of some panels are converted to floats, and multiplied with up to 256 rows
//! ```

use super::{COLUMNS_MAX, ROWS_MAX, UNITS, Unit, WeightOrder, Weights, limit_of, row_count, units};
use crate::base::chunks::HugeVec;
use crate::base::dtype::{DType, floats};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::base::scratch::with_floats;
use crate::base::threads::try_share_all;
use crate::device::form::Form;
use crate::kernels::tile::{Elements, Matrix, MatrixMut, PACKED, Panels, TileKernels, TileRows};

/// Weights of floats or halves, packed for [`multiply`](Self::multiply).
pub struct PackedWeights {
    /// Panels of [`PACKED`] columns, `[inner, PACKED]` each. Columns that the weights lack are 0.
    panels: HugeVec<u64>,
    dtype: DType,
    inner: usize,
    columns: usize,
}

/// The most rows for which panels are multiplied as they are.
const FEW_MAX: usize = 128;

/// The elements of a row that are multiplied at a time, if there are many rows: a panel of so many fits in the first-level
/// cache.
const INNER: usize = 256;

impl PackedWeights {
    /// True if this machine has kernels for such weights.
    pub fn is_fast() -> Result<bool> {
        Ok(TileKernels::of(&Form::of_host()?).is_some())
    }

    /// Packs weights. O(weights).
    pub fn pack(weights: &Weights<'_>) -> Result<Self> {
        let &Weights { dtype, bytes, inner, columns, order } = weights;
        weights.check_size()?;
        let size = dtype.bytes();
        let stride = inner * PACKED * size;
        let count = columns.div_ceil(PACKED) * stride / size_of::<u64>();
        let refusal = || Budget::process().refusal((count * size_of::<u64>()) as u64);
        let mut panels: HugeVec<u64> = HugeVec::zeroed(count).ok_or_else(refusal)?;
        let to: &mut [u8] = bytemuck::cast_slice_mut(&mut panels);
        match order {
            WeightOrder::Rows => {
                for (index, row) in bytes.chunks_exact((columns * size).max(1)).enumerate() {
                    for (panel, part) in row.chunks(PACKED * size).enumerate() {
                        to[panel * stride + index * PACKED * size..][..part.len()].copy_from_slice(part);
                    }
                }
            }
            WeightOrder::Columns => {
                for (column, own) in bytes.chunks_exact((inner * size).max(1)).enumerate() {
                    let panel = &mut to[column / PACKED * stride..][..stride];
                    let lines = panel.chunks_exact_mut(PACKED * size);
                    for (line, element) in lines.zip(own.chunks_exact(size)) {
                        line[column % PACKED * size..][..size].copy_from_slice(element);
                    }
                }
            }
        }
        Ok(PackedWeights { panels, dtype, inner, columns })
    }

    /// The number of elements of a row of the input.
    #[must_use]
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// The number of elements of a row of the output.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Multiplies each row of `rows`, of [`inner`](Self::inner) floats, with the weights. `out` has as many rows of
    /// [`columns`](Self::columns) floats. A row has the same bits alone and among others.
    pub fn multiply(&self, rows: &[f32], out: &mut [f32]) -> Result<()> {
        let (inner, columns) = (self.inner, self.columns);
        let count = row_count(rows, out, inner, columns)?;
        if inner == 0 || out.is_empty() {
            out.fill(0.0);
            return Ok(());
        }
        let limit = limit_of(count, inner, columns)?;
        let wide = if count > FEW_MAX { COLUMNS_MAX } else { columns.div_ceil(UNITS * limit).next_multiple_of(PACKED) };
        let units = units(count, columns, [ROWS_MAX, wide], out)?;
        let kernels = TileKernels::of(&Form::of_host()?);
        try_share_all(units, limit, |unit| match kernels {
            Some(kernels) => self.multiply_unit(kernels, rows, unit),
            None => self.plain(rows, unit),
        })
    }

    /// The panel of these columns and of those after it.
    fn from(&self, column: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.panels)[column / PACKED * self.inner * PACKED * self.dtype.bytes()..]
    }

    fn multiply_unit(&self, kernels: &'static TileKernels, rows: &[f32], mut unit: Unit<'_>) -> Result<()> {
        let (inner, count) = (self.inner, unit.rows.len());
        let rows = &rows[unit.rows.start * inner..unit.rows.end * inner];
        let elements = Elements::of(self.dtype.page_format());
        if count <= FEW_MAX {
            return with_floats([count * PACKED], |[products]| {
                let matrix = Matrix { floats: rows, stride: inner, count };
                for column in unit.columns.clone().step_by(PACKED) {
                    kernels.product_of_packed(matrix, elements, self.from(column), inner, products);
                    let place = column - unit.columns.start;
                    let width = PACKED.min(unit.columns.end - column);
                    for (out, products) in unit.out.iter_mut().zip(products.chunks_exact(PACKED)) {
                        out[place..place + width].copy_from_slice(&products[..width]);
                    }
                }
            });
        }
        let width = unit.columns.len().next_multiple_of(PACKED);
        with_floats([count * width, Panels::floats(INNER, width)], |[sums, floats]| {
            let mut sums = MatrixMut { floats: sums, stride: width };
            for first in (0..inner).step_by(INNER) {
                let some = INNER.min(inner - first);
                let stride = elements.row_bytes(PACKED);
                for (column, floats) in unit.columns.clone().step_by(PACKED).zip(floats.chunks_mut(some * PACKED)) {
                    let tile = TileRows::new(elements, &self.from(column)[first * stride..], stride, some, PACKED);
                    kernels.lay_values(tile, 0, &mut Panels { floats, rows: some, columns: PACKED });
                }
                let panels = Panels { floats: &mut *floats, rows: some, columns: width };
                let matrix = Matrix { floats: &rows[first..], stride: inner, count };
                kernels.product(matrix, &panels, 0..some, width, &mut sums, first > 0);
            }
            for (out, sums) in unit.out.iter_mut().zip(sums.floats.chunks_exact(width)) {
                out.copy_from_slice(&sums[..out.len()]);
            }
        })
    }

    /// The same without vector instructions.
    fn plain(&self, rows: &[f32], mut unit: Unit<'_>) -> Result<()> {
        let (inner, size) = (self.inner, self.dtype.bytes());
        unit.out.iter_mut().for_each(|out| out.fill(0.0));
        for column in unit.columns.clone().step_by(PACKED) {
            let place = column - unit.columns.start;
            for (index, line) in self.from(column).chunks_exact(PACKED * size).take(inner).enumerate() {
                let values = floats(self.dtype, line)?;
                for (row, out) in unit.rows.clone().zip(&mut unit.out) {
                    let sums = out[place..].iter_mut().zip(&values);
                    sums.for_each(|(sum, value)| *sum += rows[row * inner + index] * value);
                }
            }
        }
        Ok(())
    }
}
