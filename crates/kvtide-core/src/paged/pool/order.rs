//! The order in which blocks are taken: free ones by the time of their release, cached ones by rank, and within a rank
//! by release, or by usefulness.
//!
//! ```text
//! turn        0         1             2
//! lists      4  7       2             9  1       released in the order 4 7 8 2 3 9 1
//! queue              8           3               each of these begins a turn
//! ```
//!
//! Cached blocks whose rank never changes are appended to the list of their rank when they are released. The others are
//! in the queue of `limits.rs`, ordered by rank and *turn*: releasing such a block begins a turn, and blocks in lists
//! keep the turn in which they were released, so both orders can be merged. Turns are renumbered after 2^32 of them,
//! which costs O(cached * log limits). Every other call is O(1), or O(log limits) for blocks with a limit.
//!
//! If blocks are ordered by usefulness, all of them are in the queue, which is ordered by rank, score and turn. Only a
//! block for which there was no memory in the queue is in a list, as if its score were 0.

use super::limits::{Limit, Limits};
use super::lists::BlockLists;
use super::policy::{PRIORITY_DEFAULT, RANK_MAX};
use super::queue::Place;
use super::rank::Rank;
use crate::error::Result;

/// The list of free blocks; the lists behind it are those of ranks.
const FREE: u8 = 0;
const FIRST_RANK: u8 = 1;

/// The set that a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Its reference count is above zero.
    Active,
    /// It is not held; prompts can find its content.
    Cached,
    /// It is not held and has no content.
    Free,
    /// Never handed out again.
    Retired,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// The reference count of an active block; the turn in which a cached block was released.
    pub number: u32,
    pub set: BlockState,
    pub priority: u8,
    /// The least rank of the block, handed on by blocks behind it that were released earlier.
    pub inherited: u8,
    /// The rank that decides its eviction while it is cached.
    pub rank: u8,
}

impl Block {
    pub const FREE: Block =
        Block { number: 0, set: BlockState::Free, priority: PRIORITY_DEFAULT, inherited: 0, rank: 0 };

    pub fn count(&self) -> u32 {
        if self.set == BlockState::Active { self.number } else { 0 }
    }
}

/// The records of all blocks, and the order in which free and cached blocks are taken.
#[derive(Debug)]
pub(super) struct Order {
    blocks: BlockLists<Block>,
    /// A bit for each rank that has blocks.
    ranks: u128,
    limits: Limits,
    /// True if blocks of equal rank are ordered by their scores.
    by_score: bool,
    /// The present turn, and the last one before turns are renumbered.
    turn: u32,
    last_turn: u32,
}

impl Order {
    /// The order of blocks below `capacity`, none of which was handed out.
    pub fn new(capacity: u32) -> Self {
        Order {
            blocks: BlockLists::new(FIRST_RANK + RANK_MAX + 1, capacity, Block::FREE),
            ranks: 0,
            limits: Limits::default(),
            by_score: false,
            turn: 0,
            last_turn: u32::MAX,
        }
    }

    pub fn set_last_turn(&mut self, last_turn: u32) {
        self.last_turn = last_turn;
    }

    /// Sets if blocks of equal rank are ordered by their scores. No block may be cached yet.
    pub fn set_by_score(&mut self, by_score: bool) {
        self.by_score = by_score;
    }

    pub fn reserve(&mut self, block: u32) -> Result<()> {
        self.blocks.reserve(block)
    }

    pub fn push_free(&mut self, block: u32) {
        self.limits.remove(block);
        self.blocks[block] = Block::FREE;
        self.blocks.push_back(FREE, block);
    }

    /// Removes and returns the block that has been free for longest.
    pub fn pop_free(&mut self) -> Option<u32> {
        let block = self.blocks.first(FREE)?;
        self.blocks.remove(block);
        Some(block)
    }

    /// The free blocks, in the order in which they are taken.
    pub fn free(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter(FREE)
    }

    /// The cached blocks, in the order of eviction.
    pub fn cached(&self) -> impl Iterator<Item = u32> {
        let mut ranks = self.ranks;
        let with_blocks = std::iter::from_fn(move || {
            let rank = (ranks != 0).then(|| ranks.trailing_zeros() as u8)?;
            ranks &= ranks - 1;
            Some(rank)
        });
        let mut listed = with_blocks.flat_map(|rank| self.blocks.iter(FIRST_RANK + rank)).peekable();
        let mut queued = self.limits.queue().iter().peekable();
        std::iter::from_fn(move || {
            let goes = |&(place, _): &_| listed.peek().is_none_or(|&block| place <= self.place(block, 0));
            queued.next_if(goes).map(|(_, block)| block).or_else(|| listed.next())
        })
    }

    /// The cached block that is evicted next. O(1), or O(log limits) if some blocks have limits.
    pub fn first_cached(&self) -> Option<u32> {
        let lowest = (self.ranks != 0).then(|| self.ranks.trailing_zeros() as u8);
        let listed = lowest.and_then(|rank| self.blocks.first(FIRST_RANK + rank));
        match (self.limits.queue().first(), listed) {
            (Some((place, queued)), Some(listed)) if place <= self.place(listed, 0) => Some(queued),
            (Some((_, queued)), None) => Some(queued),
            (_, listed) => listed,
        }
    }

    /// Adds a cached block, released now, with this rank and this score, which is 0 unless blocks are ordered by scores.
    pub fn list(&mut self, block: u32, rank: Rank, score: u64) {
        let is_queued = self.by_score || !rank.is_flat();
        if is_queued && self.begin_turn() && self.limits.list(block, rank, score, self.turn) {
            (self.blocks[block].rank, self.blocks[block].number) = (rank.top, self.turn);
            return;
        }
        (self.blocks[block].rank, self.blocks[block].number) = (rank.floor, self.turn);
        self.blocks.push_back(FIRST_RANK + rank.floor, block);
        self.ranks |= 1 << rank.floor;
    }

