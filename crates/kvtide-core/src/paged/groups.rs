//! Prefixes of models whose layers lie in several groups: a prefix counts as far as every group has what it needs of it.
//!
//! ```text
//! tokens     [ block 0 ][ block 1 ][ block 2 ][ block 3 ] next token
//! full           yes        yes        yes        yes          needs every block
//! sliding        sinks       -          yes        yes          needs what the next token sees, and its sinks
//! ```
//!
//! The block of the prefix's last token is needed in every group, also where the next token sees nothing of it: its name follows
//! from every token before, so that it proves that the prompt was computed for those who ask. Without it, a window of the token
//! itself would find any prompt.
//!
//! A group is a planner of its own, with blocks of its own; all have the same tokens in a block and the same names for them, so
//! names are made once. What a sliding group does not need is a place without a block, whether it is there or not.
//!
//! O(tokens), and for each group O(its blocks that are needed).

use std::ops::Range;

use super::holding::{Held, last_gap};
use super::identity::Identity;
use super::prefix::{Explanation, Found, Key, Reason};
use super::sequences::PagedPlanner;
use crate::count::count;
use crate::error::{Error, Result};

/// What a prompt has in all groups.
struct Match {
    /// The names of its blocks, at least of those that count.
    keys: Vec<Key>,
    /// Blocks that count.
    length: usize,
    /// The blocks of each group up to there.
    blocks: Vec<Vec<Option<u32>>>,
}

