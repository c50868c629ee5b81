//! Prefixes: the cached part of a prompt, and checks for room for the rest.
//!
//! The last token is never taken from the cache, since its logits are needed. With a window, a prefix needs its sinks,
//! the tokens that the next token attends to, and the block of its own last token. A model whose layers form several
//! groups has a planner for each. O(tokens).

use super::paged_planner::PagedPlanner;
use crate::error::{Error, Result, reserve};
use crate::paged::index::{
    BlockKey, Explanation, GroupIndex, Identity, PrefixMatch, PromptBlocks, UnseenEvents, groups_of_tokens,
};
use crate::paged::sequence::HeldContent;

const WHAT: &str = "blocks of a prompt";

impl PagedPlanner {
    /// Finds the longest cached prefix of these tokens and holds its blocks. With `partial`, and without a window, it
    /// may end inside a block; the first writer to that block gets a copy.
    pub fn find(&mut self, tokens: &[u32], identity: &Identity, partial: bool) -> Result<HeldContent> {
        let held = find_in_groups(&mut [self], tokens, identity, partial)?.pop();
        Ok(held.expect("one group, one prefix"))
    }

    /// Returns the length of a prompt's cached prefix, and the reason why it ends there.
    pub fn explain(&self, tokens: &[u32], identity: &Identity) -> Result<Explanation> {
        explain_in_groups(&[self], tokens, identity)
    }

    /// True if there is room for `tokens` tokens of a new sequence and `watermark` more blocks.
    #[must_use]
    pub fn can_allocate(&self, tokens: u32, watermark: u32) -> bool {
        let needed = if self.keeps_states { tokens.min(1) } else { tokens.div_ceil(self.block_size()) };
        u64::from(needed) + u64::from(watermark) <= self.free_count().into()
    }

    /// The keys of the full blocks of a prompt, cached or not. O(tokens).
    pub fn keys(&self, tokens: &[u32], identity: &Identity) -> Result<Vec<BlockKey>> {
        identity.keys(tokens, self.block_size())
    }

    /// The keys of all cached blocks, in no order. O(blocks).
    pub fn indexed_keys(&self) -> Result<Vec<BlockKey>> {
        let (index, blocks) = (self.tables.pool().index(), self.tables.pool().blocks().touched());
        let mut keys = Vec::new();
        reserve(&mut keys, index.len() as usize, "sequences and blocks of a call")?;
        keys.extend((0..blocks).filter(|&block| index.is_indexed(block)).filter_map(|block| index.key(block)));
        Ok(keys)
    }

