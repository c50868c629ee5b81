//! The index: workers, the blocks that each holds, and their loads.
//!
//! A key is 64 bits of the hash of a prefix: a block and all blocks before it. Two prefixes share a key once in 2^64
//! pairs. The cost of such a collision is one prompt on the wrong worker, where it is computed. The index never
//! guarantees that a block is there.
//!
//! Events may arrive in any order: a block whose parent is unknown counts once the parent arrives. If a worker sends
//! wrong events, only the results for that worker are wrong.
//!
//! A worker whose model keeps states (short convolutions, Mamba, gated delta nets) continues a prompt only at a block at
//! whose end it has a state: the blocks behind the last such block do not count.

use kvtide_core::Error as CoreError;

use super::node_tree::{NodeTree, ROOT};
use super::tier::Tier;
use super::worker_id::{WORKERS_MAX, WorkerId};
use super::worker_sets::Workers;
use crate::error::Result;

/// The size of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexUsage {
    /// Number of workers.
    pub workers: usize,
    /// Number of distinct blocks, including those only mentioned as parents.
    pub blocks: usize,
    /// Number of distinct blocks at whose end some worker keeps a state.
    pub states: usize,
    /// Number of distinct sets of workers.
    pub sets: usize,
    /// Bytes of memory, without the index's own struct.
    pub bytes: usize,
}

/// The blocks of each worker.
#[derive(Debug)]
pub struct WorkerIndex {
    pub(super) tree: NodeTree,
    /// The load of each worker; `None` for a free number.
    pub(super) loads: Vec<Option<f64>>,
    /// The existing workers, as the words of a set.
    pub(super) present: Vec<u64>,
    /// The lowest load of all workers.
    pub(super) least: Option<f64>,
    /// The workers that keep states, and those that keep blocks of tokens, as the words of sets.
    pub(super) of_states: Vec<u64>,
    pub(super) of_tokens: Vec<u64>,
}

impl Default for WorkerIndex {
    fn default() -> Self {
        let (present, of_states, of_tokens) = (Vec::new(), Vec::new(), Vec::new());
        WorkerIndex { tree: NodeTree::new(), loads: Vec::new(), present, least: None, of_states, of_tokens }
    }
}

impl WorkerIndex {
    /// Makes an index without workers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a worker without blocks and with a load of 0. O(sets) for each 64th worker, otherwise O(workers).
    pub fn add_worker(&mut self) -> Result<WorkerId> {
        let index = self.loads.iter().position(Option::is_none).unwrap_or(self.loads.len());
        if index == WORKERS_MAX {
            return Err(CoreError::argument("workers", index as u64 + 1, format!("at most {WORKERS_MAX}")).into());
        }
        let worker = WorkerId::of_index(index);
        self.tree.sets.make_room(worker)?;
        if index == self.loads.len() {
            self.loads.push(None);
            for words in [&mut self.present, &mut self.of_states, &mut self.of_tokens] {
                words.resize(index / 64 + 1, 0);
            }
        }
        self.loads[index] = Some(0.0);
        self.present[index / 64] |= 1 << (index % 64);
        self.set_kept(worker, true, false);
        self.least = self.least_load();
        Ok(worker)
    }

    /// Removes a worker and all its blocks. O(blocks of all workers).
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<()> {
        self.clear(worker)?;
        self.set_kept(worker, false, false);
        self.loads[worker.index()] = None;
        self.present[worker.index() / 64] &= !(1 << (worker.index() % 64));
        self.least = self.least_load();
        Ok(())
    }

