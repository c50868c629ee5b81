//! Prefixes: what of a prompt is in the cache already, and whether there is room for the rest.
//!
//! ```text
//! held = planner.find(tokens, &identity, partial)?     its blocks are held until it is released or made a sequence
//! ```
//!
//! At most all tokens but the last are found, since its logits are needed. With a window, a prefix needs its sinks, what the next
//! token sees and the block of its own last token. Of a model whose layers lie in several groups, each is a planner, and a prefix counts
//! as far as all of them have it; a planner by itself is one group. O(tokens).

use super::paged_planner::PagedPlanner;
use crate::error::{Result, reserve};
use crate::paged::index::{BlockKey, Explanation, GroupIndex, Identity, PrefixMatch, UnseenEvents};
use crate::paged::sequence::HeldContent;

/// What is written down of a call.
const WHAT: &str = "blocks of a prompt";

impl PagedPlanner {
    /// The longest prefix of these tokens that is there, its blocks held; with `partial` also the start of a block, which its
    /// first writer gets a copy of, where there is no window.
    pub fn find(&mut self, tokens: &[u32], identity: &Identity, partial: bool) -> Result<HeldContent> {
        let held = find_in_groups(&mut [self], tokens, identity, partial)?.pop();
        Ok(held.expect("one group, one prefix"))
    }

    /// How far a prompt is found, and why no further.
    pub fn explain(&self, tokens: &[u32], identity: &Identity) -> Result<Explanation> {
        explain_in_groups(&[self], tokens, identity)
    }

    /// Whether there is room for `tokens` tokens of a new sequence, and `watermark` blocks beside.
    #[must_use]
    pub fn can_allocate(&self, tokens: u32, watermark: u32) -> bool {
        let needed = tokens.div_ceil(self.block_size());
        u64::from(needed) + u64::from(watermark) <= self.free_count().into()
    }

    /// The same for a prompt whose start may be there: blocks that others hold cost nothing, those that nobody holds count.
    pub fn can_allocate_prompt(&self, tokens: &[u32], identity: &Identity, watermark: u32) -> Result<bool> {
        can_allocate_in_groups(&[self], tokens, identity, watermark)
    }

    /// The names of the whole blocks of a prompt, whether they are there or not. O(tokens).
    pub fn keys(&self, tokens: &[u32], identity: &Identity) -> Result<Vec<BlockKey>> {
        identity.keys(tokens, self.block_size())
    }

    /// The names of all blocks that can be found, in no order. O(blocks).
    pub fn indexed_keys(&self) -> Result<Vec<BlockKey>> {
        let (index, blocks) = (self.tables.pool().index(), self.tables.pool().blocks().touched());
        let mut keys = Vec::new();
        reserve(&mut keys, index.len() as usize, "sequences and blocks of a call")?;
        keys.extend((0..blocks).filter(|&block| index.is_indexed(block)).filter_map(|block| index.key(block)));
        Ok(keys)
    }

