//! Time limits of priorities: the blocks that have one, the limit that passes next, and the order of cached blocks with
//! limits. If a pool evicts the least useful first, all its cached blocks are in this order.
//!
//! ```text
//! limits    block 4: own until 9, listed until 9      block 7: own until 5, not listed (in use)
//! heap      (5, 1, 7) (7, 2, 4) (9, 3, 4)             the first two are stale: they were not removed
//! queue     (90, 0, 3): 4                             rank, usefulness and turn
//! ```
//!
//! A block is *listed* while it is cached with a rank that will change, or has changed, or with a score. It keeps the
//! score and the turn of its release, and so its order among blocks of its new rank. Stale entries of the heap are skipped when they are reached,
//! and removed together when they are more than half.
//!
//! Invariants: a listed block is in the queue, and has one current entry in the heap if its rank will change. Every
//! call is O(log listed) amortised. Only blocks with a limit, or listed ones, use memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::queue::{Place, Queue};
use super::rank::Rank;
use crate::error::{Error, Result};

/// The state of a block with a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    /// The time at which its own priority ends.
    pub own: Option<u64>,
    /// The rank handed on to it by blocks behind it, if that rank will change.
    pub inherited: Option<Rank>,
    /// The place in the queue of a cached block.
    listed: Option<Listed>,
}

/// The rank with which a block is listed, its score, and the turn of its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    rank: Rank,
    score: u64,
    turn: u32,
}

impl Listed {
    fn place(&self) -> Place {
        (self.rank.top, self.score, self.turn)
    }
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    of: HashMap<u32, Limit>,
    /// The time, the turn of the release, and the block.
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    queue: Queue,
}

/// Number of stale entries that are tolerated.
const STALE_FREE: usize = 64;

impl Limits {
    pub(super) fn get(&self, block: u32) -> Option<Limit> {
        // Most pools have no limits at all.
        if self.of.is_empty() { None } else { self.of.get(&block).copied() }
    }

    /// Sets the time at which a block's own priority ends, and clears its other limits. Memory is reserved, and the
    /// block is not listed.
    pub(super) fn set_own(&mut self, block: u32, until: u64) {
        self.of.insert(block, Limit { own: Some(until), ..Limit::default() });
    }

    /// Sets a rank handed on to a block by blocks behind it. Returns false if there is no memory for it.
    pub(super) fn inherit(&mut self, block: u32, inherited: Rank) -> bool {
        let fits = self.reserve(1).is_ok();
        if fits {
            self.of.entry(block).or_default().inherited = Some(inherited);
        }
        fits
    }

    /// Lists a cached block, released in its own turn. Returns false if there is no memory for it.
    pub(super) fn list(&mut self, block: u32, rank: Rank, score: u64, turn: u32) -> bool {
        let fits = self.reserve(1).is_ok();
        if fits {
            let listed = Listed { rank, score, turn };
            self.of.entry(block).or_default().listed = Some(listed);
            self.queue.insert(listed.place(), block);
            if !rank.is_flat() {
                self.heap.push(Reverse((rank.until, turn, block)));
            }
            self.compact();
        }
        fits
    }

    /// Changes a block's limits, if it has any. A block without limits left is removed.
    pub(super) fn change(&mut self, block: u32, change: impl FnOnce(&mut Limit)) {
        if self.of.is_empty() {
            return;
        }
        if let Some(limit) = self.of.get_mut(&block) {
            change(limit);
            if *limit == Limit::default() {
                self.of.remove(&block);
                self.compact();
            }
        }
    }

    /// Removes a block that is in use again from the queue, if it is listed; its own limits stay. Returns true if it
    /// was listed.
    pub(super) fn unlist(&mut self, block: u32) -> bool {
        let mut listed = None;
        self.change(block, |limit| listed = limit.listed.take());
        if let Some(listed) = &listed {
            self.queue.remove(listed.place());
        }
        listed.is_some()
    }

    /// Removes all limits of a block, except its place in the queue.
    pub(super) fn remove(&mut self, block: u32) {
        self.change(block, |limit| *limit = Limit { listed: limit.listed, ..Limit::default() });
    }

    /// A block whose rank has changed by now, and its new rank. It stays cached, in the turn of its release.
    pub(super) fn pop(&mut self, now: u64) -> Option<(u32, u8)> {
        while let Some(&Reverse(entry)) = self.heap.peek() {
            let (until, _, block) = entry;
            if until > now {
                return None;
            }
            self.heap.pop();
            let listed = self.of.get_mut(&block).and_then(|limit| limit.listed.as_mut());
            if let Some(listed) = listed.filter(|listed| is_due(listed, entry)) {
                // The removed entry leaves enough memory.
                self.queue.remove(listed.place());
                listed.rank = Rank::flat(listed.rank.floor);
                self.queue.insert(listed.place(), block);
                return Some((block, listed.rank.top));
            }
        }
        None
    }