    pub fn unlist(&mut self, block: u32) {
        let rank = self.blocks[block].rank;
        if self.limits.unlist(block) {
            return;
        }
        self.blocks.remove(block);
        if self.blocks.first(FIRST_RANK + rank).is_none() {
            self.ranks &= !(1 << rank);
        }
    }

    /// A cached block whose rank has changed by now; it already has its new rank.
    pub fn pop_changed(&mut self, now: u64) -> Option<u32> {
        let (block, rank) = self.limits.pop(now)?;
        self.blocks[block].rank = rank;
        Some(block)
    }

    pub fn limit(&self, block: u32) -> Option<Limit> {
        self.limits.get(block)
    }

    pub fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// Bytes in use, without time limits.
    pub fn bytes(&self) -> usize {
        self.blocks.bytes()
    }

    /// The rank of a cached block with this score, and the turn in which it was released.
    fn place(&self, block: u32, score: u64) -> Place {
        (self.blocks[block].rank, score, self.blocks[block].number)
    }

    /// The score with which a cached block is listed.
    pub fn score(&self, block: u32) -> u64 {
        self.limits.listed(block).map_or(0, |(_, score)| score)
    }

    /// Begins a turn. Returns false if none is left and there is no memory to renumber them.
    fn begin_turn(&mut self) -> bool {
        if self.turn >= self.last_turn && !self.count_anew() {
            return false;
        }
        self.turn += 1;
        true
    }

    /// Renumbers all turns with the lowest numbers that keep their order.
    fn count_anew(&mut self) -> bool {
        let mut begun = Vec::new();
        if begun.try_reserve_exact(self.limits.queue().len() as usize).is_err() {
            return false;
        }
        begun.extend(self.limits.queue().iter().map(|((_, _, turn), _)| turn));
        begun.sort_unstable();
        let anew = |turn: u32| begun.partition_point(|&begun| begun <= turn) as u32;
        for block in 0..self.blocks.len() {
            let known = &mut self.blocks[block];
            if known.set == BlockState::Cached {
                known.number = anew(known.number);
            }
        }
        self.limits.change_turns(anew);
        self.turn = begun.len() as u32;
        self.turn < self.last_turn
    }

    /// Returns an error if the order is inconsistent, or does not have this many free and cached blocks. O(blocks).
    pub fn check(&self, [free, cached]: [u32; 2]) -> Result<(), String> {
        if self.blocks.check(FREE)? != free {
            return Err(format!("{free} blocks are free, their list has others"));
        }
        if let Some(block) = self.free().find(|&block| self.blocks[block].set != BlockState::Free) {
            return Err(format!("block {block} is in the list of free ones: {:?}", self.blocks[block]));
        }
        let mut met = self.limits.queue().len();
        for rank in 0..=RANK_MAX {
            let listed = self.blocks.check(FIRST_RANK + rank)?;
            if (listed > 0) != (self.ranks >> rank & 1 == 1) {
                return Err(format!("rank {rank} has {listed} blocks, its bit says otherwise"));
            }
            met += listed;
            let fits = |of: &Block| of.set == BlockState::Cached && of.rank == rank;
            if let Some(block) = self.blocks.iter(FIRST_RANK + rank).find(|&block| !fits(&self.blocks[block])) {
                return Err(format!("block {block} is in the list of rank {rank}: {:?}", self.blocks[block]));
            }
        }
        if met != cached {
            return Err(format!("{cached} blocks are cached, {met} are in the order"));
        }
        self.check_places()?;
        self.check_limits()
    }

    /// Checks that lists and queue agree with the place of each block's record. O(cached).
    fn check_places(&self) -> Result<(), String> {
        let (first, next) = (self.cached().next(), self.first_cached());
        if first != next {
            return Err(format!("block {next:?} is evicted next, {first:?} is first"));
        }
        let mut before = (0, 0, 0);
        for block in self.cached() {
            let place = self.place(block, self.score(block));
            if self.blocks[block].set != BlockState::Cached || place < before || place.2 > self.turn {
                return Err(format!("block {block} is at {place:?} behind {before:?} in turn {}", self.turn));
            }
            before = place;
        }
        match self.limits.queue().iter().find(|&(place, block)| place != self.place(block, place.1)) {
            Some((place, block)) => Err(format!("block {block} is queued at {place:?}: {:?}", self.blocks[block])),
            None => Ok(()),
        }
    }

    /// Checks that only blocks with content have limits, and that only cached ones are listed, with their rank.
    fn check_limits(&self) -> Result<(), String> {
        self.limits.check()?;
        for block in self.limits.blocks() {
            let (listed, of) = (self.limits.listed(block), self.blocks[block]);
            let fits = match of.set {
                BlockState::Active => listed.is_none(),
                BlockState::Cached => listed.is_none_or(|(rank, _)| rank.top == of.rank),
                BlockState::Free | BlockState::Retired => false,
            };
            if !fits {
                return Err(format!("block {block} has a limit, {listed:?}, and is {of:?}"));
            }
        }
        Ok(())
    }
}

impl std::ops::Index<u32> for Order {
    type Output = Block;

    #[inline]
    fn index(&self, block: u32) -> &Block {
        &self.blocks[block]
    }
}

impl std::ops::IndexMut<u32> for Order {
    #[inline]
    fn index_mut(&mut self, block: u32) -> &mut Block {
        &mut self.blocks[block]
    }
}
