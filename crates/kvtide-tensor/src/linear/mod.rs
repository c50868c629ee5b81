//! Products of rows with the weights of a model, read where the caller has them.
//!
//! ```text
//! few rows     a step that generates a token per sequence   weights are read in place, once for all rows
//! many rows    a prompt                                     a tile of weights is packed into panels, for 256 rows at a time
//! ```
//! With few rows, memory bandwidth limits the product, so weights are neither packed nor copied: a model has one copy of
//! them, in its file if the caller maps that. With many rows, packing a tile costs a load and a store for each vector that
//! 256 rows multiply.
//!
//! A unit of work is some columns of the output, and 256 of its rows. A number is the sum of its products in their order,
//! whatever the number of rows and of threads, except that few rows and weights in the order [`WeightOrder::Columns`] sum a
//! vector of products at a time.

mod blocks;
mod packed;
mod unit;

pub use self::blocks::{Activation, BlockCodes, BlockWeights, Gate, Precision};
pub use self::packed::PackedWeights;
use self::unit::Unit;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::reserved;
use crate::base::threads::{is_hosted, threads, try_share_all};
use crate::device::form::Form;
use crate::kernels::tile::TileKernels;

/// The order of the dimensions of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightOrder {
    /// `[inner, columns]`: the weights of an element of the input are contiguous.
    Rows,
    /// `[columns, inner]`: the weights of an element of the output are contiguous.
    Columns,
}

/// A matrix of weights.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// The type of the elements: floats of 32 or 16 bits.
    pub dtype: DType,
    /// The elements, at any alignment.
    pub bytes: &'a [u8],
    /// The number of elements of a row of the input.
    pub inner: usize,
    /// The number of elements of a row of the output.
    pub columns: usize,
    /// The order of the elements.
    pub order: WeightOrder,
}

/// The most rows for which weights are read in place.
const FEW_MAX: usize = 12;

/// The most rows of a unit: its sums and a tile of weights fit in the second-level cache.
const ROWS_MAX: usize = 256;

/// The products of a unit with one row, and the fewest columns of a unit.
const UNIT: usize = 1 << 16;
const COLUMNS_MIN: usize = 64;
const COLUMNS_MAX: usize = 256;

/// The bytes of a unit in a line of weights, for one row: in narrower ones, each line would be in a page of its own, whose
/// address takes longer to find than its numbers.
const LINE: usize = 4096;

/// The fewest units of a thread.
const UNITS: usize = 4;

/// The number of products below which waking another thread does not pay.
const ALONE_MAX: usize = 1 << 20;

/// The same for threads that wait in a loop.
const HOSTED_ALONE_MAX: usize = 1 << 17;

/// Multiplies each row of `rows` with the weights. `rows` has a multiple of `inner` floats, and `out` as many rows of
/// `columns` floats.
pub fn multiply(rows: &[f32], weights: &Weights<'_>, out: &mut [f32]) -> Result<()> {
    let count = weights.check(rows, out)?;
    let &Weights { inner, columns, .. } = weights;
    if inner == 0 || out.is_empty() {
        out.fill(0.0);
        return Ok(());
    }
    let limit = limit_of(count, inner, columns)?;
    let wide = match weights.order {
        _ if count > FEW_MAX => COLUMNS_MAX,
        WeightOrder::Rows => (LINE / weights.dtype.bytes() / count).min(columns.div_ceil(UNITS * limit)),
        WeightOrder::Columns => (UNIT / inner).min(COLUMNS_MAX),
    };
    let width = wide.max(COLUMNS_MIN).next_multiple_of(COLUMNS_MIN);
    let kernels = TileKernels::of(&Form::of_host()?);
    let units = units(count, columns, [ROWS_MAX, width], out)?;
    try_share_all(units, limit, |unit| unit.multiply(kernels, rows, weights))
}

/// The most threads for the product of so many rows.
fn limit_of(count: usize, inner: usize, columns: usize) -> Result<usize> {
    let products = count.saturating_mul(inner).saturating_mul(columns);
    let least = if is_hosted() { HOSTED_ALONE_MAX } else { ALONE_MAX };
    if products < least { Ok(1) } else { threads() }
}

/// The units of a product, each of at most `height` rows and `width` columns, with its part of every row of the output.
fn units(count: usize, columns: usize, [height, width]: [usize; 2], out: &mut [f32]) -> Result<Vec<Unit<'_>>> {
    let across = columns.div_ceil(width);
    let mut units = reserved(across * count.div_ceil(height))?;
    let mut rest = out.chunks_exact_mut(columns);
    for first in (0..count).step_by(height) {
        let rows = first..(first + height).min(count);
        let start = units.len();
        for column in (0..columns).step_by(width) {
            let columns = column..(column + width).min(columns);
            units.push(Unit { rows: rows.clone(), columns, out: reserved(rows.len())? });
        }
        for row in rest.by_ref().take(rows.len()) {
            units[start..].iter_mut().zip(row.chunks_mut(width)).for_each(|(unit, part)| unit.out.push(part));
        }
    }
    Ok(units)
}

impl Weights<'_> {
    /// The number of rows, if all sizes fit.
    fn check(&self, rows: &[f32], out: &[f32]) -> Result<usize> {
        self.check_size()?;
        row_count(rows, out, self.inner, self.columns)
    }

    /// Checks that the weights are floats, as many as their dimensions say.
    fn check_size(&self) -> Result<()> {
        let &Weights { dtype, bytes, inner, columns, .. } = self;
        if dtype == DType::U8 {
            return Err(Error::argument("dtype", dtype.name(), "f32, f16 or bf16"));
        }
        let wanted = inner.checked_mul(columns).and_then(|count| count.checked_mul(dtype.bytes()));
        if wanted != Some(bytes.len()) {
            let expected = format!("{inner} * {columns} elements of {} bytes", dtype.bytes());
            return Err(Error::ShapeMismatch { argument: "weights", value: vec![bytes.len()], expected });
        }
        Ok(())
    }
}

/// The number of rows, if those of the input and of the output are as many.
fn row_count(rows: &[f32], out: &[f32], inner: usize, columns: usize) -> Result<usize> {
    let count = rows.len().checked_div(inner).or(out.len().checked_div(columns)).unwrap_or(0);
    if rows.len() != count * inner {
        let expected = format!("rows of {inner} floats");
        return Err(Error::ShapeMismatch { argument: "rows", value: vec![rows.len()], expected });
    }
    if count.checked_mul(columns) != Some(out.len()) {
        let expected = format!("{count} rows of {columns} floats");
        return Err(Error::ShapeMismatch { argument: "out", value: vec![out.len()], expected });
    }
    Ok(count)
}
