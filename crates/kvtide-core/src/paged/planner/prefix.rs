//! Prefixes: how much of a prompt is in the cache, and whether there is room for the rest.
//!
//! The last token is never found, since its logits are needed. With a window, a prefix needs its sinks, what the next token sees and
//! the block of its own last token. A model whose layers lie in several groups has a planner for each. O(tokens).

use super::paged_planner::PagedPlanner;
use crate::error::{Error, Result, reserve};
use crate::paged::index::{BlockKey, Explanation, GroupIndex, Identity, PrefixMatch, PromptBlocks, UnseenEvents};
use crate::paged::sequence::HeldContent;

const WHAT: &str = "blocks of a prompt";

impl PagedPlanner {
    /// Finds the longest prefix of these tokens and holds its blocks. With `partial`, and without a window, it may
    /// end inside a block, which its first writer gets a copy of.
    pub fn find(&mut self, tokens: &[u32], identity: &Identity, partial: bool) -> Result<HeldContent> {
        let held = find_in_groups(&mut [self], tokens, identity, partial)?.pop();
        Ok(held.expect("one group, one prefix"))
    }

    /// How far a prompt is found, and why no further.
    pub fn explain(&self, tokens: &[u32], identity: &Identity) -> Result<Explanation> {
        explain_in_groups(&[self], tokens, identity)
    }

    /// Whether there is room for `tokens` tokens of a new sequence and `watermark` blocks besides.
    #[must_use]
    pub fn can_allocate(&self, tokens: u32, watermark: u32) -> bool {
        let needed = tokens.div_ceil(self.block_size());
        u64::from(needed) + u64::from(watermark) <= self.free_count().into()
    }

    /// The keys of the whole blocks of a prompt, cached or not. O(tokens).
    pub fn keys(&self, tokens: &[u32], identity: &Identity) -> Result<Vec<BlockKey>> {
        identity.keys(tokens, self.block_size())
    }

    /// The keys of all blocks that can be found, in no order. O(blocks).
    pub fn indexed_keys(&self) -> Result<Vec<BlockKey>> {
        let (index, blocks) = (self.tables.pool().index(), self.tables.pool().blocks().touched());
        let mut keys = Vec::new();
        reserve(&mut keys, index.len() as usize, "sequences and blocks of a call")?;
        keys.extend((0..blocks).filter(|&block| index.is_indexed(block)).filter_map(|block| index.key(block)));
        Ok(keys)
    }

