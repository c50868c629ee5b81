//! Time limits of priorities: which blocks have one, and whose is over next.
//!
//! ```text
//! limits    block 4: own until 9, listed until 9      block 7: own until 5, not listed (somebody uses it)
//! heap      (5, 7) (7, 4) (9, 4)                      (5, 7) and (7, 4) are out of date: nobody removed them
//! ```
//!
//! A block is *listed* while it waits for its eviction with a rank that will change. Entries of the heap that are out of
//! date are skipped when they come up, and thrown out together when they are more than half.
//!
//! Invariants: a listed block has exactly one entry that is up to date; the heap has at most twice as many entries as
//! blocks have limits, and 64. Every call is O(log limits) amortised. Only blocks with a limit take memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::rank::Rank;
use crate::error::{Error, Result};

/// What is known of a block with a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    /// When its own priority is over.
    pub own: Option<u64>,
    /// The rank that it has from blocks behind it, if that will change.
    pub inherited: Option<Rank>,
    /// The rank with which it waits, if that will change, and the number of its entry.
    listed: Option<(Rank, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    of: HashMap<u32, Limit>,
    /// When, in which order then, and the block.
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    listings: u64,
}

/// Out-of-date entries that are not worth throwing out.
const STALE_FREE: usize = 64;

impl Limits {
    pub(super) fn get(&self, block: u32) -> Option<Limit> {
        // Most pools have no limits at all.
        if self.of.is_empty() { None } else { self.of.get(&block).copied() }
    }

    /// Notes when a block's own priority is over, and forgets what else there was.
    pub(super) fn set_own(&mut self, block: u32, until: u64) -> Result<()> {
        self.reserve()?;
        self.of.insert(block, Limit { own: Some(until), ..Limit::default() });
        Ok(())
    }

    /// Notes a rank that a block has from blocks behind it. False when there is no memory for it.
    pub(super) fn inherit(&mut self, block: u32, inherited: Rank) -> bool {
        let fits = self.reserve().is_ok();
        if fits {
            self.of.entry(block).or_default().inherited = Some(inherited);
        }
        fits
    }

    /// Lets a block wait with a rank that will change. False when there is no memory for it.
    pub(super) fn list(&mut self, block: u32, rank: Rank) -> bool {
        let fits = self.reserve().is_ok();
        if fits {
            self.listings += 1;
            // Tails are listed before their heads. Of ranks that fall they go last into the new one before their heads, of ranks
            // that rise first into it behind them.
            let turn = if rank.top > rank.floor { self.listings } else { u64::MAX - self.listings };
            self.of.entry(block).or_default().listed = Some((rank, turn));
            self.heap.push(Reverse((rank.until, turn, block)));
            self.compact();
        }
        fits
    }

    /// Changes what is known of a block, if anything is; a block of which nothing is left is forgotten.
    pub(super) fn change(&mut self, block: u32, change: impl FnOnce(&mut Limit)) {
        if self.of.is_empty() {
            return;
        }
        if let Some(limit) = self.of.get_mut(&block) {
            change(limit);
            if *limit == Limit::default() {
                self.remove(block);
            }
        }
    }

    /// A block that waited is in use again; what it has of its own stays.
    pub(super) fn unlist(&mut self, block: u32) {
        self.change(block, |limit| limit.listed = None);
    }

    /// Forgets everything of a block.
    pub(super) fn remove(&mut self, block: u32) {
        if !self.of.is_empty() {
            self.of.remove(&block);
            self.compact();
        }
    }

    /// A block whose rank is to change, and how; at one time those that fall come first, in the order in which they were listed,
    /// then those that rise, in the opposite order.
    pub(super) fn pop(&mut self, now: u64) -> Option<(u32, Rank)> {
        while let Some(&Reverse((until, turn, block))) = self.heap.peek() {
            if until > now {
                return None;
            }
            self.heap.pop();
            let listed = self.of.get_mut(&block).and_then(|limit| limit.listed.take_if(|listed| listed.1 == turn));
            if let Some((rank, _)) = listed {
                return Some((block, rank));
            }
        }
        None
    }

    /// The rank with which a block waits, if that will change.
    pub(super) fn listed(&self, block: u32) -> Option<Rank> {
        self.get(block)?.listed.map(|(rank, _)| rank)
    }

    /// Blocks with a limit.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> {
        self.of.keys().copied()
    }

    /// Whether each listed block has its entry, and the heap is no larger than it may be.
    pub(super) fn check(&self) -> Result<(), String> {
        let current = self.heap.iter().filter(|entry| self.is_current(entry)).count();
        let listed = self.of.values().filter(|limit| limit.listed.is_some()).count();
        if current != listed {
            return Err(format!("{listed} blocks wait with a limit, {current} entries are up to date"));
        }
        if self.heap.len() > 2 * self.of.len() + STALE_FREE {
            return Err(format!("{} entries for {} limits", self.heap.len(), self.of.len()));
        }
        Ok(())
    }

    fn is_current(&self, Reverse((until, turn, block)): &Reverse<(u64, u64, u32)>) -> bool {
        let listed = self.of.get(block).and_then(|limit| limit.listed);
        listed.is_some_and(|(rank, number)| number == *turn && rank.until == *until)
    }

    /// Throws out what is out of date, when it is the larger part.
    fn compact(&mut self) {
        if self.heap.len() <= 2 * self.of.len() + STALE_FREE {
            return;
        }
        let mut heap = std::mem::take(&mut self.heap);
        heap.retain(|entry| self.is_current(entry));
        self.heap = heap;
    }

    fn reserve(&mut self) -> Result<()> {
        let count = self.of.len() as u64 + 1;
        let out_of_memory = |_| Error::OutOfMemory { count, what: "limited priorities" };
        self.of.try_reserve(1).map_err(out_of_memory)?;
        self.heap.try_reserve(1).map_err(|_| Error::OutOfMemory { count, what: "limited priorities" })
    }
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
    fn at_one_time_ranks_fall_in_order_and_then_rise_in_the_opposite_one() {
        let mut limits = Limits::default();
        for (block, top) in [(7, 90), (3, 10), (5, 60), (4, 20), (2, 51)] {
            assert!(limits.list(block, Rank { top, ..until(9) }));
        }
        assert!(over(&mut limits, 8).is_empty());
        assert_eq!(over(&mut limits, 9), [7, 5, 2, 4, 3]);
        limits.check().unwrap();
    }

    #[test]
    fn entries_out_of_date_are_skipped_and_thrown_out() {
        let mut limits = Limits::default();
        for round in 0..10_000 {
            assert!(limits.list(3, until(10_000 - round)));
            limits.unlist(3);
            limits.check().unwrap();
            assert!(limits.heap.len() <= STALE_FREE + 2, "{}", limits.heap.len());
        }
        assert_eq!(limits.pop(u64::MAX), None);
        limits.list(3, until(4));
        limits.remove(3);
        assert_eq!((limits.pop(u64::MAX), limits.blocks().count()), (None, 0));
    }
}
