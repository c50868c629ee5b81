//! The checked arguments of a call: sizes, sequences and rules, and the keys that a query attends to. The memory that it
//! reads is not included.
//!
//! Keys are counted by index, windows by position. Positions grow with the index, so a rule on positions is a range of
//! indices: the first and last key of a tile decide about the whole tile, and only tiles at an edge are checked key by key.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_core::Tree;
use kvtide_cuda::{AttendRules, AttendSizes};

use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_vec;

/// A number of units that is enough for the threads of any machine.
pub(in crate::attention) const UNITS: usize = 64;

/// The query rows of a unit if there are few, unless a single query has more.
pub(in crate::attention) const ROWS: usize = 64;

/// The query rows of a unit if there are many. The more, the less often keys and values are copied into panels; limited so
/// that they stay in the second-level cache with their tile.
const ROWS_MAX: usize = 256;

/// The axes of `[batch, heads, tokens, dim]` or `[tokens, heads, dim]`.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Axes {
    pub tokens: usize,
    pub heads: usize,
    pub rank: usize,
}

impl Axes {
    pub const BATCHED: Axes = Axes { tokens: 2, heads: 1, rank: 4 };
    pub const RAGGED: Axes = Axes { tokens: 0, heads: 1, rank: 3 };

    /// Their names.
    pub fn names(self) -> &'static str {
        if self.are_ragged() { "[tokens, heads, headDim]" } else { "[batch, heads, n, headDim]" }
    }

    /// True for `[tokens, heads, dim]`.
    pub fn are_ragged(self) -> bool {
        self.rank == Axes::RAGGED.rank
    }
}

/// The checked arguments of one call.
pub(in crate::attention) struct Asked<'a> {
    pub sizes: AttendSizes,
    pub rules: AttendRules<'a>,
    pub sequences: Vec<CallSequence>,
    /// One tree for all sequences, or one for each; `None` for a sequence whose tokens form a chain.
    pub trees: Vec<Option<Family>>,
    pub mask: Option<Mask<'a>>,
    pub positions: Option<Vec<i64>>,
    pub stop: Option<&'a AtomicBool>,
}

/// One sequence, or one row of the batch.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct CallSequence {
    /// The index of its first query in the list of all queries, and the number of its queries.
    pub first_query: usize,
    pub queries: usize,
    /// The index of its first key, if all keys are in one list.
    pub first_key: usize,
    pub keys: KeyPositions,
    /// The first position that is not padding.
    pub start: i64,
}

/// An additive mask and its strides, 0 for a broadcast axis.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Mask<'a> {
    pub bytes: &'a [u8],
    /// The distances in bytes along batch, query heads, queries and keys.
    pub strides: [usize; 4],
}

impl Mask<'_> {
    /// The number that is added to one score.
    pub fn at(&self, batch: usize, head: usize, query: usize, key: usize) -> f32 {
        let index = [batch, head, query, key];
        let at: usize = index.iter().zip(self.strides).map(|(index, stride)| index * stride).sum();
        f32::from_ne_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }
}

impl Asked<'_> {
    /// The number of queries of all sequences.
    pub fn queries(&self) -> usize {
        self.sequences.iter().map(|of| of.queries).sum()
    }

    /// The number of multiplications for all products of queries and keys.
    pub fn products(&self) -> usize {
        let rows = |of: &CallSequence| of.queries.saturating_mul(of.keys.len());
        let rows = self.sequences.iter().map(rows).fold(0usize, usize::saturating_add);
        rows.saturating_mul(self.sizes.query_heads * self.sizes.dim)
    }

    /// The axes of queries, keys and values.
    pub fn axes(&self) -> Axes {
        if self.sizes.is_ragged { Axes::RAGGED } else { Axes::BATCHED }
    }

    /// The batch row of a sequence.
    pub fn batch(&self, sequence: usize) -> usize {
        if self.sizes.is_ragged { 0 } else { sequence }
    }

    /// The number of queries in a unit. With many rows, as many as leave enough units for the threads of most machines.
    pub fn queries_max(&self) -> usize {
        let rows = self.queries().saturating_mul(self.sizes.query_heads) / (UNITS / 2);
        (rows.clamp(ROWS, ROWS_MAX) / self.sizes.group()).max(1)
    }

    /// The slope of a query head, if there are slopes.
    pub fn slope(&self, head: usize) -> Option<f32> {
        self.rules.alibi_slopes.map(|slopes| slopes[head])
    }

    /// The keys that queries of a sequence attend to.
    pub fn visible(&self, sequence: usize) -> Visible<'_> {
        let CallSequence { keys, start, .. } = self.sequences[sequence];
        let (tree, first_node) = (self.tree(sequence), self.first_node(sequence));
        Visible { rules: &self.rules, keys, start, tree, first_node }
    }

    /// The draft tree at the end of a sequence.
    pub fn tree(&self, sequence: usize) -> Option<&Family> {
        self.trees.get(if self.trees.len() == 1 { 0 } else { sequence })?.as_ref()
    }

    /// The node of a sequence's first query; below 0 if that query is before the tree.
    pub fn first_node(&self, sequence: usize) -> i64 {
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

    /// The index of the page of a position of a sequence, in pages of `size` keys; after the last page if the position has
    /// no key.
    pub fn page_of(&self, sequence: usize, position: i64, size: usize) -> usize {
        self.sequences[sequence].keys.index_of(position) / size
    }

    /// Fails once the caller's stop flag is set.
    pub fn check_stop(&self) -> Result<()> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) { Err(Error::Aborted) } else { Ok(()) }
    }
}