    /// The existing workers.
    #[must_use]
    pub fn workers(&self) -> Workers<'_> {
        Workers::of_words(&self.present)
    }

    /// Sets the load of a worker: a finite number, in the caller's unit. O(1); O(workers) if the load of the least
    /// loaded worker rises.
    pub fn set_load(&mut self, worker: WorkerId, load: f64) -> Result<()> {
        self.check_worker(worker)?;
        if !load.is_finite() {
            return Err(CoreError::argument("load", load.to_string(), "a finite number").into());
        }
        let before = self.loads[worker.index()].replace(load).unwrap_or(f64::NEG_INFINITY);
        self.least = match self.least {
            Some(least) if load <= least => Some(load),
            Some(least) if before > least => Some(least),
            _ => self.least_load(),
        };
        Ok(())
    }

    /// The load of a worker, 0 at first; `None` if there is no such worker.
    #[must_use]
    pub fn load(&self, worker: WorkerId) -> Option<f64> {
        self.loads.get(worker.index()).copied().flatten()
    }

    /// Records that a worker holds blocks in a tier. Each block follows the one before it; the first follows `parent`,
    /// or starts a prompt if that is `None`. O(keys), plus the blocks after them that the worker already held. If
    /// memory runs out, it returns an error and changes nothing.
    pub fn store(&mut self, worker: WorkerId, tier: Tier, parent: Option<u64>, keys: &[u64]) -> Result<()> {
        self.check_worker(worker)?;
        if keys.is_empty() {
            return Ok(());
        }
        self.tree.reserve(keys.len() + 1)?;
        // A parent that its first block does not follow would stay without blocks after it, and would never be freed.
        let parent = parent.filter(|_| !self.tree.is_attached(keys[0]));
        let mut before = parent.map_or(ROOT, |parent| self.tree.named(parent));
        for &key in keys {
            let node = self.tree.named(key);
            self.tree.attach(node, before);
            self.tree.hold(node, worker, tier);
            before = node;
        }
        Ok(())
    }

    /// Records that a worker no longer holds blocks in a tier; blocks that it did not hold are ignored. O(keys), plus
    /// the blocks after them that it still holds.
    pub fn remove(&mut self, worker: WorkerId, tier: Tier, keys: &[u64]) -> Result<()> {
        self.check_worker(worker)?;
        self.tree.sets.reserve(keys.len() * 2)?;
        for &key in keys {
            if let Some(node) = self.tree.table.node(key) {
                self.tree.release(node, worker, tier);
            }
        }
        Ok(())
    }

    /// Records what a worker keeps: blocks of tokens alone, as at first, blocks and states, or states alone. O(1).
    pub fn keep(&mut self, worker: WorkerId, tokens: bool, states: bool) -> Result<()> {
        self.check_worker(worker)?;
        self.set_kept(worker, tokens, states);
        Ok(())
    }

    fn set_kept(&mut self, worker: WorkerId, tokens: bool, states: bool) {
        let (word, bit) = (worker.index() / 64, 1 << (worker.index() % 64));
        for (words, is_kept) in [(&mut self.of_tokens, tokens), (&mut self.of_states, states)] {
            if is_kept {
                words[word] |= bit;
            } else {
                words[word] &= !bit;
            }
        }
    }

    /// True if some worker keeps states.
    pub(super) fn has_states(&self) -> bool {
        self.of_states.iter().any(|&word| word != 0)
    }

    /// Records that a worker keeps states at the ends of blocks in a tier. O(keys). If memory runs out, it returns an
    /// error and changes nothing.
    pub fn store_states(&mut self, worker: WorkerId, tier: Tier, keys: &[u64]) -> Result<()> {
        self.check_worker(worker)?;
        self.tree.states.reserve(keys.len())?;
        self.tree.sets.reserve(keys.len() * 2)?;
        keys.iter().for_each(|&key| self.tree.states.hold(&mut self.tree.sets, key, worker, tier));
        Ok(())
    }

    /// Records that a worker no longer keeps states in a tier; states that it did not keep are ignored. O(keys).
    pub fn remove_states(&mut self, worker: WorkerId, tier: Tier, keys: &[u64]) -> Result<()> {
        self.check_worker(worker)?;
        self.tree.sets.reserve(keys.len() * 2)?;
        keys.iter().for_each(|&key| self.tree.states.release(&mut self.tree.sets, key, worker, tier));
        Ok(())
    }

    /// Removes all blocks and states of a worker, in all tiers. O(blocks of all workers).
    pub fn clear(&mut self, worker: WorkerId) -> Result<()> {
        self.check_worker(worker)?;
        self.tree.release_all(worker)
    }

    /// The size of the index. O(1).
    #[must_use]
    pub fn usage(&self) -> IndexUsage {
        let workers = self.workers().count_all();
        let words = self.present.capacity() + self.of_states.capacity() + self.of_tokens.capacity();
        let bytes = self.tree.bytes() + self.loads.capacity() * 16 + words * 8;
        let (blocks, states) = (self.tree.len(), self.tree.states.len());
        IndexUsage { workers, blocks, states, sets: self.tree.sets.len(), bytes }
    }

    /// Asserts the invariants, for tests. O(blocks · workers).
    pub fn check_invariants(&self) {
        self.tree.check();
        for (index, load) in self.loads.iter().enumerate() {
            assert_eq!(self.present[index / 64] >> (index % 64) & 1 == 1, load.is_some());
            let keeps = |words: &[u64]| words.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1);
            assert!(
                load.is_some() || !keeps(&self.of_tokens) && !keeps(&self.of_states),
                "a removed worker keeps nothing"
            );
        }
        assert_eq!(self.least, self.least_load(), "the least load");
    }

    fn least_load(&self) -> Option<f64> {
        self.loads.iter().copied().flatten().min_by(f64::total_cmp)
    }

    pub(super) fn check_worker(&self, worker: WorkerId) -> Result<()> {
        match self.load(worker) {
            Some(_) => Ok(()),
            None => Err(CoreError::argument("worker", worker.index() as u64, "a worker of this index").into()),
        }
    }
}
