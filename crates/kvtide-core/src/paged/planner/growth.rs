//! Growth: checks if enough blocks are available for sequences that append a given number of tokens each.
//!
//! ```text
//! sequence 7   [ its blocks ][ rest of its tokens: new blocks ]      each block that others hold too is copied: one more
//! sequence 9   [ a prefix that it takes over: blocks that are not held count ][ rest: new blocks ]
//! ```
//!
//! In a group without a window the answer is exact. In a group with a window, a sequence releases blocks while it
//! grows, and the number of blocks it has at once depends on how its tokens are divided into steps. If there are other
//! sequences, the most blocks it may have count; if it is alone, the least it must have. Nothing changes. O(blocks at
//! the ends of the sequences), and O(tokens) for a prefix.

use super::paged_planner::PagedPlanner;
use super::prefix::asked_of;
use crate::error::{BlockHolders, Result};
use crate::paged::index::{Identity, PrefixMatch};
use crate::paged::sequence::Sequence;

/// A sequence and the number of tokens that it appends.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// The sequence.
    pub sequence: u64,
    /// Tokens to append behind the present ones.
    pub tokens: u32,
}

/// The demands of growing sequences.
#[derive(Clone, Copy, Debug)]
pub struct GrowthRequest<'a> {
    /// The sequences, each once.
    pub growing: &'a [Growth],
    /// The prompt of the last sequence, if its cached prefix is longer than the sequence: the sequence takes that
    /// prefix over first.
    pub prompt: Option<(&'a [u32], &'a Identity)>,
    /// The most tokens of a sequence that are appended at once.
    pub step: u32,
    /// Number of blocks that must stay free in addition. [`None`] if the last sequence may take all blocks: then the
    /// least blocks it must have count.
    pub watermark: Option<u32>,
}

/// The shortage of a group's blocks for the growth of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The number of the group.
    pub group: usize,
    /// Blocks to take, including the watermark.
    pub needed: u64,
    /// Blocks that can be taken.
    pub free: u64,
    /// The holders of the other blocks.
    pub holders: BlockHolders,
}

/// The first group that has too few blocks for the growth of these sequences.
pub fn shortage_in_groups(planners: &[&PagedPlanner], asked: GrowthRequest<'_>) -> Result<Option<Shortage>> {
    let found = match asked.prompt {
        Some((tokens, identity)) => {
            Some(PrefixMatch::find(&asked_of(planners.iter().copied())?, identity.prompt(tokens))?)
        }
        None => None,
    };
    for (group, planner) in planners.iter().enumerate() {
        let mut needed = u64::from(asked.watermark.unwrap_or(0));
        for (place, growth) in asked.growing.iter().enumerate() {
            let of = planner.sequences.find(growth.sequence)?;
            let taken_over =
                found.as_ref().filter(|found| place + 1 == asked.growing.len() && found.tokens() > of.length());
            needed += match taken_over {
                Some(found) => planner.growth_from(found, group, of, growth.tokens, asked),
                None => planner.growth(of, growth.tokens, asked),
            };
        }
        let free = u64::from(planner.free_count());
        if needed > free {
            return Ok(Some(Shortage { group, needed, free, holders: planner.state().holders() }));
        }
    }
    Ok(None)
}

impl PagedPlanner {
    /// Blocks that a sequence takes to append tokens, including copies of blocks that others hold.
    fn growth(&self, of: &Sequence, tokens: u32, asked: GrowthRequest<'_>) -> u64 {
        if self.keeps_states {
            return u64::from(tokens > 0);
        }
        let (size, table) = (self.block_size(), of.table());
        let all = (of.length() + tokens).div_ceil(size);
        let is_shared = |place: u32, block: u32| self.tables.is_held_twice(table, place, block);
        let held = |counts: &dyn Fn(u32, u32) -> bool| {
            (0..table.len())
                .filter(|&place| self.tables.get(table, place).is_some_and(|block| counts(place, block)))
                .count() as u32
        };
        let new = all.saturating_sub(table.len());
        // A transaction keeps blocks that leave the window.
        let new = match self.at_once(of.length() + tokens, tokens, asked).filter(|_| of.drafts().depth() == 0) {
            None => new,
            Some(AtOnce::Least(blocks)) => new.min(blocks.saturating_sub(held(&|_, _| true))),
            // A block that others hold too does not become free when it leaves the window.
            Some(AtOnce::Most(blocks)) => {
                new.min(blocks.saturating_sub(held(&|place, block| !is_shared(place, block))))
            }
        };
        let written = of.length() / size..if tokens > 0 { all.min(table.len()) } else { 0 };
        let copied =
            written.filter(|&place| self.tables.get(table, place).is_some_and(|block| is_shared(place, block)));
        u64::from(new) + copied.count() as u64
    }

    /// Like `growth`, for a sequence that first releases its blocks and takes a prefix over.
    fn growth_from(
        &self,
        found: &PrefixMatch,
        group: usize,
        of: &Sequence,
        tokens: u32,
        asked: GrowthRequest<'_>,
    ) -> u64 {
        let (blocks, table) = (found.blocks(group), of.table());
        if self.keeps_states {
            let own = table.len().checked_sub(1).and_then(|place| Some((place, self.tables.get(table, place)?)));
            let is_given_back = own.is_some_and(|(place, slot)| !self.tables.is_held_twice(table, place, slot));
            return self.revived(found, group) + 1 - u64::from(is_given_back);
        }
        let total = of.length() + tokens;
        let new = total.div_ceil(self.block_size()).saturating_sub(found.length() as u32);
        let revived = self.revived(found, group);
        let new = match self.at_once(total, total.saturating_sub(found.tokens()), asked) {
            None => new,
            Some(AtOnce::Least(least)) => new.min(least.saturating_sub(blocks.iter().flatten().count() as u32)),
            Some(AtOnce::Most(most)) => new.min(most.saturating_sub(revived as u32)),
        };
        let given_back = (0..table.len()).filter(|&place| {
            self.tables.get(table, place).is_some_and(|block| {
                !self.tables.is_held_twice(table, place, block) && blocks.get(place as usize) != Some(&Some(block))
            })
        });
        (u64::from(new) + revived).saturating_sub(given_back.count() as u64)
    }

    /// The blocks that a sequence of `total` tokens has at once, in a group with a window, when it appends the last
    /// `tokens` of them.
    fn at_once(&self, total: u32, tokens: u32, asked: GrowthRequest<'_>) -> Option<AtOnce> {
        let (window, size) = (self.window?, self.block_size());
        if asked.watermark.is_none() {
            return Some(AtOnce::Least(total.min(window.tokens()).div_ceil(size)));
        }
        let seen = window.tokens().saturating_add(asked.step.min(tokens).max(1));
        let most = (seen - 1).div_ceil(size).saturating_add(1);
        Some(AtOnce::Most(most.saturating_add(window.sinks().div_ceil(size))))
    }
}

/// The number of blocks of a sequence in a group with a window.
enum AtOnce {
    /// The sequence has this many at the end.
    Least(u32),
    /// The sequence never has more.
    Most(u32),
}
