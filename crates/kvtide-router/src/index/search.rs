//! Finds how much of a prompt each worker has.
//!
//! ```text
//! keys       1  2  3  4  5  6  7  8  9          of the prompt's blocks
//! complete   A  A  A  B  B  C  -  -  -          set ids, each set a subset of the one before it
//!                     ^     ^                   lengths: 6 for C, 5 for B without C, 3 for A without B
//! ```
//!
//! A search reads eight positions of the remaining range at once and continues between two of them: first among the
//! milestones (every 64th block, then every eighth), which have their own tables, then among the seven blocks after the
//! last milestone. O(log blocks) for the longest prefix, and the same again for each further length. Workers that keep
//! states are searched by resumable.

use super::key_table::{AT_ONCE, KeyTable};
use super::node_tree::{MILESTONE, MILESTONES};
use super::resumable::Lengths;
use super::tier::Tier;
use super::worker_id::WorkerId;
use super::worker_index::WorkerIndex;
use super::worker_sets::{SetId, Workers};

/// The longest prefix from which some worker can continue.
#[derive(Clone, Debug)]
pub struct HeldPrefix<'a> {
    /// Its length in blocks.
    pub blocks: usize,
    /// The workers that have all of it; none if it is empty.
    pub workers: Workers<'a>,
}

/// The length of a worker's prefix of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPrefix {
    /// The worker.
    pub worker: WorkerId,
    /// Number of leading blocks that it has; up to a state, for a worker that keeps states.
    pub blocks: usize,
}

/// The tiers of the blocks of a prefix on one worker. Each block is counted once, in its fastest tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// On the accelerator.
    pub gpu: usize,
    /// In the host's memory.
    pub cpu: usize,
    /// On a disk.
    pub disk: usize,
}

/// A position in a prompt where the set of complete workers changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) blocks: usize,
    pub(super) complete: SetId,
}

impl WorkerIndex {
    /// The longest prefix of a prompt, given the keys of its blocks. O(log keys); O(keys) if some workers keep states.
    #[must_use]
    pub fn find(&self, keys: &[u64]) -> HeldPrefix<'_> {
        if self.has_states() {
            return match Lengths::new(self, keys).next(0) {
                Some(group) => HeldPrefix { blocks: group.blocks, workers: group.into_workers() },
                None => HeldPrefix { blocks: 0, workers: Workers::of_words(&[]) },
            };
        }
        let Step { blocks, complete } = self.longest(keys);
        HeldPrefix { blocks, workers: self.tree.sets.members(complete) }
    }

    /// Lists the prefix length of each worker that has a hit, the longest first. Replaces the content of `lengths`.
    /// O(log keys) per distinct length, and O(workers); also O(keys) if some workers keep states.
    pub fn lengths(&self, keys: &[u64], lengths: &mut Vec<WorkerPrefix>) {
        lengths.clear();
        if self.has_states() {
            let mut found = Lengths::new(self, keys);
            while let Some(group) = found.next(0) {
                lengths.extend(group.workers().map(|worker| WorkerPrefix { worker, blocks: group.blocks }));
            }
            return;
        }
        let mut before = SetId::EMPTY;
        let mut step = self.longest(keys);
        while step.blocks > 0 {
            lengths
                .extend(self.joined(before, step.complete).map(|worker| WorkerPrefix { worker, blocks: step.blocks }));
            before = step.complete;
            step = self.shorter(keys, step);
        }
    }

    /// Counts the tiers of a worker's blocks of a prefix, up to the first block that it does not have. O(keys).
    #[must_use]
    pub fn tiers(&self, keys: &[u64], worker: WorkerId) -> TierCounts {
        let mut counts = TierCounts::default();
        for tier in keys.iter().map_while(|&key| self.tree.tier(key, worker)) {
            match tier {
                Tier::Gpu => counts.gpu += 1,
                Tier::Cpu => counts.cpu += 1,
                Tier::Disk => counts.disk += 1,
            }
        }
        counts
    }

    #[inline]
    pub(super) fn longest(&self, keys: &[u64]) -> Step {
        self.last(keys, keys.len() + 1, SetId::EMPTY)
    }

    /// The longest shorter prefix that other workers have as well.
    pub(super) fn shorter(&self, keys: &[u64], than: Step) -> Step {
        self.last(keys, than.blocks, than.complete)
    }

    /// True if only the members of the step have a prefix of at least this length.
    pub(super) fn is_last(&self, keys: &[u64], step: Step, length: usize) -> bool {
        length >= step.blocks || self.tree.table.complete_of([keys[length - 1]])[0] == step.complete
    }

    /// The members of a set that are not in its subset `part`.
    pub(super) fn joined(&self, part: SetId, whole: SetId) -> impl Iterator<Item = WorkerId> {
        self.tree.sets.members(whole).filter(move |&worker| !self.tree.sets.contains(part, worker))
    }

    /// The longest prefix shorter than `high` blocks whose set differs from `than`. From some length up to `high`, all
    /// prefixes have the set `than`.
    #[inline]
    fn last(&self, keys: &[u64], high: usize, than: SetId) -> Step {
        let none = Step { blocks: 0, complete: SetId::EMPTY };
        let mut low = none;
        // Milestones first, starting with the rarest: their tables are small.
        for (table, unit) in self.tree.milestones.iter().zip(MILESTONES) {
            let scaled = Step { blocks: low.blocks / unit, ..low };
            let above = if low.blocks > 0 { low.blocks + unit * MILESTONE } else { high };
            let found = last_in(table, keys, unit, scaled, high.min(above).div_ceil(unit), than);
            low = Step { blocks: found.blocks * unit, ..found };
        }
        last_in(&self.tree.table, keys, 1, low, high.min(low.blocks + MILESTONE), than)
    }
}

/// The same among prefixes whose length is a multiple of `unit`, in units, longer than `low` and shorter than `high`.
#[inline]
fn last_in(table: &KeyTable, keys: &[u64], unit: usize, mut low: Step, mut high: usize, than: SetId) -> Step {
    while high - low.blocks > 1 {
        let between = high - low.blocks - 1;
        // If few positions are left, all of them; otherwise positions that split the range into nine equal parts.
        // Positions past the last repeat the last.
        let places: [usize; AT_ONCE] = std::array::from_fn(|place| {
            let step = if between <= AT_ONCE { place + 1 } else { (place + 1) * (between + 1) / (AT_ONCE + 1) };
            low.blocks + step.min(between)
        });
        let sets = table.complete_of(places.map(|place| keys[place * unit - 1]));
        let same = sets.iter().position(|&set| set == than).unwrap_or(AT_ONCE);
        if let Some(&place) = places.get(same) {
            high = place;
        }
        if same > 0 {
            low = Step { blocks: places[same - 1], complete: sets[same - 1] };
        }
    }
    low
}