/// The positions of a sequence's keys, in one or two runs.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct KeyPositions {
    /// The first position and the number of keys of each run.
    runs: [(i64, usize); 2],
}

impl KeyPositions {
    pub fn new(runs: [(i64, usize); 2]) -> Self {
        KeyPositions { runs }
    }

    /// Keys at positions 0, 1, 2 and so on.
    pub fn from_zero(count: usize) -> Self {
        KeyPositions { runs: [(0, count), (count as i64, 0)] }
    }

    /// The first position and the number of keys of each run.
    pub fn runs(&self) -> [(i64, usize); 2] {
        self.runs
    }

    /// The positions of the first `count` keys.
    pub fn first(&self, count: usize) -> Self {
        let [(first, all), (second, more)] = self.runs;
        let kept = all.min(count);
        KeyPositions { runs: [(first, kept), (second, more.min(count - kept))] }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.runs[0].1 + self.runs[1].1
    }

    /// The position after the last key, and after dropped positions at the end: a second run without keys says where the
    /// next key goes.
    pub fn end(&self) -> i64 {
        let [(first, count), (second, more)] = self.runs;
        (first + count as i64).max(second + more as i64)
    }

    /// The position of the key at this index.
    pub fn at(&self, index: usize) -> i64 {
        let [(first, count), (second, _)] = self.runs;
        if index < count { first + index as i64 } else { second + (index - count) as i64 }
    }

    /// The index of the first key at `position` or after it.
    pub fn index_of(&self, position: i64) -> usize {
        let mut index = 0;
        for (first, count) in self.runs {
            let within = position.saturating_sub(first).clamp(0, count as i64) as usize;
            index += within;
            if within < count {
                break;
            }
        }
        index
    }
}

/// The keys that the queries of one sequence attend to.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Visible<'a> {
    pub rules: &'a AttendRules<'a>,
    pub keys: KeyPositions,
    /// The first position that is not padding.
    pub start: i64,
    /// The tree of the last keys.
    pub tree: Option<&'a Family>,
    /// The node of the first query; below 0 if that query is before the tree.
    pub first_node: i64,
}

