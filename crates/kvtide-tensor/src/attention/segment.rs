//! Neighbouring rows of keys and values, and what turns their codes into numbers.

use crate::kernels::tile::{Rows, half_at};

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
    /// The scale and the minimum of a row; 1 and 0 where rows have none of their own.
    pub fn of_row(&self, row: usize) -> [f32; 2] {
        match self {
            Scale::One | Scale::Channel(_) => [1.0, 0.0],
            Scale::Row(halves) => [half_at(halves, row), 0.0],
            Scale::RowPair(halves) => [half_at(halves, 2 * row), half_at(halves, 2 * row + 1)],
        }
    }

    /// The scales and minimums of each of `dim` elements, where rows share them.
    pub fn of_channels(&self, dim: usize, scales: &mut [f32], minimums: &mut [f32]) -> bool {
        let Scale::Channel(halves) = self else { return false };
        for channel in 0..dim {
            scales[channel] = half_at(halves, channel);
            minimums[channel] = half_at(halves, dim + channel);
        }
        // What an earlier call left behind them may be no number, which not even a query's zeros undo.
        scales[dim..].fill(0.0);
        minimums[dim..].fill(0.0);
        true
    }
}
