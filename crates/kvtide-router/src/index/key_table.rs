//! Maps the key of a block to its node, and to the workers that have all blocks up to it.
//!
//! ```text
//! [ key 8 | node 4 | complete 4 ] [ … ]      open addressing, linear: four slots are one cache line
//! ```
//!
//! A lookup needs only the set of workers, so that set is stored next to the key: one cache line is read, where a
//! general map reads two and the node a third. Several keys are looked up at once (`complete_of`), so that their cache
//! lines are fetched from memory in parallel.
//!
//! Attackers cannot provoke collisions, even with chosen prompts and unkeyed hashes: a slot number is a product with a
//! factor and an offset that are drawn at random for each table. O(1) each, amortised; at most three quarters of the
//! slots are in use.

use std::hash::{BuildHasher, RandomState};

use kvtide_core::Error as CoreError;

use super::worker_sets::SetId;
use crate::error::Result;

/// Marks a missing node.
pub(super) const NONE: u32 = u32::MAX;

/// The number of keys that are looked up at once.
pub(super) const AT_ONCE: usize = 8;

const SLOTS_MIN: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) key: u64,
    /// `NONE` if the slot is free.
    pub(super) node: u32,
    pub(super) complete: SetId,
}

const FREE: Slot = Slot { key: 0, node: NONE, complete: SetId::EMPTY };

#[derive(Debug)]
pub(super) struct KeyTable {
    /// Their number is a power of two.
    slots: Vec<Slot>,
    taken: usize,
    offset: u64,
    factor: u64,
}

impl KeyTable {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        let (offset, factor) = (random.hash_one(0), random.hash_one(1) | 1);
        KeyTable { slots: vec![FREE; SLOTS_MIN], taken: 0, offset, factor }
    }

    /// Allocates memory for so many additional keys.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        let needed = (self.taken + more).saturating_mul(4) / 3 + 1;
        if needed <= self.slots.len() {
            return Ok(());
        }
        let length = needed.next_power_of_two();
        let mut slots = Vec::new();
        let out_of_memory = |_| CoreError::OutOfMemory { count: length as u64, what: "slots of an index" };
        slots.try_reserve_exact(length).map_err(out_of_memory)?;
        slots.resize(length, FREE);
        for slot in std::mem::replace(&mut self.slots, slots) {
            if slot.node != NONE {
                self.place(slot);
            }
        }
        Ok(())
    }

    /// Adds a key that is not in the table yet. Returns the index of its slot.
    pub(super) fn insert(&mut self, key: u64, node: u32) -> usize {
        if self.taken + self.taken / 3 + 2 > self.slots.len() {
            // Only if `reserve` could not foresee it.
            self.reserve(1).expect("memory for an index");
        }
        self.taken += 1;
        self.place(Slot { key, node, complete: SetId::EMPTY })
    }

    fn place(&mut self, slot: Slot) -> usize {
        let mut at = self.start(slot.key);
        while self.slots[at].node != NONE {
            at = self.after(at);
        }
        self.slots[at] = slot;
        at
    }

    /// The index of a key's slot.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        let mut at = self.start(key);
        loop {
            let slot = &self.slots[at];
            if slot.node == NONE {
                return None;
            }
            if slot.key == key {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    pub(super) fn node(&self, key: u64) -> Option<u32> {
        self.find(key).map(|at| self.slots[at].node)
    }

    pub(super) fn slot(&self, at: usize) -> &Slot {
        &self.slots[at]
    }

    pub(super) fn complete_mut(&mut self, at: usize) -> &mut SetId {
        &mut self.slots[at].complete
    }

    /// For each key, the workers that have all blocks up to it; the empty set if the key is not in the table.
    #[inline]
    pub(super) fn complete_of<const N: usize>(&self, keys: [u64; N]) -> [SetId; N] {
        let starts = keys.map(|key| self.start(key));
        // No branches between these reads: the processor fetches all of them in parallel.
        let firsts = starts.map(|at| self.slots[at]);
        let mut complete = [SetId::EMPTY; N];
        for (place, first) in firsts.iter().enumerate() {
            if first.key == keys[place] {
                // A free slot has the empty set.
                complete[place] = first.complete;
            } else if first.node != NONE {
                complete[place] = self.find(keys[place]).map_or(SetId::EMPTY, |at| self.slots[at].complete);
            }
        }
        complete
    }

    /// Removes the key of a slot; displaced keys after it move up.
    pub(super) fn remove(&mut self, at: usize) {
        let mut hole = at;
        let mut next = self.after(hole);
        while self.slots[next].node != NONE {
            // The distance of a key from its preferred slot, counted around the end.
            let mask = self.slots.len() - 1;
            let start = self.start(self.slots[next].key);
            let displaced = next.wrapping_sub(start) & mask;
            if displaced >= next.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.slots[hole] = FREE;
        self.taken -= 1;
    }

    /// All slots in use.
    pub(super) fn taken(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.node != NONE)
    }

    /// All slots in use.
    pub(super) fn taken_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().filter(|slot| slot.node != NONE)
    }

    /// Replaces each set by `instead(set)`, and removes the keys whose set becomes empty. O(slots).
    pub(super) fn retain_sets(&mut self, instead: impl Fn(SetId) -> SetId) {
        for slot in &mut self.slots {
            slot.complete = instead(slot.complete);
        }
        let gone: Vec<u64> = (self.slots.iter())
            .filter(|slot| slot.node != NONE && slot.complete.is_empty())
            .map(|slot| slot.key)
            .collect();
        for key in gone {
            if let Some(at) = self.find(key) {
                self.remove(at);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.taken
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    #[inline]
    fn start(&self, key: u64) -> usize {
        let product = u128::from(key ^ self.offset) * u128::from(self.factor);
        ((product >> 64) as u64 ^ product as u64) as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }
}