    /// The rank and the score with which a cached block is listed.
    pub(super) fn listed(&self, block: u32) -> Option<(Rank, u64)> {
        self.get(block)?.listed.map(|listed| (listed.rank, listed.score))
    }

    /// The listed blocks in the order of eviction, each with its place.
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Renumbers turns; `change` must keep their order.
    pub(super) fn change_turns(&mut self, change: impl Fn(u32) -> u32) {
        self.of
            .values_mut()
            .filter_map(|limit| limit.listed.as_mut())
            .for_each(|listed| listed.turn = change(listed.turn));
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.iter_mut().for_each(|Reverse((_, turn, _))| *turn = change(*turn));
        self.heap = entries.into();
        self.queue.change_turns(change);
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> {
        self.of.keys().copied()
    }

    /// Checks that each listed block is in the queue and has its entry, and that the heap is not too large.
    pub(super) fn check(&self) -> Result<(), String> {
        self.queue.check()?;
        let is_queued = |(place, block): (Place, u32)| {
            self.of.get(&block).and_then(|limit| limit.listed).is_some_and(|listed| place == listed.place())
        };
        let listed = self.of.values().filter_map(|limit| limit.listed);
        if self.queue.len() as usize != listed.clone().count() || !self.queue.iter().all(is_queued) {
            return Err(format!("{} blocks are queued, {} are listed with a limit", self.queue.len(), listed.count()));
        }
        let current = self.heap.iter().filter(|entry| self.is_current(entry)).count();
        let due = listed.filter(|listed| !listed.rank.is_flat()).count();
        if current != due {
            return Err(format!("{due} blocks are listed with a limit, {current} entries are current"));
        }
        if self.heap.len() > 2 * self.of.len() + STALE_FREE {
            return Err(format!("{} entries for {} limits", self.heap.len(), self.of.len()));
        }
        Ok(())
    }

    fn is_current(&self, Reverse(entry): &Reverse<(u64, u32, u32)>) -> bool {
        let listed = self.of.get(&entry.2).and_then(|limit| limit.listed);
        listed.is_some_and(|listed| is_due(&listed, *entry))
    }

    /// Removes stale entries if they are more than half.
    fn compact(&mut self) {
        if self.heap.len() <= 2 * self.of.len() + STALE_FREE {
            return;
        }
        let mut heap = std::mem::take(&mut self.heap);
        heap.retain(|entry| self.is_current(entry));
        self.heap = heap;
    }

    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        let count = (self.of.len() + more) as u64;
        let out_of_memory = |_| Error::OutOfMemory { count, what: "limited priorities" };
        self.of.try_reserve(more).map_err(out_of_memory)?;
        self.heap.try_reserve(more).map_err(|_| Error::OutOfMemory { count, what: "limited priorities" })?;
        self.queue.reserve(more)
    }
}

/// True if an entry of the heap belongs to a block that is listed in this way.
fn is_due(listed: &Listed, (until, turn, _): (u64, u32, u32)) -> bool {
    !listed.rank.is_flat() && listed.rank.until == until && listed.turn == turn
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(until: u64) -> Rank {
        Rank { top: 90, floor: 50, until }
    }

    fn over(limits: &mut Limits, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| limits.pop(now)).map(|(block, _)| block).collect()
    }

    #[test]
    fn what_is_over_waits_in_the_order_of_its_release() {
        let mut limits = Limits::default();
        for (turn, (block, top, ends)) in (1..).zip([(7, 90, 9), (3, 10, 4), (5, 60, 3), (4, 20, 9), (2, 51, 12)]) {
            assert!(limits.list(block, Rank { top, ..until(ends) }, 0, turn));
        }
        let order = |limits: &Limits| limits.queue.iter().map(|(_, block)| block).collect::<Vec<_>>();
        assert_eq!(order(&limits), [3, 4, 2, 5, 7]);
        assert_eq!(over(&mut limits, 8), [5, 3]);
        assert_eq!(order(&limits), [4, 3, 5, 2, 7]);
        assert_eq!(over(&mut limits, 9).len(), 2);
        assert_eq!(order(&limits), [7, 3, 5, 4, 2]);
        limits.check().unwrap();
        assert!(limits.unlist(3) && !limits.unlist(3) && !limits.unlist(9));
        assert_eq!((order(&limits), limits.queue.len()), (vec![7, 5, 4, 2], 4));
        limits.check().unwrap();
    }

    #[test]
    fn entries_out_of_date_are_skipped_and_thrown_out() {
        let mut limits = Limits::default();
        for round in 0..10_000 {
            assert!(limits.list(3, until(10_000 - u64::from(round) / 2), 0, round));
            assert!(limits.unlist(3));
            limits.check().unwrap();
            assert!(limits.heap.len() <= STALE_FREE + 2, "{}", limits.heap.len());
        }
        assert_eq!(limits.pop(u64::MAX), None);
        limits.list(3, until(4), 0, 10_000);
        limits.unlist(3);
        limits.remove(3);
        assert_eq!((limits.pop(u64::MAX), limits.blocks().count()), (None, 0));
    }
}