/// The longest prefix of these tokens for which every group has what the next token sees and the last token's block, held, one [`Held`] for each
/// group; nothing is held where it is refused. With `partial` also the start of a block, where no group has a window.
pub fn find_in_groups(
    planners: &mut [&mut PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    partial: bool,
) -> Result<Vec<Held>> {
    let mut shared: Vec<&PagedPlanner> = Vec::new();
    reserve(&mut shared, planners.len())?;
    shared.extend(planners.iter().map(|planner| &**planner));
    let mut found = find(&shared, tokens, identity)?;
    let mut length = (found.length * shared[0].store.block_size as usize) as u32;
    if partial {
        match add_rest(&shared, tokens, identity, &mut found) {
            Some(same) => length += same,
            None => found.blocks.iter_mut().for_each(|blocks| blocks.truncate(found.length)),
        }
    }
    let mut held: Vec<Held> = Vec::new();
    for (at, planner) in planners.iter_mut().enumerate() {
        let blocks = &found.blocks[at];
        let names = [found.length.checked_sub(1), last_gap(blocks)].map(|place| place.map(|place| found.keys[place]));
        match reserve(&mut held, 1).and_then(|()| planner.hold_named(blocks, length, identity, names)) {
            Ok(of_group) => held.push(of_group),
            Err(refusal) => {
                planners.iter_mut().zip(held).for_each(|(planner, held)| planner.release(held));
                return Err(refusal);
            }
        }
    }
    planners.iter_mut().for_each(|planner| planner.count_found(tokens.len(), length));
    Ok(held)
}

/// How far a prompt is found in all groups, and why no further.
pub fn explain_in_groups(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity) -> Result<Explanation> {
    let found = find(planners, tokens, identity)?;
    let size = planners[0].store.block_size as usize;
    let matched = (found.length * size) as u32;
    if found.length == tokens.len().saturating_sub(1) / size {
        return Ok(Explanation { matched, missing: None });
    }
    let parent = found.length.checked_sub(1).map_or(identity.root, |last| found.keys[last]);
    let block = &tokens[found.length * size..(found.length + 1) * size];
    let key = parent.child(block, matched, &identity.extra);
    let lacks =
        |planner: &&&PagedPlanner| planner.store.index.find(&key, &parent, block, matched, &identity.extra).is_none();
    let has_full = planners.iter().any(|planner| planner.window.is_none());
    let lacking = planners.iter().filter(|planner| planner.window.is_none() == has_full).find(lacks);
    let reason = match lacking {
        Some(group) if group.is_drafted(&key, found.length as u32) => Reason::NotCommitted,
        Some(group) => {
            group.store.index.reason(&identity.root, &key, &tokens[..(found.length + 1) * size], &identity.extra)
        }
        None => Reason::WindowGone,
    };
    Ok(Explanation { matched, missing: Some((found.length as u32, reason)) })
}

/// Whether every group has room for what it lacks of a prompt, and for `watermark` blocks beside: of what is found there, blocks
/// that others hold cost nothing, those that nobody holds count, and what a sliding group does not need is no block.
pub fn can_allocate_in_groups(
    planners: &[&PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    watermark: u32,
) -> Result<bool> {
    let found = find(planners, tokens, identity)?;
    let size = planners[0].store.block_size as usize;
    let new = (tokens.len().div_ceil(size) - found.length) as u64;
    Ok(planners.iter().zip(&found.blocks).all(|(planner, blocks)| {
        let store = &planner.store.blocks;
        let revived = blocks.iter().flatten().filter(|&&block| store.count(block) == 0).count() as u64;
        new + revived + u64::from(watermark) <= store.available().into()
    }))
}

fn find(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity) -> Result<Match> {
    let Some(first) = planners.first() else {
        return Err(Error::argument("groups.length", 0, "at least 1"));
    };
    count("tokens.length", tokens.len() as u64)?;
    let size = first.store.block_size;
    if let Some(other) = planners.iter().find(|planner| planner.store.block_size != size) {
        return Err(Error::argument("blockSize", other.store.block_size, format!("{size}, as in the first group")));
    }
    let whole = &tokens[..tokens.len().saturating_sub(1) / size as usize * size as usize];
    let full = planners.iter().position(|planner| planner.window.is_none());
    let Found { keys, blocks: found } = match full {
        Some(full) => planners[full].store.index.find_prefix(&identity.root, tokens, &identity.extra)?,
        None => Found { keys: all_keys(whole, size, identity)?, blocks: Vec::new() },
    };
    let mut groups = Vec::new();
    reserve(&mut groups, planners.len())?;
    for (place, planner) in planners.iter().enumerate() {
        let mut blocks = Vec::new();
        reserve(&mut blocks, keys.len())?;
        if full == Some(place) {
            // Looked up with the keys.
            blocks.extend(found.iter().map(|&block| Some(Some(block))));
        }
        blocks.resize(keys.len(), None);
        groups.push(Group { planner, tokens: whole, identity, keys: &keys, blocks });
    }
    let mut length = keys.len();
    // A block that is missed is missed by every prefix from there up to here.
    while let Some(missed) = groups.iter_mut().find_map(|group| group.missed(length)) {
        length = missed;
    }
    let mut blocks = Vec::new();
    reserve(&mut blocks, groups.len())?;
    for mut group in groups {
        group.keep_needed(length);
        let mut of_group = Vec::new();
        reserve(&mut of_group, length + 1)?;
        of_group.extend(group.blocks.into_iter().map(Option::flatten));
        blocks.push(of_group);
    }
    Ok(Match { keys, length, blocks })
}

/// The names of whole blocks.
pub(super) fn all_keys(tokens: &[u32], size: u32, identity: &Identity) -> Result<Vec<Key>> {
    let (mut keys, mut last) = (Vec::new(), identity.root);
    reserve(&mut keys, tokens.len() / size as usize)?;
    for (block, position) in tokens.chunks_exact(size as usize).zip((0..).step_by(size as usize)) {
        last = last.child(block, position, &identity.extra);
        keys.push(last);
    }
    Ok(keys)
}

/// What one group has of a prompt.
struct Group<'a> {
    planner: &'a PagedPlanner,
    tokens: &'a [u32],
    identity: &'a Identity,
    keys: &'a [Key],
    /// What was looked up: a block, or that there is none.
    blocks: Vec<Option<Option<u32>>>,
}

impl Group<'_> {
    /// A block that a prefix of `length` blocks needs and that is not there.
    fn missed(&mut self, length: usize) -> Option<usize> {
        let (sinks, seen) = self.needed(length);
        match self.planner.window {
            // The first one that is not there ends the prefix; in a window the last one does.
            None => seen.into_iter().find(|&place| self.block(place).is_none()),
            Some(_) => seen.rev().chain(sinks).find(|&place| self.block(place).is_none()),
        }
    }

    /// The blocks with the sinks, and those that the next token sees up to the last one, of a prefix of `length` blocks.
    fn needed(&self, length: usize) -> (Range<usize>, Range<usize>) {
        let size = self.planner.store.block_size;
        let Some(window) = self.planner.window else { return (0..0, 0..length) };
        let sinks = (window.sinks().div_ceil(size) as usize).min(length);
        let first = (window.first_seen(length as u32 * size) / size) as usize;
        (0..sinks, first.min(length.saturating_sub(1)).max(sinks)..length)
    }

    fn block(&mut self, place: usize) -> Option<u32> {
        let size = self.planner.store.block_size as usize;
        *self.blocks[place].get_or_insert_with(|| {
            let parent = place.checked_sub(1).map_or(&self.identity.root, |before| &self.keys[before]);
            let (tokens, position) = (&self.tokens[place * size..(place + 1) * size], (place * size) as u32);
            self.planner.store.index.find(&self.keys[place], parent, tokens, position, &self.identity.extra)
        })
    }

    /// Forgets the blocks that a prefix of `length` blocks does not need.
    fn keep_needed(&mut self, length: usize) {
        let (sinks, seen) = self.needed(length);
        self.blocks.truncate(length);
        for (place, block) in self.blocks.iter_mut().enumerate() {
            if !sinks.contains(&place) && !seen.contains(&place) {
                *block = None;
            }
        }
    }
}

/// Adds the start of the block behind what was found, of every group; gives how many tokens of it all of them have.
fn add_rest(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity, found: &mut Match) -> Option<u32> {
    let size = planners[0].store.block_size as usize;
    let start = found.length * size;
    let rest = &tokens[start..tokens.len().saturating_sub(1).min(start + size).max(start)];
    let parent = found.length.checked_sub(1).map_or(&identity.root, |last| &found.keys[last]);
    if planners.iter().any(|planner| planner.window.is_some()) {
        return None;
    }
    let mut least = u32::MAX;
    for (planner, blocks) in planners.iter().zip(&mut found.blocks) {
        let (block, same) = planner.store.index.find_partial(parent, rest, start as u32, &identity.extra)?;
        // There is room for it.
        blocks.push(Some(block));
        least = least.min(same);
    }
    Some(least)
}

fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    list.try_reserve(more).map_err(|_| Error::OutOfMemory { count: more as u64, what: "blocks of a prompt" })
}