impl Visible<'_> {
    /// The ranges of keys that some query at positions `lowest` to `highest` attends to: the sinks, and the rest.
    pub fn ranges(&self, lowest: i64, highest: i64) -> [Range<usize>; 2] {
        let keys = &self.keys;
        let end = if self.rules.is_causal && self.tree.is_none() { keys.index_of(highest + 1) } else { keys.len() };
        let nodes = self.tree.map_or(0, Family::len);
        let tree = keys.len() - nodes;
        // If the second run begins within the tree, nodes of the first run have higher positions than their slots.
        let is_divided = (1..nodes).contains(&keys.runs()[1].1);
        let start = keys.index_of(self.start).min(if is_divided { tree } else { usize::MAX });
        let behind = self.rules.window.map_or(start, |window| keys.index_of(lowest + 1 - window).max(start)).min(end);
        // A node's position may be lower than its slot's, so a node in a slot after the sinks may itself count as a sink.
        let has_sink_nodes = keys.end() - (nodes as i64) < self.rules.sinks;
        let behind = if is_divided || has_sink_nodes { behind.min(tree) } else { behind };
        let sinks = if self.rules.window.is_some() { keys.index_of(self.rules.sinks).min(behind) } else { start };
        [start.min(sinks)..sinks, behind..end.max(behind)]
    }

    /// True if every query at positions `lowest` to `highest` attends to all these keys.
    pub fn shows_all(&self, tile: &Range<usize>, lowest: i64, highest: i64) -> bool {
        let (first, last) = (self.keys.at(tile.start), self.keys.at(tile.end - 1));
        let in_past = self.tree.is_none_or(|tree| tile.end + tree.len() <= self.keys.len());
        in_past
            && (!self.rules.is_causal || last <= lowest)
            && self.rules.window.is_none_or(|window| first > highest - window || last < self.rules.sinks)
            && first >= self.start
            && lowest >= self.start
    }

    /// The tree and the node that a key is, if it is one.
    fn drafted(&self, index: usize) -> Option<(&Family, usize)> {
        let tree = self.tree?;
        Some((tree, (index + tree.len()).checked_sub(self.keys.len())?))
    }

    /// The position of a key: a node's follows from its depth.
    pub fn position(&self, index: usize) -> i64 {
        match self.drafted(index) {
            Some((tree, node)) => self.keys.end() - tree.len() as i64 + tree.depth(node),
            None => self.keys.at(index),
        }
    }

    /// The positions of a tile's keys, counted from that of the first one.
    pub fn offsets<const TILE: usize>(&self, tile: &Range<usize>) -> [f32; TILE] {
        let mut offsets = [0.0; TILE];
        for (offset, key) in offsets.iter_mut().zip(tile.clone()) {
            *offset = (self.position(key) - self.position(tile.start)) as f32;
        }
        offsets
    }

    /// The number that a query at this position adds to the score of a key, for a head with this slope: 32-bit floats hold
    /// distances below 2^24 exactly.
    pub fn bias(&self, slope: f32, query: i64, index: usize) -> f32 {
        slope * (self.position(index) - query) as f32
    }

    /// True if a query, given by its position and its index among the queries, attends to a key.
    pub fn shows(&self, query: i64, place: usize, index: usize) -> bool {
        let node = usize::try_from(self.first_node + place as i64).ok();
        let (key, drafted) = (self.position(index), self.drafted(index));
        if drafted.is_some_and(|(tree, other)| !node.is_some_and(|node| tree.sees(node, other))) {
            return false;
        }
        (drafted.is_some() || !self.rules.is_causal || key <= query)
            && self.rules.window.is_none_or(|window| query - key < window || key < self.rules.sinks)
            && key >= self.start
            && query >= self.start
    }
}

/// The ancestors of each node of a draft tree.
#[derive(Clone, Debug)]
pub(in crate::attention) struct Family {
    depths: Vec<u32>,
    /// For each node, one bit for each node that it attends to.
    seen: Vec<u64>,
    words: usize,
}

impl Family {
    /// The ancestors in a checked tree.
    pub fn new(tree: &Tree) -> Result<Self> {
        let parents = tree.parents();
        let depths = tree.depths().into_iter().map(|depth| depth as u32).collect();
        let words = parents.len().div_ceil(64);
        let count = words * parents.len();
        let mut seen: Vec<u64> = zeroed_vec(count).ok_or_else(|| Budget::process().refusal(8 * count as u64))?;
        for (node, &parent) in parents.iter().enumerate() {
            if let Ok(parent) = usize::try_from(parent) {
                seen.copy_within(parent * words..(parent + 1) * words, node * words);
            }
            seen[node * words + node / 64] |= 1 << (node % 64);
        }
        Ok(Family { depths, seen, words })
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.depths.len()
    }

    /// The depth of a node, counted from the tokens before the draft.
    pub fn depth(&self, node: usize) -> i64 {
        self.depths[node].into()
    }

    /// The depth of each node.
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// For each node, one bit for each node that it attends to, padded to whole words.
    pub fn bits(&self) -> &[u64] {
        &self.seen
    }

