//! The order in which cached blocks go: by rank, and in a rank by release.
//!
//! ```text
//! turn        0         1             2
//! lists      4  7       2             9  1       released in the order 4 7 8 2 3 9 1
//! queue              8           3               each of these begins a turn
//! ```
//!
//! Turns are counted anew once 2^32 of them were begun, in the order that there is: O(cached * log limits), then.

use super::rank::Rank;
use super::{Blocks, FIRST_RANK, Set};

impl Blocks {
    /// The same, counting turns anew after so many, so that a test sees it.
    #[doc(hidden)]
    #[must_use]
    pub fn with_last_turn(mut self, last_turn: u32) -> Self {
        self.last_turn = last_turn;
        self
    }

    /// The cached blocks, those first that go first.
    pub(super) fn in_order(&self) -> impl Iterator<Item = u32> {
        let mut ranks = self.ranks;
        let with_blocks = std::iter::from_fn(move || {
            let rank = (ranks != 0).then(|| ranks.trailing_zeros() as u8)?;
            ranks &= ranks - 1;
            Some(rank)
        });
        let mut listed = with_blocks.flat_map(|rank| self.blocks.iter(FIRST_RANK + rank)).peekable();
        let mut queued = self.limits.queued().peekable();
        std::iter::from_fn(move || {
            let goes = |&(place, _): &_| listed.peek().is_none_or(|&block| place <= self.place(block));
            queued.next_if(goes).map(|(_, block)| block).or_else(|| listed.next())
        })
    }

    /// The first of them. O(1), or O(log limits) where some have limits.
    pub(super) fn first_in_order(&self) -> Option<u32> {
        let lowest = (self.ranks != 0).then(|| self.ranks.trailing_zeros() as u8);
        let listed = lowest.and_then(|rank| self.blocks.first(FIRST_RANK + rank));
        match (self.limits.first_queued(), listed) {
            (Some((place, queued)), Some(listed)) if place <= self.place(listed) => Some(queued),
            (Some((_, queued)), None) => Some(queued),
            (_, listed) => listed,
        }
    }

    /// The rank of a cached block, and the turn that it was released in.
    pub(super) fn place(&self, block: u32) -> (u8, u32) {
        (self.blocks[block].rank, self.blocks[block].number)
    }

    /// A cached block is released now, with this rank.
    pub(super) fn list(&mut self, block: u32, rank: Rank) {
        if !rank.is_flat() && self.begin_turn() && self.limits.list(block, rank, self.turn) {
            (self.blocks[block].rank, self.blocks[block].number) = (rank.top, self.turn);
            return;
        }
        (self.blocks[block].rank, self.blocks[block].number) = (rank.floor, self.turn);
        self.blocks.push_back(FIRST_RANK + rank.floor, block);
        self.ranks |= 1 << rank.floor;
    }

    /// Takes a cached block out of the order.
    pub(super) fn unlist(&mut self, block: u32) {
        let rank = self.blocks[block].rank;
        if self.limits.unlist(block) {
            return;
        }
        self.blocks.remove(block);
        if self.blocks.first(FIRST_RANK + rank).is_none() {
            self.ranks &= !(1 << rank);
        }
    }

    /// Begins a turn, where there are more or memory to count them anew.
    fn begin_turn(&mut self) -> bool {
        if self.turn >= self.last_turn && !self.count_anew() {
            return false;
        }
        self.turn += 1;
        true
    }

    /// Gives all turns the lowest numbers that keep their order.
    fn count_anew(&mut self) -> bool {
        let mut begun = Vec::new();
        if begun.try_reserve_exact(self.limits.queued_count() as usize).is_err() {
            return false;
        }
        begun.extend(self.limits.queued().map(|((_, turn), _)| turn));
        begun.sort_unstable();
        let anew = |turn: u32| begun.partition_point(|&begun| begun <= turn) as u32;
        for block in 0..self.touched {
            let known = &mut self.blocks[block];
            if known.set == Set::Cached {
                known.number = anew(known.number);
            }
        }
        self.limits.change_turns(anew);
        self.turn = begun.len() as u32;
        self.turn < self.last_turn
    }
}

impl Blocks {
    /// Says what is wrong with the order, if anything is: both parts of it are the place that each block knows. O(cached).
    pub(super) fn check_order(&self) -> Result<(), String> {
        let (first, next) = (self.in_order().next(), self.first_in_order());
        if first != next {
            return Err(format!("block {next:?} would go, {first:?} is first"));
        }
        let mut before = (0, 0);
        for block in self.in_order() {
            let place = self.place(block);
            if self.blocks[block].set != Set::Cached || place < before || place.1 > self.turn {
                return Err(format!("block {block} waits at {place:?} behind {before:?} in turn {}", self.turn));
            }
            before = place;
        }
        match self.limits.queued().find(|&(place, block)| place != self.place(block)) {
            Some((place, block)) => Err(format!("block {block} is queued at {place:?}: {:?}", self.blocks[block])),
            None => Ok(()),
        }
    }
}