    /// What happened to the blocks that are found by their tokens, from a number on.
    #[must_use]
    pub fn events(&self, since: u64) -> UnseenEvents<'_> {
        self.tables.pool().index().events().since(since)
    }

    /// Keeps the latest `capacity` events from now on.
    pub fn keep_events(&mut self, capacity: u32) {
        self.tables.pool_mut().keep_events(capacity);
    }

    /// Nothing that is there is found by its tokens any more, nor what follows it in a sequence or a snapshot; blocks that nobody
    /// holds are free.
    pub fn forget_prefixes(&mut self) {
        self.tables.pool_mut().forget_prefixes();
        self.forgotten += 1;
        // What follows blocks without keys is found by none.
        self.sequences.iter_mut().for_each(|of| of.forget_before(self.forgotten));
        self.changed();
    }

    /// Holds what was found in this planner, of these groups.
    fn hold_match(&mut self, found: &PrefixMatch, group: usize, identity: &Identity) -> Result<HeldContent> {
        let blocks = found.blocks(group);
        let names = [found.length().checked_sub(1), blocks.iter().rposition(Option::is_none)];
        let names = names.map(|place| place.map(|place| found.keys()[place]));
        self.hold_named(blocks, found.tokens(), identity, names)
    }

    /// Counts a prompt that was looked for.
    fn count_found(&mut self, asked: usize, found: u32) {
        self.counters.asked_tokens += asked as u64;
        self.counters.found_tokens += u64::from(found);
    }

    /// Whether there is room for what a prompt of so many tokens lacks beside what was found in this planner, of these groups.
    fn has_room_for(&self, found: &PrefixMatch, group: usize, tokens: usize, watermark: u32) -> bool {
        let blocks = self.tables.pool().blocks();
        let new = (tokens.div_ceil(self.block_size() as usize) - found.length()) as u64;
        let revived = found.blocks(group).iter().flatten().filter(|&&block| blocks.count(block) == 0).count() as u64;
        new + revived + u64::from(watermark) <= blocks.available().into()
    }

    /// Whether a sequence has the block of this key at a place, its tokens known, and it has no key yet. O(sequences), and O(tokens
    /// without a key) of those that have so many.
    fn is_drafted(&self, key: &BlockKey, place: u32) -> bool {
        self.sequences.iter().any(|of| of.drafts_block(key, place, &self.tables))
    }
}

/// The longest prefix of these tokens for which every group has what the next token sees and the last token's block, held, one [`HeldContent`]
/// for each group; nothing is held where it is refused. With `partial` also the start of a block, where no group has a window.
pub fn find_in_groups(
    planners: &mut [&mut PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    partial: bool,
) -> Result<Vec<HeldContent>> {
    let found = {
        let (groups, prompt) = (asked(planners.iter().map(|planner| &**planner))?, identity.prompt(tokens));
        let mut found = PrefixMatch::find(&groups, prompt)?;
        if partial {
            found.add_rest(&groups, prompt);
        }
        found
    };
    let mut held: Vec<HeldContent> = Vec::new();
    for (at, planner) in planners.iter_mut().enumerate() {
        match reserve(&mut held, 1, WHAT).and_then(|()| planner.hold_match(&found, at, identity)) {
            Ok(of_group) => held.push(of_group),
            Err(refusal) => {
                planners.iter_mut().zip(held).for_each(|(planner, held)| planner.release(held));
                return Err(refusal);
            }
        }
    }
    planners.iter_mut().for_each(|planner| planner.count_found(tokens.len(), found.tokens()));
    Ok(held)
}

/// How far a prompt is found in all groups, and why no further.
pub fn explain_in_groups(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity) -> Result<Explanation> {
    let groups = asked(planners.iter().copied())?;
    Explanation::new(&groups, identity.prompt(tokens), |at, key, place| planners[at].is_drafted(key, place))
}

/// Whether every group has room for what it lacks of a prompt, and for `watermark` blocks beside: of what is found there, blocks
/// that others hold cost nothing, those that nobody holds count, and what a sliding group does not need is no block.
pub fn can_allocate_in_groups(
    planners: &[&PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    watermark: u32,
) -> Result<bool> {
    let found = PrefixMatch::find(&asked(planners.iter().copied())?, identity.prompt(tokens))?;
    Ok(planners.iter().enumerate().all(|(at, planner)| planner.has_room_for(&found, at, tokens.len(), watermark)))
}

/// Planners as groups that are asked.
fn asked<'a>(planners: impl ExactSizeIterator<Item = &'a PagedPlanner>) -> Result<Vec<GroupIndex<'a>>> {
    let mut groups = Vec::new();
    reserve(&mut groups, planners.len(), WHAT)?;
    groups.extend(planners.map(|planner| GroupIndex { index: planner.tables.pool().index(), window: planner.window }));
    Ok(groups)
}
