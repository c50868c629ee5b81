//! One unit of a product: some columns of some rows of the output.

use std::ops::Range;

use super::{FEW_MAX, WeightOrder, Weights};
use crate::base::dtype::floats;
use crate::base::error::Result;
use crate::base::scratch::with_floats;
use crate::kernels::tile::{AHEAD, Ahead, Elements, Matrix, MatrixMut, Panels, TileKernels, TileRows, padded};

/// The elements of a row that one tile multiplies: a panel of so many rows fits in the first-level cache.
const INNER: usize = 256;

/// Some rows of a product, and some of their columns.
pub(super) struct Unit<'a> {
    pub rows: Range<usize>,
    pub columns: Range<usize>,
    /// The unit's part of each row of the output.
    pub out: Vec<&'a mut [f32]>,
}

impl Unit<'_> {
    /// Multiplies with the kernels of the machine, if it has any.
    pub fn multiply(self, kernels: Option<&'static TileKernels>, rows: &[f32], weights: &Weights<'_>) -> Result<()> {
        let inner = weights.inner;
        let rows = &rows[self.rows.start * inner..self.rows.end * inner];
        let Some(kernels) = kernels else { return self.plain(rows, weights) };
        let call = Call { kernels, weights, columns: self.columns.clone(), rows, count: self.rows.len() };
        let width = padded(call.columns.len());
        let is_few = call.count <= FEW_MAX;
        let panels = if is_few { 0 } else { Panels::floats(padded(INNER), width) };
        // Kernels read whole vectors of a row: rows of another length are copied, with zeros behind them.
        let copies = if is_few && weights.order == WeightOrder::Columns && inner != padded(inner) {
            call.count * padded(inner)
        } else {
            0
        };
        with_floats([call.count * width, panels, copies], |[sums, panels, copies]| {
            let mut sums = MatrixMut { floats: sums, stride: width };
            match weights.order {
                _ if !is_few => call.packed(panels, &mut sums),
                WeightOrder::Rows => call.weigh(&mut sums),
                WeightOrder::Columns => call.dots(copies, &mut sums),
            }
            for (row, to) in sums.floats.chunks_exact(width).zip(self.out) {
                to.copy_from_slice(&row[..to.len()]);
            }
        })
    }

    /// The same without vector instructions.
    fn plain(mut self, rows: &[f32], weights: &Weights<'_>) -> Result<()> {
        let &Weights { dtype, bytes, inner, columns, order } = weights;
        let values =
            |first: usize, count: usize| floats(dtype, &bytes[first * dtype.bytes()..(first + count) * dtype.bytes()]);
        match order {
            WeightOrder::Rows => {
                self.out.iter_mut().for_each(|out| out.fill(0.0));
                for index in 0..inner {
                    let values = values(index * columns + self.columns.start, self.columns.len())?;
                    for (row, out) in rows.chunks_exact(inner).zip(&mut self.out) {
                        out.iter_mut().zip(&values).for_each(|(sum, value)| *sum += row[index] * value);
                    }
                }
            }
            WeightOrder::Columns => {
                for (place, column) in self.columns.enumerate() {
                    let values = values(column * inner, inner)?;
                    for (row, out) in rows.chunks_exact(inner).zip(&mut self.out) {
                        out[place] = row.iter().zip(&values).map(|(x, value)| x * value).sum();
                    }
                }
            }
        }
        Ok(())
    }
}

/// A unit with the kernels of the machine.
struct Call<'a> {
    kernels: &'static TileKernels,
    weights: &'a Weights<'a>,
    columns: Range<usize>,
    rows: &'a [f32],
    count: usize,
}

impl Call<'_> {
    /// The weights of some elements of the input, for the columns of the unit.
    fn tile(&self, inner: Range<usize>, ahead: Ahead) -> TileRows<'_> {
        let weights = self.weights;
        let elements = Elements::of(weights.dtype.page_format());
        let (line, first, count, dim, skipped) = match weights.order {
            WeightOrder::Rows => (weights.columns, inner.start, inner.len(), self.columns.len(), self.columns.start),
            WeightOrder::Columns => (weights.inner, self.columns.start, self.columns.len(), inner.len(), inner.start),
        };
        let stride = elements.row_bytes(line);
        let offset = first * stride + elements.row_bytes(skipped);
        TileRows { offset, ahead, ..TileRows::new(elements, weights.bytes, stride, count, dim) }
    }

    /// Sums the weights of each element of a row, times the element.
    fn weigh(&self, sums: &mut MatrixMut<'_>) {
        let inner = self.weights.inner;
        sums.floats.fill(0.0);
        let mut tile = self.tile(0..inner, Ahead::NOTHING);
        let rows_ahead = (AHEAD / tile.elements.row_bytes(tile.dim).max(1)).max(1);
        tile.ahead = Ahead { near: (rows_ahead * tile.stride) as isize, ..Ahead::STRAIGHT };
        let rows = Matrix { floats: self.rows, stride: inner, count: self.count };
        self.kernels.weigh(rows, tile, sums);
    }

    /// Dot products of rows with the weights of each column.
    fn dots(&self, copies: &mut [f32], sums: &mut MatrixMut<'_>) {
        let inner = self.weights.inner;
        let mut rows = Matrix { floats: self.rows, stride: inner, count: self.count };
        if !copies.is_empty() {
            for (row, copy) in self.rows.chunks_exact(inner).zip(copies.chunks_exact_mut(padded(inner))) {
                copy[..inner].copy_from_slice(row);
                copy[inner..].fill(0.0);
            }
            rows = Matrix { floats: copies, stride: padded(inner), count: self.count };
        }
        self.kernels.scores(rows, self.tile(0..inner, Ahead::STRAIGHT), sums);
    }

    /// Copies the weights into panels, some elements of the input at a time, and multiplies all rows with each tile.
    fn packed(&self, floats: &mut [f32], sums: &mut MatrixMut<'_>) {
        let (inner, stride) = (self.weights.inner, sums.stride);
        for first in (0..inner).step_by(INNER) {
            let some = first..(first + INNER).min(inner);
            let tile = self.tile(some.clone(), Ahead::NOTHING);
            let rows = if self.weights.order == WeightOrder::Rows { some.len() } else { padded(some.len()) };
            let mut panels = Panels { floats: &mut *floats, rows, columns: stride };
            match self.weights.order {
                WeightOrder::Rows => self.kernels.lay_values(tile, 0, &mut panels),
                WeightOrder::Columns => self.kernels.lay_keys(tile, 0, &mut panels),
            }
            let rows = Matrix { floats: &self.rows[first..], stride: inner, count: self.count };
            self.kernels.product(rows, &panels, 0..some.len(), stride, sums, first > 0);
        }
    }
}
