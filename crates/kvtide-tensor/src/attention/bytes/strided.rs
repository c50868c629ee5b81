//! Rows of queries, keys or values as they lie in memory: at fixed distances, in one run or the two of a view.

use std::ops::Range;

use crate::attention::call::axes::{Axes, elements};
use crate::base::error::Result;
use crate::kernels::tile::{Ahead, Elements, Rows};
use crate::tensor::resolved::Resolved;

/// Rows whose memory is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct StridedRows<'a> {
    pub elements: Elements,
    pub bytes: &'a [u8],
    /// Bytes from one to the next; 0 for the batch of ragged rows.
    batch: usize,
    head: usize,
    token: usize,
    /// The first byte and the tokens of each run.
    runs: [(usize, usize); 2],
    pub dim: usize,
}

impl<'a> StridedRows<'a> {
    /// A source's rows in `bytes`.
    pub fn new(source: &Resolved<'_>, axes: Axes, bytes: &'a [u8]) -> Result<Self> {
        let (strides, runs) = source.layout();
        Ok(StridedRows {
            elements: elements(source.dtype)?,
            bytes,
            batch: if axes.are_ragged() { 0 } else { strides[0] },
            head: strides[axes.heads],
            token: strides[axes.tokens],
            runs,
            dim: source.dims[axes.rank - 1],
        })
    }

    /// The rows of some heads, from token `index` on, that lie at one distance.
    pub fn rows(&self, batch: usize, heads: Range<usize>, index: usize) -> Rows<'a> {
        let [(first, tokens), (second, more)] = self.runs;
        let (offset, within, count) =
            if index < tokens { (first, index, tokens) } else { (second, index - tokens, more) };
        Rows {
            elements: self.elements,
            bytes: self.bytes,
            offset: offset + batch * self.batch + heads.start * self.head + within * self.token,
            heads: heads.len(),
            head_stride: self.head,
            stride: self.token,
            count: count - within,
            dim: self.dim,
            ahead: Ahead::STRAIGHT,
        }
    }
}