    /// The events of the prefix index from number `since` on.
    #[must_use]
    pub fn events(&self, since: u64) -> UnseenEvents<'_> {
        self.tables.pool().index().events().since(since)
    }

    /// Keeps the latest `capacity` events from now on.
    pub fn keep_events(&mut self, capacity: u32) {
        self.tables.pool_mut().keep_events(capacity);
    }

    /// Numbers events together with those of another planner, which is emptied at the same time and alone says so. Called
    /// before there are any.
    pub fn join_events(&mut self, other: &PagedPlanner) {
        self.tables.pool_mut().join_events(other.tables.pool().index());
    }

    /// Returns an error if ids differ from those that are known of a sequence's leading tokens, or if there are more
    /// ids than tokens.
    pub fn check_identify(&self, sequence: u64, tokens: &[u32]) -> Result<()> {
        let content = self.sequences.at(self.sequences.idle(sequence)?).content();
        if tokens.len() as u64 > content.length().into() {
            let expected = format!("at most {}, the length of the sequence", content.length());
            return Err(Error::argument("tokens.length", tokens.len(), expected));
        }
        if self.keeps_states {
            return self.check_identify_state(content, tokens);
        }
        match content.differs(tokens, &self.tables) {
            Some(at) => Err(Error::argument(
                "tokens",
                tokens[at as usize],
                format!("the ids of the sequence: another one is known at position {at}, or behind it in its window"),
            )),
            None => Ok(()),
        }
    }

    /// Records the ids of a sequence's leading tokens, so that prompts find its full blocks, and returns the number of
    /// leading tokens whose ids are known afterwards. Ids are not recorded for blocks that others hold and that have no
    /// ids or different ones, nor for tokens that were present when all prefixes were forgotten.
    pub fn identify(&mut self, sequence: u64, tokens: &[u32]) -> Result<u32> {
        self.check_identify(sequence, tokens)?;
        let seat = self.sequences.idle(sequence)?;
        self.changed();
        if self.keeps_states {
            self.sequences.at_mut(seat).reserve_checkpoint()?;
            return Ok(self.sequences.at_mut(seat).identify_state(tokens, &mut self.tables));
        }
        Ok(self.sequences.at_mut(seat).identify(tokens, &mut self.tables))
    }

    /// Forgets all prefixes: prompts find neither the present blocks nor blocks that follow them in a sequence or a
    /// snapshot. Blocks that are not held become free.
    pub fn forget_prefixes(&mut self) {
        self.tables.pool_mut().forget_prefixes();
        self.forgotten += 1;
        // Without the key of one block, the next block cannot get its own.
        self.sequences.iter_mut().for_each(|of| of.forget_before(self.forgotten));
        self.changed();
    }

    /// Number of times that all prefixes were forgotten. A key that was read at another count is no longer valid.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Holds the blocks of a match in this planner, which is one of its groups.
    fn hold_match(&mut self, found: &PrefixMatch, group: usize, identity: &Identity) -> Result<HeldContent> {
        let blocks = found.blocks(group);
        let names = [found.length().checked_sub(1), blocks.iter().rposition(Option::is_none)];
        let names = names.map(|place| place.map(|place| found.keys()[place]));
        self.hold_named(blocks, found.tokens(), identity, names)
    }

    /// True if this planner, one of a match's groups, has room for the rest of a prompt of this many tokens.
    fn has_room_for(&self, found: &PrefixMatch, group: usize, tokens: usize, watermark: u32) -> bool {
        let new = match self.keeps_states {
            true => u64::from(tokens > 0),
            false => (tokens.div_ceil(self.block_size() as usize) - found.length()) as u64,
        };
        new + self.revived(found, group) + u64::from(watermark) <= self.free_count().into()
    }

    /// Number of the match's blocks that are not held yet.
    pub(super) fn revived(&self, found: &PrefixMatch, group: usize) -> u64 {
        let blocks = self.tables.pool().blocks();
        found.blocks(group).iter().flatten().filter(|&&block| blocks.count(block) == 0).count() as u64
    }

    /// True if a sequence has this block at a place, with known tokens, but not yet its key. O(sequences), plus
    /// O(tokens without a key) for each sequence that is long enough.
    fn is_drafted(&self, key: &BlockKey, place: u32) -> bool {
        self.sequences.iter().any(|of| of.drafts_block(key, place, &self.tables))
    }
}

