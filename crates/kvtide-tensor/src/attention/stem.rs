//! Stems: a prefix that several sequences share is read once for all of them.
//!
//! ```text
//! sequence 0   [ shared pages ............ ][ own ]
//! sequence 1   [ shared pages ............ ][ own ]      one unit: the queries of all three over the shared pages
//! sequence 2   [ shared pages ............ ][ own ]      three units: each sequence's queries over its own pages
//! ```
//!
//! A unit is work of the host, or blocks of a GPU.
//!
//! Stems are found by comparing block tables. Every query of a member attends to its whole stem, so no rule has to be
//! checked there. The units' results are merged like shares of the keys (`split.rs`). Stems do not branch: if some members
//! have a longer prefix in common, only the prefix of all members is read once. O(pages) for calls with several sequences,
//! else O(1).

use std::ops::Range;

use crate::attention::call::asked::Asked;
use crate::kernels::tile::padded;
use crate::paged::PageRows;

/// The fewest keys for a unit of their own: below, merging costs as much as the saved reads.
const KEYS_MIN: usize = 256;

/// The most floats for the results of stems: 4 MiB. With more rows, each key is already read for many of them.
const FLOATS_MAX: usize = 1 << 20;

/// Sequences with a common prefix.
#[derive(Debug)]
pub(in crate::attention) struct Stem {
    /// The sequence whose pages are read.
    pub sequence: usize,
    /// The number of keys that all of them share.
    pub keys: usize,
    /// The queries of all members: the sequence of each, and its index there.
    pub queries: Vec<(usize, usize)>,
}

/// A sequence's place in a stem.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Member {
    pub stem: usize,
    /// The index of its first query among the queries of the stem.
    pub first_query: usize,
}

/// The stems of a call, and for each sequence its place in one, if any.
#[derive(Debug, Default)]
pub(in crate::attention) struct Stems {
    pub all: Vec<Stem>,
    members: Vec<Option<Member>>,
}

impl Stems {
    /// Finds the stems of sequences of pages; each has a multiple of `grain` keys.
    pub fn new(asked: &Asked<'_>, pages: &PageRows<'_>, grain: usize) -> Self {
        let mut stems = Stems::default();
        if asked.sequences.len() < 2 || asked.mask.is_some() {
            return stems;
        }
        let start = |sequence: usize| pages.page(sequence, 0).map(|page| (page.block, page.staged, sequence));
        let is_long = |&sequence: &usize| {
            asked.sequences[sequence].keys.len() > KEYS_MIN && asked.sequences[sequence].queries > 0
        };
        let mut starts: Vec<_> = (0..asked.sequences.len()).filter(is_long).filter_map(start).collect();
        starts.sort_unstable();
        for alike in starts.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)).filter(|alike| alike.len() > 1)
        {
            stems.add(asked, pages, grain, alike.iter().map(|start| start.2).collect());
        }
        stems
    }

    /// A sequence's place in a stem; `None` if it is in none.
    pub fn member(&self, sequence: usize) -> Option<Member> {
        *self.members.get(sequence)?
    }

    /// The number of keys of a sequence that its stem reads.
    pub fn shared(&self, sequence: usize) -> usize {
        self.member(sequence).map_or(0, |member| self.all[member.stem].keys)
    }

    /// Makes a stem of those of these sequences that can share one; their first page is the same.
    fn add(&mut self, asked: &Asked<'_>, pages: &PageRows<'_>, grain: usize, mut sequences: Vec<usize>) {
        let first = sequences[0];
        let common = |&other: &usize| common_keys(pages, first, other);
        let keys = sequences[1..].iter().map(common).min().unwrap_or(0) / grain * grain;
        if keys < KEYS_MIN {
            return;
        }
        // Slopes are of the positions of the first one's keys.
        let ends = |sequence: usize| [0, keys - 1].map(|key| asked.sequences[sequence].keys.at(key));
        let is_alike = |sequence: usize| asked.rules.alibi_slopes.is_none() || ends(sequence) == ends(first);
        sequences.retain(|&sequence| sees_all(asked, sequence, 0..keys) && is_alike(sequence));
        let rows = sequences.iter().map(|&sequence| asked.sequences[sequence].queries).sum::<usize>()
            * asked.sizes.query_heads;
        if sequences.len() < 2 || rows * (padded(asked.sizes.value_dim) + 2) > FLOATS_MAX {
            return;
        }
        self.members.resize(asked.sequences.len(), None);
        let mut queries = Vec::new();
        for &sequence in &sequences {
            self.members[sequence] = Some(Member { stem: self.all.len(), first_query: queries.len() });
            queries.extend((0..asked.sequences[sequence].queries).map(|query| (sequence, query)));
        }
        self.all.push(Stem { sequence: sequences[0], keys, queries });
    }
}

