//! One call of attention, everything about it checked and laid out: what its units of work share.

use std::sync::atomic::{AtomicBool, Ordering};

use super::segment::{Scale, Segment};
use super::strided::Strided;
use super::visible::{Family, KeyPositions, Rules};
use crate::error::{Error, Result};
use crate::kernels::tile::TileKernels;

/// Query rows of a unit, unless one query alone has more: as many as stay in the second cache with their tile.
const ROWS: usize = 64;

/// One call.
pub(super) struct Job<'a> {
    pub kernels: &'static TileKernels,
    pub sizes: Sizes,
    pub sequences: Vec<Sequence>,
    pub queries: Strided<'a>,
    pub keys: Keys<'a>,
    pub causal: bool,
    pub window: Option<i64>,
    pub sinks: i64,
    pub tree: Option<Family>,
    pub mask: Option<Mask<'a>>,
    pub positions: Option<Vec<i64>>,
    pub sink_logits: Option<&'a [f32]>,
    /// What queries are multiplied with.
    pub scale: f32,
    pub softcap: Option<f32>,
    pub stop: Option<&'a AtomicBool>,
}

/// The sizes that all sequences share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub query_heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub value_dim: usize,
    /// True for `[tokens, heads, dim]`, false for `[batch, heads, n, dim]`.
    pub ragged: bool,
}

impl Sizes {
    /// Query heads that share one head of K and V.
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }
}

/// One sequence, or one row of the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    /// Its first query and how many, in the list of all queries.
    pub first_query: usize,
    pub queries: usize,
    /// Its first key in the list of all keys, where they are in one list.
    pub first_key: usize,
    pub keys: KeyPositions,
    /// The first position that is no padding.
    pub start: i64,
}

/// Where keys and values lie.
pub(super) enum Keys<'a> {
    /// In tensors or views.
    Strided {
        /// The keys.
        k: Strided<'a>,
        /// The values.
        v: Strided<'a>,
    },
}

/// An additive mask and its strides, 0 where it is broadcast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask<'a> {
    pub bytes: &'a [u8],
    /// Bytes from one to the next: batch, query heads, queries, keys.
    pub strides: [usize; 4],
}

impl Mask<'_> {
    /// What is added to one score.
    pub fn at(&self, batch: usize, head: usize, query: usize, key: usize) -> f32 {
        let index = [batch, head, query, key];
        let at: usize = index.iter().zip(self.strides).map(|(index, stride)| index * stride).sum();
        f32::from_ne_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }
}

/// Some queries of one sequence, all query heads of one head of K and V, and a share of the keys that they see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub sequence: usize,
    pub head: usize,
    /// The first of them within the sequence.
    pub first_query: usize,
    pub queries: usize,
    /// Which share of the keys, of how many.
    pub split: usize,
    pub splits: usize,
    /// Its place among the units whose shares are put together.
    pub group: usize,
}

impl Job<'_> {
    /// Products of queries and keys, in elements.
    pub fn products(&self) -> usize {
        let rows = |of: &Sequence| of.queries.saturating_mul(of.keys.len());
        let rows = self.sequences.iter().map(rows).fold(0usize, usize::saturating_add);
        rows.saturating_mul(self.sizes.query_heads * self.sizes.dim)
    }

    /// Query rows of a unit, at most.
    pub fn rows_max(&self) -> usize {
        let queries = self.sequences.iter().map(|of| of.queries).max().unwrap_or(0);
        queries.min(self.queries_max()) * self.sizes.group()
    }

    /// Queries of a unit.
    pub fn queries_max(&self) -> usize {
        (ROWS / self.sizes.group()).max(1)
    }

    /// The rules of a sequence.
    pub fn rules(&self, sequence: usize) -> Rules<'_> {
        let Sequence { keys, start, .. } = self.sequences[sequence];
        Rules { keys, causal: self.causal, window: self.window, sinks: self.sinks, start, tree: self.tree.as_ref() }
    }

    /// The position of a query of a sequence.
    pub fn position(&self, sequence: usize, query: usize) -> i64 {
        let of = &self.sequences[sequence];
        if let Some(positions) = &self.positions {
            let shared = positions.len() == of.queries;
            return positions[if shared { query } else { of.first_query + query }];
        }
        let first = of.keys.end() - of.queries as i64;
        first + self.tree.as_ref().map_or(query as i64, |tree| tree.depth(query))
    }

    /// The rows from key `index` of a sequence on that lie at one distance.
    pub fn segment(&self, sequence: usize, head: usize, index: usize) -> Segment<'_> {
        let of = &self.sequences[sequence];
        let batch = if self.sizes.ragged { 0 } else { sequence };
        match &self.keys {
            Keys::Strided { k, v } => {
                let (keys, values) =
                    (k.rows(batch, head, of.first_key + index), v.rows(batch, head, of.first_key + index));
                let count = keys.count.min(values.count);
                Segment {
                    keys: keys.part(0, count),
                    values: values.part(0, count),
                    key_scale: Scale::One,
                    value_scale: Scale::One,
                    rotated: false,
                }
            }
        }
    }

    /// Refuses to go on once the caller has asked to stop.
    pub fn check_stop(&self) -> Result<()> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) { Err(Error::Aborted) } else { Ok(()) }
    }
}