/// Finds the longest cached prefix of these tokens from which every group can continue, and holds its blocks in each
/// group. On an error, nothing is held. With `partial`, and without a window in any group, the prefix may end inside a
/// block.
pub fn find_in_groups(
    planners: &mut [&mut PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    partial: bool,
) -> Result<Vec<HeldContent>> {
    let found = look(planners, tokens, identity, partial)?;
    hold_found(planners, &found, tokens, identity)
}

/// Finds the longest cached prefix from which every group can continue, without holding it.
pub(super) fn look(
    planners: &[&mut PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    partial: bool,
) -> Result<PrefixMatch> {
    let (groups, prompt) = (asked_of(planners.iter().map(|planner| &**planner))?, identity.prompt(tokens));
    let mut found = PrefixMatch::find(&groups, prompt)?;
    if partial {
        found.add_rest(&groups, prompt);
    }
    Ok(found)
}

/// Holds the found prefix of a prompt in each group and counts it. On an error, nothing is held.
pub(super) fn hold_found(
    planners: &mut [&mut PagedPlanner],
    found: &PrefixMatch,
    tokens: &[u32],
    identity: &Identity,
) -> Result<Vec<HeldContent>> {
    let mut held: Vec<HeldContent> = Vec::new();
    let lost = lost_tokens(planners, found, tokens, identity)?;
    for (at, planner) in planners.iter_mut().enumerate() {
        match reserve(&mut held, 1, WHAT).and_then(|()| planner.hold_match(found, at, identity)) {
            Ok(of_group) => held.push(of_group),
            Err(refusal) => {
                planners.iter_mut().zip(held).for_each(|(planner, held)| planner.release(held));
                return Err(refusal);
            }
        }
    }
    for planner in planners {
        planner.counters.asked_tokens += tokens.len() as u64;
        planner.counters.found_tokens += u64::from(found.tokens());
        planner.counters.lost_tokens += lost;
    }
    Ok(held)
}

/// The tokens behind a found prefix that only groups of states lack.
fn lost_tokens(
    planners: &[&mut PagedPlanner],
    found: &PrefixMatch,
    tokens: &[u32],
    identity: &Identity,
) -> Result<u64> {
    let groups = asked_of(planners.iter().map(|planner| &**planner))?;
    let Some(of_tokens) = groups_of_tokens(&groups)? else { return Ok(0) };
    let cached = PrefixMatch::find(&of_tokens, identity.prompt(tokens))?.tokens();
    Ok(cached.saturating_sub(found.tokens()).into())
}

/// Returns the length of a prompt's prefix that is cached in all groups, and the reason why it ends there.
pub fn explain_in_groups(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity) -> Result<Explanation> {
    let groups = asked_of(planners.iter().copied())?;
    Explanation::new(&groups, identity.prompt(tokens), |at, key, place| planners[at].is_drafted(key, place))
}

/// True if every group has room for the rest of a prompt and for `watermark` more blocks. Found blocks that others hold
/// cost nothing, found blocks that are not held count, and a sliding group does not take blocks that it does not need.
pub fn can_allocate_in_groups(
    planners: &[&PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    watermark: u32,
) -> Result<bool> {
    let found = PrefixMatch::find(&asked_of(planners.iter().copied())?, identity.prompt(tokens))?;
    Ok(planners.iter().enumerate().all(|(at, planner)| planner.has_room_for(&found, at, tokens.len(), watermark)))
}

/// Returns the full blocks of a prompt one by one, and the groups in which they are cached.
pub fn prompt_in_groups(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity) -> Result<PromptBlocks> {
    PromptBlocks::find(&asked_of(planners.iter().copied())?, tokens, identity)
}

/// Looks up the blocks of a prompt again, under the same names, in the current content of the groups.
pub fn prompt_in_groups_again(planners: &[&PagedPlanner], blocks: &PromptBlocks) -> Result<PromptBlocks> {
    blocks.again(&asked_of(planners.iter().copied())?)
}

/// As [`find_in_groups`], for a prompt whose keys were computed before.
pub fn find_named_in_groups(
    planners: &mut [&mut PagedPlanner],
    blocks: &PromptBlocks,
    partial: bool,
) -> Result<Vec<HeldContent>> {
    let (groups, prompt) = (asked_of(planners.iter().map(|planner| &**planner))?, blocks.prompt());
    let mut found = PrefixMatch::named(&groups, blocks)?;
    if partial {
        found.add_rest(&groups, prompt);
    }
    hold_found(planners, &found, prompt.tokens, blocks.identity())
}

pub(super) fn asked_of<'a>(planners: impl ExactSizeIterator<Item = &'a PagedPlanner>) -> Result<Vec<GroupIndex<'a>>> {
    let mut groups = Vec::new();
    reserve(&mut groups, planners.len(), WHAT)?;
    groups.extend(planners.map(|planner| GroupIndex {
        index: planner.tables.pool().index(),
        window: planner.window,
        keeps_states: planner.keeps_states,
    }));
    Ok(groups)
}
