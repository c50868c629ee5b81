//! Who has how much of a prompt.
//!
//! ```text
//! keys       1  2  3  4  5  6  7  8  9          of the prompt's blocks
//! complete   A  A  A  B  B  C  -  -  -          numbers of sets, each a part of the one before it
//!                     ^     ^                   lengths: 6 for C, 5 for B without C, 3 for A without B
//! ```
//!
//! A search looks at eight places of what is left, all at once, and goes on between two of them; first among the milestones, every 64th
//! block and every eighth, which have tables of their own, then among the seven behind the last. O(log blocks) for the longest prefix, and
//! so much again for each other length.

use super::key_table::{AT_ONCE, KeyTable};
use super::node_tree::{MILESTONE, MILESTONES};
use super::tier::Tier;
use super::worker_index::{WorkerId, WorkerIndex};
use super::worker_sets::{SetId, Workers};

/// The longest prefix that somebody has all of.
#[derive(Clone, Debug)]
pub struct HeldPrefix<'a> {
    /// Its length in blocks.
    pub blocks: usize,
    /// Those who have all of it; nobody where it is empty.
    pub workers: Workers<'a>,
}

/// What a worker has of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPrefix {
    /// The worker.
    pub worker: WorkerId,
    /// How many blocks from the first on.
    pub blocks: usize,
}

/// Where the blocks of a prefix lie at one worker; each is counted once, in its fastest tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// On the accelerator.
    pub gpu: usize,
    /// In the host's memory.
    pub cpu: usize,
    /// On a disk.
    pub disk: usize,
}

/// Places of a prompt where the set of those who have everything changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) blocks: usize,
    pub(super) complete: SetId,
}

impl WorkerIndex {
    /// The longest prefix of a prompt, given the keys of its blocks. O(log keys).
    #[must_use]
    pub fn find(&self, keys: &[u64]) -> HeldPrefix<'_> {
        let Step { blocks, complete } = self.longest(keys);
        HeldPrefix { blocks, workers: self.tree.sets.members(complete) }
    }

    /// What each worker has that has anything, the longest first; takes the place of what was in the list. O(log keys) for each length
    /// that there is, and O(workers).
    pub fn lengths(&self, keys: &[u64], lengths: &mut Vec<WorkerPrefix>) {
        lengths.clear();
        let mut before = SetId::EMPTY;
        let mut step = self.longest(keys);
        while step.blocks > 0 {
            lengths
                .extend(self.joined(before, step.complete).map(|worker| WorkerPrefix { worker, blocks: step.blocks }));
            before = step.complete;
            step = self.shorter(keys, step);
        }
    }

    /// In which tiers a worker has the blocks of a prefix, up to the first that it does not have. O(keys).
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

    /// The longest prefix below one that others have as well.
    pub(super) fn shorter(&self, keys: &[u64], than: Step) -> Step {
        self.last(keys, than.blocks, than.complete)
    }

    /// Whether nobody but the members of a step has a prefix of this length at least.
    pub(super) fn is_last(&self, keys: &[u64], step: Step, length: usize) -> bool {
        length >= step.blocks || self.tree.table.complete_of([keys[length - 1]])[0] == step.complete
    }

    /// Members of a set that are not in a part of it.
    pub(super) fn joined(&self, part: SetId, whole: SetId) -> impl Iterator<Item = WorkerId> {
        self.tree.sets.members(whole).filter(move |&worker| !self.tree.sets.contains(part, worker))
    }

    /// The longest prefix below `high` blocks with another set than that one, which all from some length on have up to `high`.
    #[inline]
    fn last(&self, keys: &[u64], high: usize, than: SetId) -> Step {
        let none = Step { blocks: 0, complete: SetId::EMPTY };
        let mut low = none;
        // Milestones first, the rarest of them before the others: their tables are small ones.
        for (table, unit) in self.tree.milestones.iter().zip(MILESTONES) {
            let scaled = Step { blocks: low.blocks / unit, ..low };
            let above = if low.blocks > 0 { low.blocks + unit * MILESTONE } else { high };
            let found = last_in(table, keys, unit, scaled, high.min(above).div_ceil(unit), than);
            low = Step { blocks: found.blocks * unit, ..found };
        }
        last_in(&self.tree.table, keys, 1, low, high.min(low.blocks + MILESTONE), than)
    }
}

/// The same among the prefixes of some length, in units of that length, that are longer than `low` and shorter than `high`.
#[inline]
fn last_in(table: &KeyTable, keys: &[u64], unit: usize, mut low: Step, mut high: usize, than: SetId) -> Step {
    while high - low.blocks > 1 {
        let between = high - low.blocks - 1;
        // Each of the places where few are left, and otherwise so that nine parts are alike; those behind the last are the last again.
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