/// The number of keys in the full pages that two sequences begin with, each of which all queries read in the same form.
fn common_keys(pages: &PageRows<'_>, one: usize, other: usize) -> usize {
    let size = pages.block_size();
    let is_common = |&token: &usize| match (pages.page(one, token), pages.page(other, token)) {
        (Some(a), Some(b)) => {
            (a.block, a.staged) == (b.block, b.staged)
                && [a, b].iter().all(|page| page.tokens as usize == size && !page.is_sealed)
        }
        _ => false,
    };
    (0..).step_by(size).take_while(is_common).count() * size
}

/// True if every query of a sequence attends to all these keys.
fn sees_all(asked: &Asked<'_>, sequence: usize, keys: Range<usize>) -> bool {
    let positions = (0..asked.sequences[sequence].queries).map(|query| asked.position(sequence, query));
    let (lowest, highest) = positions.fold((i64::MAX, i64::MIN), |(low, high), at| (low.min(at), high.max(at)));
    asked.visible(sequence).shows_all(&keys, lowest, highest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::call::Call;
    use crate::attention::call::kv_rows::KvRows;
    use crate::attention::call::options::AttendOptions;
    use crate::base::dtype::DType;
    use crate::paged::{PageGroup, PagedKvCacheOptions};
    use crate::tensor::host::HostTensor;
    use crate::tensor::source::Source;

    /// Writes zeros up to this many tokens.
    fn grow(cache: &mut PageGroup, sequence: u64, from: usize, to: usize) {
        let zeros = vec![0; (to - from) * 8 * 4];
        let rows = || HostTensor::new("k", &zeros, DType::F32, &[1, to - from, 8]).unwrap().into();
        cache.write_tokens(sequence, 0, from as u32, [rows(), rows()]).unwrap();
    }

    /// The stems of a call with one query per sequence: the keys and members of each stem.
    fn found_in(
        cache: &mut PageGroup,
        sequences: &[u64],
        options: &AttendOptions<'_>,
        grain: usize,
    ) -> Vec<(usize, Vec<usize>)> {
        let q = vec![0; sequences.len() * 2 * 8 * 4];
        let q = Source::Host(HostTensor::new("q", &q, DType::F32, &[sequences.len(), 2, 8]).unwrap());
        let pages = cache.pages(0, sequences).unwrap();
        let kv = KvRows::Pages(&pages);
        let call = Call::new(&q, &kv, options).unwrap();
        let stems = Stems::new(&call.asked, &pages, grain);
        stems.all.iter().map(|of| (of.keys, of.queries.iter().map(|query| query.0).collect())).collect()
    }

    fn found(cache: &mut PageGroup, sequences: &[u64], options: &AttendOptions<'_>) -> Vec<(usize, Vec<usize>)> {
        found_in(cache, sequences, options, 1)
    }

    #[test]
    fn sequences_whose_first_pages_are_the_same_are_one_stem() {
        let options = PagedKvCacheOptions { capacity: 200, block_size: 16, head_dim: 8, ..Default::default() };
        let mut cache = PageGroup::new(options).unwrap();
        let one = cache.create_sequence(Default::default()).unwrap();
        grow(&mut cache, one, 0, 600);
        let fork = |cache: &mut PageGroup, of: u64, keep: usize, to: usize| {
            let fork = cache.fork(of).unwrap();
            cache.truncate(fork, keep as u32).unwrap();
            grow(cache, fork, keep, to);
            fork
        };
        let [long, short] = [500, 330].map(|keep| fork(&mut cache, one, keep, 601));
        let other = cache.create_sequence(Default::default()).unwrap();
        grow(&mut cache, other, 0, 600);
        let kin = fork(&mut cache, other, 300, 310);
        let plain = AttendOptions::default();
        assert_eq!(found(&mut cache, &[one, long], &plain), [(496, vec![0, 1])]);
        // Only whole pages that all of them share, wherever they are in the call.
        assert_eq!(
            found(&mut cache, &[long, other, short, one, kin], &plain),
            [(320, vec![0, 2, 3]), (288, vec![1, 4])]
        );
        assert_eq!(found_in(&mut cache, &[one, long, short], &plain, 64), [(320, vec![0, 1, 2])]);
        assert_eq!(found_in(&mut cache, &[one, long], &plain, 64), [(448, vec![0, 1])]);
        assert_eq!(found(&mut cache, &[one, other], &plain), []);
        assert_eq!(found(&mut cache, &[one], &plain), []);
        // The same sequence twice shares the keys that both attend to; the last token is the query itself.
        assert_eq!(found(&mut cache, &[one, one], &plain), [(592, vec![0, 1])]);
        // Not every query attends to the start.
        let window = |window| AttendOptions { window: Some(window), ..Default::default() };
        assert_eq!(found(&mut cache, &[one, long], &window(599)), []);
        assert_eq!(found(&mut cache, &[one, long], &window(601)), [(496, vec![0, 1])]);
        let stand = |at: &'static [i32]| AttendOptions { positions: Some(at), ..Default::default() };
        assert_eq!(found(&mut cache, &[one, long, short], &stand(&[599, 100, 600])), [(320, vec![0, 2])]);
    }
}
