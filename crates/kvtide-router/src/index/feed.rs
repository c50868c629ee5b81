//! What one worker publishes, taken into the index.
//!
//! A model with several kinds of layers publishes its blocks once for each group of layers. Only those of full attention say how long a
//! prefix is: a window keeps its last blocks alone. A removal names the group and not its kind, so that kinds are learned from what is
//! stored. O(hashes) and what they cost in the index.

use super::tier::Tier;
use super::worker_index::{WorkerId, WorkerIndex};
use crate::error::Result;
use crate::wire::{Batch, BlockHash, Event};

/// Takes the events of one worker into an index.
#[derive(Clone, Debug)]
pub struct WorkerFeed {
    worker: WorkerId,
    /// Groups whose kind was said, and whether they are of full attention.
    groups: Vec<(u32, bool)>,
}

/// The most groups that are remembered; those of a model are a handful.
const GROUPS_MAX: usize = 256;

impl WorkerFeed {
    /// The events of a worker of an index.
    #[must_use]
    pub fn new(worker: WorkerId) -> Self {
        WorkerFeed { worker, groups: Vec::new() }
    }

    /// The worker.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Takes in what happened. Events of other groups and of memory that is not the worker's own are passed over.
    pub fn apply(&mut self, index: &mut WorkerIndex, batch: &Batch) -> Result<()> {
        batch.events.iter().try_for_each(|event| self.apply_event(index, event))
    }

    /// Takes in one event.
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

    /// What happened is not known: the worker holds nothing until it says so again.
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
        // Where nothing was said of a group, the first is the one that counts.
        known.map_or(group.unwrap_or(0) == 0, |known| self.groups[known].1)
    }
}

fn keys(hashes: &[BlockHash]) -> Vec<u64> {
    hashes.iter().map(BlockHash::key).collect()
}
