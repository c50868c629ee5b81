//! The blocks at whose end workers keep a state (a checkpoint): a worker of a hybrid model continues a prompt only there.
//!
//! ```text
//! block     a  b  c  d  e  f          complete at f: workers 0 and 4
//! states          {0}      {4}        so worker 0 has three blocks of the prompt, and worker 4 has six
//! ```
//!
//! Only blocks with a state are in here, which are far fewer than blocks: `table` maps the key of a block to the workers
//! that have a state there, in any tier, and to its row. Marks need no parents, so they may arrive in any order and
//! before their blocks. O(1) each, amortised.

use kvtide_core::Error as CoreError;

use super::key_table::{AT_ONCE, KeyTable};
use super::tier::Tier;
use super::worker_id::WorkerId;
use super::worker_sets::{SetId, WorkerSets};
use crate::error::Result;

/// The workers that have a state at a block, by tier.
type Row = [SetId; 3];

const NO_WORKERS: Row = [SetId::EMPTY; 3];

#[derive(Debug)]
pub(super) struct StateMarks {
    table: KeyTable,
    rows: Vec<Row>,
    free: Vec<u32>,
}

impl StateMarks {
    pub(super) fn new() -> Self {
        StateMarks { table: KeyTable::new(), rows: Vec::new(), free: Vec::new() }
    }

    /// Allocates memory for so many additional marks.
    pub(super) fn reserve(&mut self, marks: usize) -> Result<()> {
        let out_of_memory = |_| CoreError::OutOfMemory { count: marks as u64, what: "states of an index" };
        self.rows.try_reserve(marks).map_err(out_of_memory)?;
        self.free.try_reserve(marks).map_err(out_of_memory)?;
        self.table.reserve(marks)
    }

    /// Records that a worker keeps a state at the end of a block in a tier.
    pub(super) fn hold(&mut self, sets: &mut WorkerSets, key: u64, worker: WorkerId, tier: Tier) {
        let at = self.table.find(key).unwrap_or_else(|| {
            let row = self.free.pop().unwrap_or_else(|| {
                self.rows.push(NO_WORKERS);
                (self.rows.len() - 1) as u32
            });
            self.table.insert(key, row)
        });
        let held = &mut self.rows[self.table.slot(at).node as usize][tier as usize];
        if !sets.contains(*held, worker) {
            *held = sets.flip(*held, worker);
        }
        let any = self.table.complete_mut(at);
        if !sets.contains(*any, worker) {
            *any = sets.flip(*any, worker);
        }
    }

    /// Records that a worker no longer keeps a state in a tier.
    pub(super) fn release(&mut self, sets: &mut WorkerSets, key: u64, worker: WorkerId, tier: Tier) {
        let Some(at) = self.table.find(key) else { return };
        let row = &mut self.rows[self.table.slot(at).node as usize];
        if !sets.contains(row[tier as usize], worker) {
            return;
        }
        row[tier as usize] = sets.flip(row[tier as usize], worker);
        if !row.iter().any(|&held| sets.contains(held, worker)) {
            let any = self.table.complete_mut(at);
            *any = sets.flip(*any, worker);
            self.drop_empty(at);
        }
    }

    /// Removes a worker that `without` was made for. O(marks of all workers).
    pub(super) fn release_all(&mut self, sets: &mut WorkerSets, without: &[Option<SetId>]) {
        let mut gone = Vec::new();
        for slot in self.table.taken_mut() {
            sets.take_over(&mut slot.complete, without);
            if slot.complete.is_empty() {
                gone.push(slot.key);
            }
        }
        for held in self.rows.iter_mut().flatten() {
            sets.take_over(held, without);
        }
        for key in gone {
            let at = self.table.find(key).expect("a mark that is there");
            self.drop_empty(at);
        }
    }

    fn drop_empty(&mut self, at: usize) {
        let slot = *self.table.slot(at);
        if slot.complete.is_empty() {
            self.table.remove(at);
            self.free.push(slot.node);
        }
    }

    /// For each key, the workers that have a state at the end of its block.
    #[inline]
    pub(super) fn holders(&self, keys: [u64; AT_ONCE]) -> [SetId; AT_ONCE] {
        self.table.complete_of(keys)
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.rows.capacity() * size_of::<Row>() + self.free.capacity() * 4
    }

    /// Asserts the invariants. Returns all references to sets. O(marks · workers).
    pub(super) fn check(&self, sets: &WorkerSets) -> Vec<SetId> {
        assert_eq!(self.rows.len() - self.free.len(), self.len(), "rows are in the table or free");
        let mut mentioned = Vec::new();
        for slot in self.table.taken() {
            let row = self.rows[slot.node as usize];
            assert!(!slot.complete.is_empty(), "a mark of no worker");
            for worker in (0..sets.room()).map(WorkerId::of_index) {
                let should = row.iter().any(|&held| sets.contains(held, worker));
                assert_eq!(sets.contains(slot.complete, worker), should, "the workers with a state");
            }
            mentioned.extend(row);
            mentioned.push(slot.complete);
        }
        assert!(self.free.iter().all(|&row| self.rows[row as usize] == NO_WORKERS), "a free row with workers");
        mentioned
    }
}
