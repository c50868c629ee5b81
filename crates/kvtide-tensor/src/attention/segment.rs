//! Neighbouring rows of keys and values, and what turns their codes into numbers.

use crate::kernels::quantise::scale_at;
use crate::kernels::tile::{Elements, Rows, TileKernels};

/// The rows from one key on that lie at one distance, keys and values alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub keys: Rows<'a>,
    pub values: Rows<'a>,
    pub key_scale: Scale<'a>,
    pub value_scale: Scale<'a>,
    /// True when the keys were rotated before they were quantised, as the queries must be.
    pub rotated: bool,
}

impl Segment<'_> {
    /// Its first rows, at most `count` of them.
    pub fn first(self, count: usize) -> Self {
        let count = count.min(self.keys.count);
        Segment { keys: self.keys.part(0, count), values: self.values.part(0, count), ..self }
    }

    /// How many keys.
    pub fn count(&self) -> usize {
        self.keys.count
    }
}

/// How a code becomes a number. Scales are half floats.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scale<'a> {
    /// The code is the number.
    One,
    /// `code * scale`, a scale for each row.
    Row(&'a [u8]),
    /// `code * scale + minimum`, a pair for each row.
    RowPair(&'a [u8]),
    /// `code * scale + minimum`, for each element of every row: all scales, then all minimums.
    Channel(&'a [u8]),
}

impl Scale<'_> {
    /// True when each row has a scale of its own.
    pub fn is_by_row(&self) -> bool {
        matches!(self, Scale::Row(_) | Scale::RowPair(_))
    }

    /// Writes the scales and the minimums of the first `count` rows, 1 and 0 where they have none of their own. What follows
    /// in both, up to a vector, may be written as well.
    pub fn of_rows(&self, kernels: &TileKernels, count: usize, scales: &mut [f32], minimums: &mut [f32]) {
        match self {
            Scale::One | Scale::Channel(_) => {
                scales[..count].fill(1.0);
                minimums[..count].fill(0.0);
            }
            Scale::Row(halves) => {
                kernels.widen(row_of_halves(halves, count), 0, scales);
                minimums[..count].fill(0.0);
            }
            Scale::RowPair(halves) => {
                for (row, pair) in halves.chunks_exact(4).take(count).enumerate() {
                    (scales[row], minimums[row]) = (scale_at(pair, 0), scale_at(pair, 1));
                }
            }
        }
    }

    /// Writes the scales and the minimums of each of `dim` elements, where rows share them, and zeros behind them: what an
    /// earlier call left there may be no number, which not even a query's zeros undo.
    pub fn of_channels(&self, kernels: &TileKernels, dim: usize, scales: &mut [f32], minimums: &mut [f32]) -> bool {
        let Scale::Channel(halves) = self else { return false };
        for (floats, halves) in [(&mut *scales, &halves[..2 * dim]), (&mut *minimums, &halves[2 * dim..])] {
            floats[dim..].fill(0.0);
            kernels.widen(row_of_halves(halves, dim), 0, floats);
        }
        true
    }
}

fn row_of_halves(halves: &[u8], dim: usize) -> Rows<'_> {
    Rows { elements: Elements::F16, bytes: halves, offset: 0, stride: 0, count: 1, dim, ahead: 0 }
}
