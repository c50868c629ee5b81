//! Neighbouring rows of keys and values, and what turns their codes into numbers.

use crate::kernels::quantise::q4_at;
use crate::kernels::tile::{Ahead, Elements, Rows, TileKernels};

/// The rows of some heads, from one key on, that lie at one distance, keys and values alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub keys: Rows<'a>,
    pub values: Rows<'a>,
    pub key_scales: Scales<'a>,
    pub value_scales: Scales<'a>,
    /// True when the keys were rotated before they were quantised, as the queries must be.
    pub rotated: bool,
}

impl Segment<'_> {
    /// Its first rows, at most `count` of them.
    pub fn first(self, count: usize) -> Self {
        let count = count.min(self.keys.count);
        Segment { keys: self.keys.part(0, count), values: self.values.part(0, count), ..self }
    }

    /// How many keys of each head.
    pub fn count(&self) -> usize {
        self.keys.count
    }
}

/// How a code becomes a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// The code is the number.
    One,
    /// `code * scale`, a scale for each row.
    Row,
    /// `code * scale + minimum`, a word for each row.
    RowPair,
    /// `code * scale + minimum`, a word for each element of every row.
    Channel,
}

/// The scales of some heads' rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scales<'a> {
    pub scale: Scale,
    /// From the first row's on.
    pub bytes: &'a [u8],
    /// Bytes from a head to the next.
    pub head_stride: usize,
}

impl<'a> Scales<'a> {
    /// None: codes are numbers.
    pub const ONE: Scales<'static> = Scales { scale: Scale::One, bytes: &[], head_stride: 0 };

    /// True when each row has a scale of its own.
    pub fn is_by_row(&self) -> bool {
        matches!(self.scale, Scale::Row | Scale::RowPair)
    }

    /// True when each element of a head's rows has one.
    pub fn is_by_channel(&self) -> bool {
        self.scale == Scale::Channel
    }

    /// Those of one head.
    pub fn head(self, head: usize) -> Scales<'a> {
        Scales { bytes: &self.bytes[head * self.head_stride..], ..self }
    }

    /// Writes the scales and the minimums of the first `count` rows of the first head, 1 and 0 where they have none of their
    /// own. What follows in both, up to a vector, may be written as well.
    pub fn of_rows(&self, kernels: &TileKernels, count: usize, scales: &mut [f32], minimums: &mut [f32]) {
        match self.scale {
            Scale::One | Scale::Channel => {
                scales[..count].fill(1.0);
                minimums[..count].fill(0.0);
            }
            Scale::Row => {
                kernels.widen(row_of_brains(self.bytes, count), 0, scales);
                minimums[..count].fill(0.0);
            }
            Scale::RowPair => self.put_words(count, scales, minimums),
        }
    }

    /// Writes the scales and the minimums of each of `dim` elements of the first head, where rows share them, and zeros behind
    /// them: what an earlier call left there may be no number, which not even a query's zeros undo.
    pub fn of_channels(&self, dim: usize, scales: &mut [f32], minimums: &mut [f32]) {
        self.put_words(dim, scales, minimums);
        scales[dim..].fill(0.0);
        minimums[dim..].fill(0.0);
    }

    /// Writes what the first `count` words say.
    fn put_words(&self, count: usize, scales: &mut [f32], minimums: &mut [f32]) {
        let words = self.bytes.chunks_exact(4).take(count);
        for ((word, scale), minimum) in words.zip(&mut *scales).zip(&mut *minimums) {
            [*scale, *minimum] = q4_at(word, 0);
        }
    }
}

fn row_of_brains(bytes: &[u8], dim: usize) -> Rows<'_> {
    Rows {
        elements: Elements::Bf16,
        bytes,
        offset: 0,
        heads: 1,
        head_stride: 0,
        stride: 0,
        count: 1,
        dim,
        ahead: Ahead::NOTHING,
    }
}
