//! Events of the prefix cache, for routers and other followers.
//!
//! ```text
//! tokens   the first group that keeps all tokens, which limits prompts most: prompts find these blocks
//! states   the first group of states: prompts can continue at the end of these blocks
//! numbers  0 t   1 t   2 s   3 t   4 s ...     both draw from one counter
//! ```
//!
//! A cache without states has events of tokens alone, and a cache of states alone has no others. O(events), or O(blocks)
//! for the whole content.

use std::collections::HashSet;

use kvtide_core::paged::{BlockKey, BlockName, Event, UnseenEvents};

use super::cache::PagedKvCache;
use super::saved::FoundBlocks;
use crate::base::error::Result;
use crate::paged::PageGroup;

/// The content of the blocks of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockContent {
    /// Keys and values of tokens.
    Tokens,
    /// A state after the last token of the block.
    States,
}

/// The groups whose events followers get, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowedGroups {
    /// The group of tokens; [`None`] if there are states alone.
    pub tokens: Option<usize>,
    /// The group of states, if there is one.
    pub states: Option<usize>,
}

/// The events of a cache that a reader has not seen yet.
#[derive(Clone, Debug)]
pub struct UnseenCacheEvents<'a> {
    /// Number of events that are gone.
    pub missed: u64,
    /// The number of the first event returned.
    pub first: u64,
    /// The number to pass to the next call.
    pub next: u64,
    tokens: Option<UnseenEvents<'a>>,
    states: Option<UnseenEvents<'a>>,
}

impl<'a> UnseenCacheEvents<'a> {
    /// The events, oldest first, numbered from `first` on without gaps.
    pub fn iter(&self) -> impl Iterator<Item = (BlockContent, &'a Event)> + use<'a> {
        let first = self.first;
        let of = |unseen: &Option<UnseenEvents<'a>>| {
            let numbered = unseen.as_ref().map(UnseenEvents::numbered).into_iter().flatten();
            numbered.skip_while(move |&(number, _)| number < first).peekable()
        };
        let (mut tokens, mut states) = (of(&self.tokens), of(&self.states));
        std::iter::from_fn(move || {
            let is_state = match (tokens.peek(), states.peek()) {
                (Some((token, _)), Some((state, _))) => state < token,
                (None, state) => state.is_some(),
                (Some(_), None) => false,
            };
            let kept = if is_state { BlockContent::States } else { BlockContent::Tokens };
            let next = if is_state { states.next() } else { tokens.next() };
            next.map(|(_, event)| (kept, event))
        })
    }
}

impl PagedKvCache {
    /// The groups of [`PagedKvCache::events`].
    #[must_use]
    pub fn followed_groups(&self) -> FollowedGroups {
        followed(&self.groups)
    }

    /// The cache events from a number on.
    #[must_use]
    pub fn events(&self, since: u64) -> UnseenCacheEvents<'_> {
        let FollowedGroups { tokens, states } = self.followed_groups();
        let unseen = |group: Option<usize>| group.map(|group| self.groups[group].planner().events(since));
        let (tokens, states) = (unseen(tokens), unseen(states));
        let most = |of: fn(&UnseenEvents<'_>) -> u64| tokens.iter().chain(&states).map(of).max().unwrap_or(0);
        let (missed, first, next) = (most(|of| of.missed), most(|of| of.first), most(|of| of.next));
        UnseenCacheEvents { missed, first, next, tokens, states }
    }

    /// The keys of all cached blocks in the group of tokens of [`PagedKvCache::events`], in no order. O(blocks).
    pub fn indexed_keys(&self) -> Result<Vec<BlockKey>> {
        self.keys_in(self.followed_groups().tokens)
    }

    /// The keys of the blocks at whose end there is a state, in no order; [`None`] if the cache keeps none. O(slots).
    pub fn state_keys(&self) -> Result<Option<Vec<BlockKey>>> {
        let states = self.followed_groups().states;
        states.map(|group| self.keys_in(Some(group))).transpose()
    }

    fn keys_in(&self, group: Option<usize>) -> Result<Vec<BlockKey>> {
        Ok(group.map(|group| self.groups[group].planner().indexed_keys()).transpose()?.unwrap_or_default())
    }

    /// The content of the groups of [`PagedKvCache::events`] as events, and the number of the next event. Blocks of tokens
    /// come after their parents, without blocks whose parent is not cached; states follow. O(blocks).
    pub fn found_events(&mut self) -> Result<(Vec<(BlockContent, Event)>, u64)> {
        let mut found = self.found_blocks()?;
        let FollowedGroups { tokens, states } = self.followed_groups();
        let (mut events, mut told) = (Vec::new(), HashSet::new());
        for (kept, group) in [(BlockContent::Tokens, tokens), (BlockContent::States, states)] {
            let Some(group) = group else { continue };
            self.each_found(&mut found, group, |BlockName { key, parent, tokens, .. }, is_first| {
                if kept == BlockContent::States || is_first || told.contains(&parent) {
                    told.insert(key);
                    events.push((kept, Event::Stored { key, parent, tokens: tokens.into(), is_first }));
                }
            });
        }
        Ok((events, self.events(0).next))
    }

    /// Calls for each cached block of a group, with true if it is the first of its prompts.
    fn each_found(&self, found: &mut FoundBlocks, group: usize, mut call: impl FnMut(BlockName<'_>, bool)) {
        let size = self.block_size() as usize;
        let (names, blocks) = found.take_group(group);
        let order = names.in_order();
        let planner = self.groups[group].planner();
        let firsts: Vec<bool> = order.iter().map(|&row| planner.is_first_block(blocks[row as usize].0)).collect();
        let names = names.at(&order, size);
        for (name, is_first) in names.iter(size).zip(firsts) {
            call(name, is_first);
        }
    }
}

fn followed(groups: &[PageGroup]) -> FollowedGroups {
    let states = groups.iter().position(PageGroup::keeps_states);
    let of_tokens = &groups[..states.unwrap_or(groups.len())];
    let is_full = |group: &PageGroup| group.planner().window().is_none();
    let tokens = of_tokens.iter().position(is_full).or((!of_tokens.is_empty()).then_some(0));
    FollowedGroups { tokens, states }
}

/// Numbers the events of the followed groups together.
pub(super) fn join_events(groups: &mut [PageGroup]) {
    if let FollowedGroups { tokens: Some(tokens), states: Some(states) } = followed(groups) {
        let (before, from) = groups.split_at_mut(states);
        from[0].join_events(before[tokens].planner());
    }
}