    /// The events of the prefix index from a number on.
    #[must_use]
    pub fn events(&self, since: u64) -> UnseenEvents<'_> {
        self.tables.pool().index().events().since(since)
    }

    /// Keeps the latest `capacity` events from now on.
    pub fn keep_events(&mut self, capacity: u32) {
        self.tables.pool_mut().keep_events(capacity);
    }

    /// Refuses ids that differ from those that are known of a sequence's leading tokens, or more than it has tokens.
    pub fn check_identify(&self, sequence: u64, tokens: &[u32]) -> Result<()> {
        let content = self.sequences.at(self.sequences.idle(sequence)?).content();
        if tokens.len() as u64 > content.length().into() {
            let expected = format!("at most {}, the length of the sequence", content.length());
            return Err(Error::argument("tokens.length", tokens.len(), expected));
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

    /// Notes the ids of a sequence's leading tokens, and says of how many they are known then: prompts find their full blocks from now
    /// on. Not those of blocks that others hold and that have no ids or others, nor what was there when all prefixes were forgotten.
    pub fn identify(&mut self, sequence: u64, tokens: &[u32]) -> Result<u32> {
        self.check_identify(sequence, tokens)?;
        let seat = self.sequences.idle(sequence)?;
        self.changed();
        Ok(self.sequences.at_mut(seat).identify(tokens, &mut self.tables))
    }

    /// Forgets all prefixes: no block that is there now is found any more, nor what follows it in a sequence or a
    /// snapshot. Blocks that nobody holds become free.
    pub fn forget_prefixes(&mut self) {
        self.tables.pool_mut().forget_prefixes();
        self.forgotten += 1;
        // Without the key of one block, the next one cannot get its own.
        self.sequences.iter_mut().for_each(|of| of.forget_before(self.forgotten));
        self.changed();
    }

    /// Holds the blocks that a match has in this planner, which is one of its groups.
    fn hold_match(&mut self, found: &PrefixMatch, group: usize, identity: &Identity) -> Result<HeldContent> {
        let blocks = found.blocks(group);
        let names = [found.length().checked_sub(1), blocks.iter().rposition(Option::is_none)];
        let names = names.map(|place| place.map(|place| found.keys()[place]));
        self.hold_named(blocks, found.tokens(), identity, names)
    }

    /// Whether this planner, one of a match's groups, has room for the rest of a prompt of so many tokens.
    fn has_room_for(&self, found: &PrefixMatch, group: usize, tokens: usize, watermark: u32) -> bool {
        let new = (tokens.div_ceil(self.block_size() as usize) - found.length()) as u64;
        new + self.revived(found, group) + u64::from(watermark) <= self.free_count().into()
    }

    /// The blocks of a match that nobody holds yet.
    pub(super) fn revived(&self, found: &PrefixMatch, group: usize) -> u64 {
        let blocks = self.tables.pool().blocks();
        found.blocks(group).iter().flatten().filter(|&&block| blocks.count(block) == 0).count() as u64
    }

    /// Whether a sequence has this block at a place, with known tokens, but not yet its key. O(sequences), and
    /// O(tokens without a key) of those that are long enough.
    fn is_drafted(&self, key: &BlockKey, place: u32) -> bool {
        self.sequences.iter().any(|of| of.drafts_block(key, place, &self.tables))
    }
}

/// Finds the longest prefix of these tokens from which every group can continue, and holds its blocks in each group, or nothing where
/// it is refused. With `partial`, and without a window in any group, the prefix may end inside a block.
pub fn find_in_groups(
    planners: &mut [&mut PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    partial: bool,
) -> Result<Vec<HeldContent>> {
    let found = look(planners, tokens, identity, partial)?;
    hold_found(planners, &found, tokens, identity)
}

/// The longest prefix that every group can continue from; nothing is held.
pub(super) fn look(
    planners: &[&mut PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    partial: bool,
) -> Result<PrefixMatch> {
    let (groups, prompt) = (asked(planners.iter().map(|planner| &**planner))?, identity.prompt(tokens));
    let mut found = PrefixMatch::find(&groups, prompt)?;
    if partial {
        found.add_rest(&groups, prompt);
    }
    Ok(found)
}

/// Holds what was found of a prompt in each group, or nothing where it is refused, and counts it.
pub(super) fn hold_found(
    planners: &mut [&mut PagedPlanner],
    found: &PrefixMatch,
    tokens: &[u32],
    identity: &Identity,
) -> Result<Vec<HeldContent>> {
    let mut held: Vec<HeldContent> = Vec::new();
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
    }
    Ok(held)
}

/// How far all groups find a prompt, and why no further.
pub fn explain_in_groups(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity) -> Result<Explanation> {
    let groups = asked(planners.iter().copied())?;
    Explanation::new(&groups, identity.prompt(tokens), |at, key, place| planners[at].is_drafted(key, place))
}

/// Whether every group has room for the rest of a prompt and for `watermark` blocks besides. Found blocks that others
/// hold cost nothing, those that nobody holds count, and those that a sliding group does not need are not taken.
pub fn can_allocate_in_groups(
    planners: &[&PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    watermark: u32,
) -> Result<bool> {
    let found = PrefixMatch::find(&asked(planners.iter().copied())?, identity.prompt(tokens))?;
    Ok(planners.iter().enumerate().all(|(at, planner)| planner.has_room_for(&found, at, tokens.len(), watermark)))
}

/// The whole blocks of a prompt one by one, and where they are found.
pub fn prompt_in_groups(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity) -> Result<PromptBlocks> {
    PromptBlocks::find(&asked(planners.iter().copied())?, identity.prompt(tokens))
}

fn asked<'a>(planners: impl ExactSizeIterator<Item = &'a PagedPlanner>) -> Result<Vec<GroupIndex<'a>>> {
    let mut groups = Vec::new();
    reserve(&mut groups, planners.len(), WHAT)?;
    groups.extend(planners.map(|planner| GroupIndex { index: planner.tables.pool().index(), window: planner.window }));
    Ok(groups)
}
