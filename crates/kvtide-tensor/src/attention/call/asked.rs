//! What a call asks for, checked: sizes, sequences and rules, without the memory that it reads.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_cuda::{AttendRules, AttendSizes};

use super::axes::Axes;
use super::visible::{Family, KeyPositions, Visible};
use crate::base::error::{Error, Result};

/// Query rows of a unit, unless one query alone has more: as many as stay in the second cache with their tile.
pub(in crate::attention) const ROWS: usize = 64;

/// What one call asks for.
pub(in crate::attention) struct Asked<'a> {
    pub sizes: AttendSizes,
    pub rules: AttendRules<'a>,
    pub sequences: Vec<Sequence>,
    /// One for all sequences, or one for each: nothing where its tokens follow each other.
    pub trees: Vec<Option<Family>>,
    pub mask: Option<Mask<'a>>,
    pub positions: Option<Vec<i64>>,
    pub stop: Option<&'a AtomicBool>,
}

/// One sequence, or one row of the batch.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Sequence {
    /// Its first query and how many, in the list of all queries.
    pub first_query: usize,
    pub queries: usize,
    /// Its first key in the list of all keys, where they are in one list.
    pub first_key: usize,
    pub keys: KeyPositions,
    /// The first position that is no padding.
    pub start: i64,
}

/// An additive mask and its strides, 0 where it is broadcast.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Mask<'a> {
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

impl Asked<'_> {
    /// Queries of all sequences.
    pub fn queries(&self) -> usize {
        self.sequences.iter().map(|of| of.queries).sum()
    }

    /// Products of queries and keys, in elements.
    pub fn products(&self) -> usize {
        let rows = |of: &Sequence| of.queries.saturating_mul(of.keys.len());
        let rows = self.sequences.iter().map(rows).fold(0usize, usize::saturating_add);
        rows.saturating_mul(self.sizes.query_heads * self.sizes.dim)
    }

    /// The axes of queries, keys and values.
    pub fn axes(&self) -> Axes {
        if self.sizes.is_ragged { Axes::RAGGED } else { Axes::BATCHED }
    }

    /// The row of the batch in which a sequence lies.
    pub fn batch(&self, sequence: usize) -> usize {
        if self.sizes.is_ragged { 0 } else { sequence }
    }

    /// Queries of a unit.
    pub fn queries_max(&self) -> usize {
        (ROWS / self.sizes.group()).max(1)
    }

    /// What queries of a sequence see.
    pub fn visible(&self, sequence: usize) -> Visible<'_> {
        let Sequence { keys, start, .. } = self.sequences[sequence];
        let (tree, first_node) = (self.tree(sequence), self.first_node(sequence));
        Visible { rules: &self.rules, keys, start, tree, first_node }
    }

    /// The draft tree at the end of a sequence.
    pub fn tree(&self, sequence: usize) -> Option<&Family> {
        self.trees.get(if self.trees.len() == 1 { 0 } else { sequence })?.as_ref()
    }

    /// The node that a sequence's first query is; below 0 where that comes before the tree.
    fn first_node(&self, sequence: usize) -> i64 {
        self.tree(sequence).map_or(0, |tree| tree.len() as i64) - self.sequences[sequence].queries as i64
    }

    /// The position of a query of a sequence.
    pub fn position(&self, sequence: usize, query: usize) -> i64 {
        let of = &self.sequences[sequence];
        if let Some(positions) = &self.positions {
            let shared = positions.len() == of.queries;
            return positions[if shared { query } else { of.first_query + query }];
        }
        let drafted = self.tree(sequence).and_then(|tree| {
            let node = usize::try_from(self.first_node(sequence) + query as i64).ok()?;
            Some(of.keys.end() - tree.len() as i64 + tree.depth(node))
        });
        drafted.unwrap_or(of.keys.end() - of.queries as i64 + query as i64)
    }

    /// Refuses to go on once the caller has asked to stop.
    pub fn check_stop(&self) -> Result<()> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) { Err(Error::Aborted) } else { Ok(()) }
    }
}
