//! The index: workers, what each holds, and how busy each is.
//!
//! A key is 64 bits of the name of a prefix: of a block and all before it. Two prefixes with one key would be taken for each other once in
//! 2^64 pairs, and what that costs is one prompt at the wrong worker, where it is computed. Nothing here is a promise that blocks are there.
//!
//! Events may come in any order: a block whose parent is unknown counts from when the parent comes. Blocks of workers that tell nonsense
//! are wrong for these workers alone.

use kvtide_core::Error as CoreError;

use super::node_tree::{NodeTree, ROOT};
use super::tier::Tier;
use crate::error::Result;

/// The most workers that an index takes.
pub const WORKERS_MAX: usize = 1024;

/// The number of a worker in an index. Those of workers that are gone are given again, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u16);

impl WorkerId {
    /// As a number from 0 on.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// The worker of a number, for callers that keep numbers; whether there is one is checked by each call.
    #[must_use]
    pub fn of_index(index: usize) -> Self {
        WorkerId(u16::try_from(index).unwrap_or(u16::MAX))
    }
}

/// What an index takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexUsage {
    /// Workers that it knows.
    pub workers: usize,
    /// Different blocks, with those that were only named as parents.
    pub blocks: usize,
    /// Different sets of workers.
    pub sets: usize,
    /// Bytes of memory, without those of the index's own struct.
    pub bytes: usize,
}

/// Which worker has which blocks.
#[derive(Debug)]
pub struct WorkerIndex {
    pub(super) tree: NodeTree,
    /// How busy each is; none where a number is free.
    pub(super) loads: Vec<Option<f64>>,
    /// The workers that there are, as a set's words.
    pub(super) present: Vec<u64>,
    /// How busy the least busy of them is.
    pub(super) least: Option<f64>,
}

impl Default for WorkerIndex {
    fn default() -> Self {
        WorkerIndex { tree: NodeTree::new(), loads: Vec::new(), present: Vec::new(), least: None }
    }
}

impl WorkerIndex {
    /// An index without workers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A worker more, which holds nothing and has no load. O(sets) for each 64th, otherwise O(workers).
    pub fn add_worker(&mut self) -> Result<WorkerId> {
        let index = self.loads.iter().position(Option::is_none).unwrap_or(self.loads.len());
        if index == WORKERS_MAX {
            return Err(CoreError::argument("workers", index as u64 + 1, format!("at most {WORKERS_MAX}")).into());
        }
        let worker = WorkerId::of_index(index);
        self.tree.sets.make_room(worker)?;
        if index == self.loads.len() {
            self.loads.push(None);
            self.present.resize(index / 64 + 1, 0);
        }
        self.loads[index] = Some(0.0);
        self.present[index / 64] |= 1 << (index % 64);
        self.least = self.least_load();
        Ok(worker)
    }

    /// A worker is gone, with all that it held. O(blocks of all workers).
    pub fn remove_worker(&mut self, worker: WorkerId) -> Result<()> {
        self.clear(worker)?;
        self.loads[worker.index()] = None;
        self.present[worker.index() / 64] &= !(1 << (worker.index() % 64));
        self.least = self.least_load();
        Ok(())
    }

    /// The workers that there are.
    #[must_use]
    pub fn workers(&self) -> super::Workers<'_> {
        super::Workers::of_words(&self.present)
    }

    /// How busy a worker is, in the caller's unit: a finite number. O(1), and O(workers) where the least busy one is busier now.
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

    /// What `set_load` was given last, 0 at first; none where there is no such worker.
    #[must_use]
    pub fn load(&self, worker: WorkerId) -> Option<f64> {
        self.loads.get(worker.index()).copied().flatten()
    }

    /// A worker holds blocks in a tier: each is behind the one before it, the first behind `parent`, or at a prompt's beginning where
    /// there is none. O(keys), and the blocks behind them that the worker held already. Refused for lack of memory: nothing has changed.
    pub fn store(&mut self, worker: WorkerId, tier: Tier, parent: Option<u64>, keys: &[u64]) -> Result<()> {
        self.check_worker(worker)?;
        if keys.is_empty() {
            return Ok(());
        }
        self.tree.reserve(keys.len() + 1)?;
        let mut before = parent.map_or(ROOT, |parent| self.tree.named(parent));
        for &key in keys {
            let node = self.tree.named(key);
            self.tree.attach(node, before);
            self.tree.hold(node, worker, tier);
            before = node;
        }
        Ok(())
    }

    /// A worker does not hold blocks in a tier any more; those that it did not hold are passed over. O(keys), and the blocks behind them
    /// that it goes on holding.
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

    /// A worker holds nothing any more, in any tier. O(blocks of all workers).
    pub fn clear(&mut self, worker: WorkerId) -> Result<()> {
        self.check_worker(worker)?;
        self.tree.release_all(worker)
    }

    /// What the index takes. O(1).
    #[must_use]
    pub fn usage(&self) -> IndexUsage {
        let workers = self.workers().count_all();
        let bytes = self.tree.bytes() + self.loads.capacity() * 16 + self.present.capacity() * 8;
        IndexUsage { workers, blocks: self.tree.len(), sets: self.tree.sets.len(), bytes }
    }

    /// Asserts what always holds: for tests. O(blocks · workers).
    pub fn check_invariants(&self) {
        self.tree.check();
        for (index, load) in self.loads.iter().enumerate() {
            assert_eq!(self.present[index / 64] >> (index % 64) & 1 == 1, load.is_some());
        }
        assert_eq!(self.least, self.least_load(), "the least load");
    }

    fn least_load(&self) -> Option<f64> {
        self.loads.iter().copied().flatten().min_by(f64::total_cmp)
    }

    pub(super) fn check_worker(&self, worker: WorkerId) -> Result<()> {
        match self.load(worker) {
            Some(_) => Ok(()),
            None => Err(CoreError::argument("worker", u64::from(worker.0), "a worker of this index").into()),
        }
    }
}
