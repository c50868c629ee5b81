//! A group of layers whose blocks are published, and the blocks that followers were told of.
//!
//! A cache without states publishes one group without a number. A cache with states numbers its groups and names the kind
//! of each, as vLLM does: `full_attention`, and `mamba` for states of any kind. A router that reads `mamba` counts a
//! prefix up to its last state; one that does not know it skips these events.

use std::collections::{HashMap, VecDeque};

use kvtide_core::paged::{BlockKey, Event as CacheEvent};
use kvtide_router::{BlockHash, Event, RemovedBlocks, StoredBlocks, Tier};
use kvtide_tensor::{BlockContent, FollowedGroups, PagedKvCache};
use kvtide_tiers::TierEvent;

/// Number of blocks that are remembered although no tier has them, because one may still be on its way to a tier.
const GONE_BLOCKS: usize = 1 << 16;

/// The groups of a cache that are published: of tokens, of states, or both.
pub(super) struct Published {
    sides: Vec<Side>,
}

impl Published {
    pub(super) fn of(cache: &PagedKvCache) -> Self {
        let FollowedGroups { tokens, states } = cache.followed_groups();
        let block_size = cache.block_size();
        let side = |kept, group: Option<usize>| {
            group.map(|group| Side {
                kept,
                group,
                is_labelled: states.is_some(),
                block_size,
                known: KnownBlocks::default(),
            })
        };
        Published {
            sides: [side(BlockContent::Tokens, tokens), side(BlockContent::States, states)]
                .into_iter()
                .flatten()
                .collect(),
        }
    }

    /// The groups, by their places in the cache.
    pub(super) fn groups(&self) -> Vec<usize> {
        self.sides.iter().map(|side| side.group).collect()
    }

    /// The beginning of everything that is published anew: nothing is there, and which groups there are.
    pub(super) fn anew(&mut self) -> Vec<Event> {
        let announced = self.sides.iter().filter(|side| side.is_labelled).map(|side| side.stored(None, &[], Tier::Gpu));
        let events = std::iter::once(Event::Cleared).chain(announced).collect();
        self.clear();
        events
    }

    fn clear(&mut self) {
        self.sides.iter_mut().for_each(|side| side.known.clear());
    }

    /// Converts an event of the cache's own blocks.
    pub(super) fn of_cache(&mut self, kept: BlockContent, event: &CacheEvent) -> Option<Event> {
        if *event == CacheEvent::Cleared {
            self.clear();
            return Some(Event::Cleared);
        }
        self.sides.iter_mut().find(|side| side.kept == kept).and_then(|side| side.of_cache(event))
    }

    /// Converts an event of a tier. [`None`] for a store, whose blocks belong to no single worker, and for a block whose
    /// parent is unknown.
    pub(super) fn of_tier(&mut self, event: &TierEvent, tier: &str) -> Option<Event> {
        self.sides.iter_mut().find(|side| side.group == event.group)?.of_tier(event, tier)
    }

    /// Forgets the oldest blocks that are in no tier. Called after all events that happened together have been
    /// converted.
    pub(super) fn forget(&mut self) {
        self.sides.iter_mut().for_each(|side| side.known.forget());
    }
}

/// One published group.
struct Side {
    kept: BlockContent,
    group: usize,
    /// True if events say the group's number and kind.
    is_labelled: bool,
    block_size: u32,
    known: KnownBlocks,
}

impl Side {
    /// They count as blocks of the accelerator, whichever memory they are in.
    fn of_cache(&mut self, event: &CacheEvent) -> Option<Event> {
        match event {
            CacheEvent::Stored { key, parent, tokens, is_first } => {
                // A state's parent need not be cached, and then only its tag is known.
                let parent = (!is_first && !parent.is_tag()).then(|| parent.short());
                self.known.add(key, parent, Tier::Gpu);
                Some(self.stored(parent, &[(key, &**tokens)], Tier::Gpu))
            }
            CacheEvent::Removed { key } => Some(self.removed(key, Tier::Gpu)),
            CacheEvent::Cleared => None,
        }
    }

    fn of_tier(&mut self, event: &TierEvent, tier: &str) -> Option<Event> {
        let tier = match tier {
            "memory" => Tier::Cpu,
            "disk" => Tier::Disk,
            _ => return None,
        };
        let parent = self.known.parent(&event.key)?;
        Some(match &event.tokens {
            Some(tokens) => {
                self.known.add(&event.key, parent, tier);
                self.stored(parent, &[(&event.key, &tokens[..])], tier)
            }
            None => self.removed(&event.key, tier),
        })
    }

    fn stored(&self, parent: Option<u64>, blocks: &[(&BlockKey, &[u32])], tier: Tier) -> Event {
        // The kind of a group that slides would make routers skip it.
        let kind = match self.kept {
            BlockContent::Tokens => "full_attention",
            BlockContent::States => "mamba",
        };
        Event::Stored(StoredBlocks {
            hashes: blocks.iter().map(|(key, _)| key.short().into()).collect(),
            parent: parent.map(BlockHash::from),
            tokens: blocks.iter().flat_map(|(_, tokens)| *tokens).copied().collect(),
            block_size: self.block_size,
            medium: Some(tier.medium().to_owned()),
            group: self.number(),
            spec_kind: self.is_labelled.then(|| kind.to_owned()),
            ..StoredBlocks::default()
        })
    }

    /// As in vLLM, the kind is not repeated.
    fn removed(&mut self, key: &BlockKey, tier: Tier) -> Event {
        self.known.remove(key, tier);
        let medium = Some(tier.medium().to_owned());
        let (hashes, group) = (vec![key.short().into()], self.number());
        Event::Removed(RemovedBlocks { hashes, medium, group, ..RemovedBlocks::default() })
    }

    fn number(&self) -> Option<u32> {
        self.is_labelled.then_some(self.group as u32)
    }
}

/// Published blocks that are in some tier, with their parents: a tier does not know the parent of a block.
#[derive(Default)]
struct KnownBlocks {
    blocks: HashMap<u64, Known>,
    /// Blocks that may be in no tier any more, the oldest first. An evicted block may still be on its way to a tier,
    /// which reports it later.
    gone: VecDeque<u64>,
}

struct Known {
    parent: Option<u64>,
    /// One bit for each tier that has the block.
    tiers: u8,
}

fn bit(tier: Tier) -> u8 {
    1 << tier as u8
}

impl KnownBlocks {
    fn clear(&mut self) {
        self.blocks.clear();
    }

    fn add(&mut self, key: &BlockKey, parent: Option<u64>, tier: Tier) {
        self.blocks.entry(key.short()).or_insert(Known { parent, tiers: 0 }).tiers |= bit(tier);
    }

    /// The parent of a known block.
    fn parent(&self, key: &BlockKey) -> Option<Option<u64>> {
        self.blocks.get(&key.short()).map(|known| known.parent)
    }

    fn remove(&mut self, key: &BlockKey, tier: Tier) {
        if let Some(known) = self.blocks.get_mut(&key.short()) {
            known.tiers &= !bit(tier);
            self.gone.push_back(key.short());
        }
    }

    fn forget(&mut self) {
        while self.gone.len() > GONE_BLOCKS
            && let Some(key) = self.gone.pop_front()
        {
            if self.blocks.get(&key).is_some_and(|known| known.tiers == 0) {
                self.blocks.remove(&key);
            }
        }
    }
}
