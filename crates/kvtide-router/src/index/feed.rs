//! Applies the events of one worker to the index.
//!
//! A model with several kinds of layers publishes its blocks once per group of layers:
//!
//! ```text
//! tokens   full attention: its blocks determine the length of a prefix
//! states   Mamba and other recurrent layers, `mamba` on the wire: a prefix ends where there is a state
//! other    a group with a window keeps only its last blocks, so its events are ignored
//! ```
//!
//! vLLM names the kind only in `stored` events, so kinds are learned from these. Blocks of one such event need not follow
//! each other in a group of states. An event without hashes announces a group. A worker keeps what its groups keep, also
//! after events were lost. O(hashes), plus their cost in the index.

use super::tier::Tier;
use super::worker_id::WorkerId;
use super::worker_index::WorkerIndex;
use crate::error::Result;
use crate::wire::{Batch, BlockHash, Event};

/// The content of the blocks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Tokens,
    States,
    Other,
}

impl Content {
    fn of_kind(kind: &str) -> Self {
        match kind {
            "full_attention" | "mla_attention" | "sink_full_attention" => Content::Tokens,
            "mamba" => Content::States,
            _ => Content::Other,
        }
    }
}

/// Applies the events of one worker to an index.
#[derive(Clone, Debug)]
pub struct WorkerFeed {
    worker: WorkerId,
    /// Groups whose content is known. Events that name no group form one of their own.
    groups: Vec<(Option<u32>, Content)>,
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
                let content = self.learn(index, stored.group, stored.spec_kind.as_deref())?;
                let Some(tier) = Tier::of_medium(stored.medium.as_deref()) else { return Ok(()) };
                match content {
                    Content::Tokens => {
                        let parent = stored.parent.as_ref().map(BlockHash::key);
                        index.store(self.worker, tier, parent, &keys(&stored.hashes))?;
                    }
                    Content::States => index.store_states(self.worker, tier, &keys(&stored.hashes))?,
                    Content::Other => {}
                }
            }
            Event::Removed(removed) => {
                let content = match (self.known(removed.group), removed.spec_kind.as_deref()) {
                    (Some(known), _) => known,
                    (None, Some(kind)) => Content::of_kind(kind),
                    (None, None) => unknown(removed.group),
                };
                let Some(tier) = Tier::of_medium(removed.medium.as_deref()) else { return Ok(()) };
                match content {
                    Content::Tokens => index.remove(self.worker, tier, &keys(&removed.hashes))?,
                    Content::States => index.remove_states(self.worker, tier, &keys(&removed.hashes))?,
                    Content::Other => {}
                }
            }
            Event::Cleared => index.clear(self.worker)?,
        }
        Ok(())
    }

    /// Clears the worker after a loss of events: it has no blocks until new events report them.
    pub fn lost(&mut self, index: &mut WorkerIndex) -> Result<()> {
        index.clear(self.worker)
    }

    fn known(&self, group: Option<u32>) -> Option<Content> {
        self.groups.iter().find(|&&(known, _)| known == group).map(|&(_, content)| content)
    }

    /// The content of a group whose blocks were stored, which is remembered.
    fn learn(&mut self, index: &mut WorkerIndex, group: Option<u32>, kind: Option<&str>) -> Result<Content> {
        let known = self.known(group);
        let content = kind.map(Content::of_kind).or(known).unwrap_or_else(|| unknown(group));
        if known != Some(content) {
            self.groups.retain(|&(known, _)| known != group);
            if self.groups.len() < GROUPS_MAX {
                self.groups.push((group, content));
            }
            let has = |content| self.groups.iter().any(|&(_, of)| of == content);
            let states = has(Content::States);
            index.keep(self.worker, has(Content::Tokens) || !states, states)?;
        }
        Ok(content)
    }
}

/// The content of a group of unknown kind: only the first group counts.
fn unknown(group: Option<u32>) -> Content {
    if group.unwrap_or(0) == 0 { Content::Tokens } else { Content::Other }
}

fn keys(hashes: &[BlockHash]) -> Vec<u64> {
    hashes.iter().map(BlockHash::key).collect()
}
