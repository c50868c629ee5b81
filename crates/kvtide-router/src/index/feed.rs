//! Applies the events of one worker to the index.
//!
//! A model with several kinds of layers publishes its blocks once per group of layers. Only groups of full attention
//! determine the length of a prefix: a group with a window keeps only its last blocks. Removal events name the group
//! but not its kind, so kinds are learned from `stored` events. O(hashes), plus their cost in the index.

use super::tier::Tier;
use super::worker_id::WorkerId;
use super::worker_index::WorkerIndex;
use crate::error::Result;
use crate::wire::{Batch, BlockHash, Event};

/// Applies the events of one worker to an index.
#[derive(Clone, Debug)]
pub struct WorkerFeed {
    worker: WorkerId,
    /// Groups whose kind is known; true for full attention.
    groups: Vec<(u32, bool)>,
}

/// The most groups that are remembered; a model has a handful.
const GROUPS_MAX: usize = 256;

impl WorkerFeed {
    /// Makes a feed for a worker of an index.
    #[must_use]
    pub fn new(worker: WorkerId) -> Self {
        WorkerFeed { worker, groups: Vec::new() }
    }

    /// The worker.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Applies the events of a batch. Events of other groups, and of memory that is not the worker's own, are ignored.
    pub fn apply(&mut self, index: &mut WorkerIndex, batch: &Batch) -> Result<()> {
        batch.events.iter().try_for_each(|event| self.apply_event(index, event))
    }

    /// Applies one event.
    pub fn apply_event(&mut self, index: &mut WorkerIndex, event: &Event) -> Result<()> {
        match event {
            Event::Stored(stored) => {
                let counts = self.counts(stored.group, stored.spec_kind.as_deref());
                if let (true, Some(tier)) = (counts, Tier::of_medium(stored.medium.as_deref())) {
                    let parent = stored.parent.as_ref().map(BlockHash::key);
                    index.store(self.worker, tier, parent, &keys(&stored.hashes))?;
                }
            }
            Event::Removed(removed) => {
                let counts = self.counts(removed.group, removed.spec_kind.as_deref());
                if let (true, Some(tier)) = (counts, Tier::of_medium(removed.medium.as_deref())) {
                    index.remove(self.worker, tier, &keys(&removed.hashes))?;
                }
            }
            Event::Cleared => index.clear(self.worker)?,
        }
        Ok(())
    }

    /// Clears the worker after a loss of events: it has no blocks until new events report them.
    pub fn lost(&mut self, index: &mut WorkerIndex) -> Result<()> {
        self.groups.clear();
        index.clear(self.worker)
    }

    fn counts(&mut self, group: Option<u32>, kind: Option<&str>) -> bool {
        let known = self.groups.iter().position(|&(known, _)| Some(known) == group);
        if let Some(kind) = kind {
            let is_full = matches!(kind, "full_attention" | "mla_attention" | "sink_full_attention");
            match (known, group) {
                (Some(known), _) => self.groups[known].1 = is_full,
                (None, Some(group)) if self.groups.len() < GROUPS_MAX => self.groups.push((group, is_full)),
                _ => {}
            }
            return is_full;
        }
        // If no kind is known for any group, only the first group counts.
        known.map_or(group.unwrap_or(0) == 0, |known| self.groups[known].1)
    }
}

fn keys(hashes: &[BlockHash]) -> Vec<u64> {
    hashes.iter().map(BlockHash::key).collect()
}