    fn sees(&self, node: usize, other: usize) -> bool {
        self.seen[node * self.words + other / 64] >> (other % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible<'a>(rules: &'a AttendRules<'a>, keys: KeyPositions) -> Visible<'a> {
        Visible { rules, keys, start: 0, tree: None, first_node: 0 }
    }

    #[test]
    fn an_index_is_found_in_either_run() {
        let keys = KeyPositions::new([(0, 2), (10, 5)]);
        let found: Vec<_> = [-3, 0, 1, 2, 9, 10, 12, 15, 99].map(|position| keys.index_of(position)).into();
        assert_eq!(found, [0, 0, 1, 2, 2, 2, 4, 7, 7]);
        assert_eq!((keys.at(1), keys.at(2), keys.end()), (1, 10, 15));
        let ends = [[(0, 2), (10, 0)], [(0, 0), (10, 0)], [(4, 3), (4, 0)], [(4, 3), (0, 0)]];
        assert_eq!(ends.map(|runs| KeyPositions::new(runs).end()), [10, 10, 7, 7]);
    }

    #[test]
    fn ranges_hold_what_is_shown_and_whole_tiles_are_shown_whole() {
        for keys in [KeyPositions::from_zero(9), KeyPositions::new([(0, 2), (5, 6)])] {
            for (window, sinks, start) in
                [(None, 0, 0), (Some(3), 0, 0), (Some(3), 2, 0), (Some(9), 1, 0), (None, 0, 6)]
            {
                let rules = AttendRules { window, sinks, ..AttendRules::causal(1.0) };
                let visible = Visible { start, ..visible(&rules, keys) };
                for (lowest, highest) in (0..13).flat_map(|low| (low..13).map(move |high| (low, high))) {
                    let ranges = visible.ranges(lowest, highest);
                    let shown = |index| (lowest..=highest).any(|query| visible.shows(query, 0, index));
                    for index in 0..keys.len() {
                        let inside = ranges.iter().any(|range| range.contains(&index));
                        assert!(inside || !shown(index), "{visible:?} {lowest}..={highest} {index} {ranges:?}");
                    }
                    for tile in (0..keys.len()).flat_map(|from| (from + 1..=keys.len()).map(move |to| from..to)) {
                        let whole =
                            tile.clone().all(|key| (lowest..=highest).all(|query| visible.shows(query, 0, key)));
                        assert!(whole || !visible.shows_all(&tile, lowest, highest), "{visible:?} {tile:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn ranges_hold_the_nodes_of_a_divided_tree() {
        let family = Family::new(&Tree::new(&[-1, 0, 1, 1, 3, 4]).unwrap()).unwrap();
        let positions = family.depths.clone();
        for (window, sinks, start) in [(None, 0, 6), (Some(2), 0, 0), (Some(2), 0, 14), (Some(3), 3, 0)] {
            let rules = AttendRules { window, sinks, ..AttendRules::causal(1.0) };
            let keys = KeyPositions::new([(0, 6), (17, 3)]);
            let visible = Visible { start, tree: Some(&family), ..visible(&rules, keys) };
            for (node, depth) in positions.iter().enumerate() {
                let query = keys.end() - 6 + i64::from(*depth);
                let ranges = visible.ranges(query, query);
                for index in (0..keys.len()).filter(|&index| visible.shows(query, node, index)) {
                    assert!(ranges.iter().any(|range| range.contains(&index)), "{visible:?} {node} {index} {ranges:?}");
                }
            }
        }
    }

    #[test]
    fn a_node_sees_its_ancestors_at_their_depth() {
        let family = Family::new(&Tree::new(&[-1, 0, 0, 1]).unwrap()).unwrap();
        let rules = AttendRules { window: Some(2), ..AttendRules::causal(1.0) };
        let tree = Visible { tree: Some(&family), ..visible(&rules, KeyPositions::from_zero(7)) };
        let shown = |query, node| (0..7).filter(|&index| tree.shows(query, node, index)).collect::<Vec<_>>();
        assert_eq!(shown(3, 0), [2, 3]);
        assert_eq!(shown(4, 2), [3, 5]);
        assert_eq!(shown(5, 3), [4, 6]);
        let last = Visible { first_node: 3, ..tree };
        assert_eq!((0..7).filter(|&index| last.shows(5, 0, index)).collect::<Vec<_>>(), [4, 6]);
        let longer = Visible { first_node: -1, ..tree };
        assert_eq!((0..7).filter(|&index| longer.shows(2, 0, index)).collect::<Vec<_>>(), [1, 2]);
    }
}
