//! Products of rows with packed weights. See `kernels/tile/packed.rs` for the form of the weights.
//!
//! ```text
//! floats, or up to 128 rows    a panel is multiplied as it is with up to 192 rows
//! more rows and halves         some elements of a panel are converted to floats, then multiplied with up to 192 rows
//! ```

use super::{UNITS, Unit, WeightOrder, Weights, limit_of, row_count, units};
use crate::base::chunks::HugeVec;
use crate::base::dtype::{DType, floats};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::base::scratch::with_floats;
use crate::base::threads::try_share_all;
use crate::device::form::Form;
use crate::kernels::tile::{AHEAD, Elements, Matrix, PACKED, PackedPanel, TileKernels};

/// Weights of floats or halves, packed for [`multiply`](Self::multiply).
pub struct PackedWeights {
    /// Panels of [`PACKED`] columns, `[inner, PACKED]` each. Columns that the weights lack are 0.
    panels: HugeVec<u64>,
    dtype: DType,
    inner: usize,
    columns: usize,
}

/// The most rows for which halves are converted in registers, once for each group of rows.
const FEW_MAX: usize = 128;

/// The elements of a panel that are converted to floats at a time: as many as the kernel reads at a time.
const INNER: usize = AHEAD / (PACKED * size_of::<f32>());

/// The most rows that are multiplied with a panel at a time. They fit in the second-level cache.
const ROWS_MAX: usize = 192;

/// The rows of the largest group whose sums fit in registers.
const GROUP: usize = 12;

impl PackedWeights {
    /// True if products with weights of this type are no slower here than those of other libraries. For floats that is so
    /// on x86: some other processors have units for matrices, which these kernels do not use.
    pub fn is_fast(dtype: DType) -> Result<bool> {
        let is_known = dtype != DType::F32 || cfg!(target_arch = "x86_64");
        Ok(is_known && TileKernels::of(&Form::of_host()?).is_some())
    }

    /// Packs weights. O(weights).
    pub fn pack(weights: &Weights<'_>) -> Result<Self> {
        let &Weights { dtype, bytes, order, .. } = weights;
        weights.check_size()?;
        // Without elements, one dimension is 0 and the other may be any number.
        let [inner, columns] = if bytes.is_empty() { [0; 2] } else { [weights.inner, weights.columns] };
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
        Ok(PackedWeights { panels, dtype, inner: weights.inner, columns: weights.columns })
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
        let height = count.div_ceil(count.div_ceil(ROWS_MAX)).next_multiple_of(GROUP);
        let width = columns.div_ceil(UNITS * limit).next_multiple_of(PACKED);
        let units = units(count, columns, [height, width], out)?;
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
        let converts = count > FEW_MAX && elements != Elements::F32;
        let converted = if converts { INNER.min(inner) * PACKED } else { 0 };
        with_floats([count * PACKED, converted], |[products, floats]| {
            for column in unit.columns.clone().step_by(PACKED) {
                let panel = PackedPanel::new(elements, self.from(column), inner);
                if converts {
                    for first in (0..inner).step_by(INNER) {
                        let part = panel.part(first..inner.min(first + INNER));
                        let rows = Matrix { floats: &rows[first..], stride: inner, count };
                        kernels.product_of_packed(rows, kernels.converted(part, floats), products, first > 0);
                    }
                } else {
                    kernels.product_of_packed(Matrix { floats: rows, stride: inner, count }, panel, products, false);
                }
                let place = column - unit.columns.start;
                let width = PACKED.min(unit.columns.end - column);
                for (out, products) in unit.out.iter_mut().zip(products.chunks_exact(PACKED)) {
                    out[place..place + width].copy_from_slice(&products[..width]);
                }
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
