//! The full blocks of a prompt one by one: the name of each, and the groups that have it. For tiers that restore the
//! others.
//!
//! Names are computed once: a later look-up hashes nothing. Clones share the names.
//!
//! O(tokens), plus O(blocks of the prompt) for each group.

use std::sync::Arc;

use super::group_index::{GroupIndex, block_size};
use super::identity::{Identity, Prompt};
use super::key::BlockKey;
use super::name::BlockName;
use super::needed::NeededBlocks;
use crate::error::{Result, reserve};
use crate::paged::window::Window;

const WHAT: &str = "blocks of a prompt";

/// The full blocks of a prompt that may be found; the last token is never among them.
#[derive(Clone, Debug)]
pub struct PromptBlocks {
    names: Arc<Names>,
    /// The window of each group.
    windows: Vec<Option<Window>>,
    found: Vec<Vec<Option<u32>>>,
}

/// The names of a prompt's blocks, and its tokens.
#[derive(Debug)]
struct Names {
    identity: Identity,
    keys: Vec<BlockKey>,
    /// All tokens of the prompt.
    tokens: Vec<u32>,
    extras: Vec<Vec<u8>>,
    size: usize,
}

impl PromptBlocks {
    /// Looks up all blocks in all groups.
    pub(in crate::paged) fn find(groups: &[GroupIndex<'_>], tokens: &[u32], identity: &Identity) -> Result<Self> {
        let size = block_size(groups)?;
        let prompt = identity.prompt(tokens);
        prompt.check()?;
        let blocks = prompt.blocks_max(size);
        let keys = prompt.keys(blocks, size)?;
        let (mut own, mut extras) = (Vec::new(), Vec::new());
        reserve(&mut own, tokens.len(), WHAT)?;
        own.extend_from_slice(tokens);
        reserve(&mut extras, blocks, WHAT)?;
        for place in 0..blocks {
            extras.push(prompt.extras.encoding((place * size) as u32..((place + 1) * size) as u32)?);
        }
        let names = Arc::new(Names { identity: identity.clone(), keys, tokens: own, extras, size });
        PromptBlocks { names, windows: Vec::new(), found: Vec::new() }.again(groups)
    }

    /// Looks up all blocks again, in groups that may have changed.
    pub(in crate::paged) fn again(&self, groups: &[GroupIndex<'_>]) -> Result<Self> {
        let Names { keys, size, .. } = &*self.names;
        let prompt = self.prompt();
        let mut found = Vec::new();
        reserve(&mut found, groups.len(), WHAT)?;
        for group in groups {
            let mut of_group = Vec::new();
            reserve(&mut of_group, keys.len(), WHAT)?;
            of_group.extend((0..keys.len()).map(|place| {
                let (parent, position) = (prompt.parent(keys, place), (place * size) as u32);
                group.index.find(&keys[place], parent, prompt.block(place, *size), position, prompt.extras)
            }));
            found.push(of_group);
        }
        let windows = groups.iter().map(|group| group.window).collect();
        Ok(PromptBlocks { names: self.names.clone(), windows, found })
    }

    pub(in crate::paged) fn identity(&self) -> &Identity {
        &self.names.identity
    }

    pub(in crate::paged) fn prompt(&self) -> Prompt<'_> {
        self.names.identity.prompt(&self.names.tokens)
    }

    pub(super) fn keys(&self) -> &[BlockKey] {
        &self.names.keys
    }

    /// The places that a prefix of `length` blocks needs in a group.
    pub(super) fn needed(&self, group: usize, length: usize) -> NeededBlocks {
        NeededBlocks::of(self.windows[group], length, self.names.size)
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.keys.len()
    }

    /// True if there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.keys.is_empty()
    }

    /// The key of the empty prefix, from which the keys of the blocks are computed.
    #[must_use]
    pub fn root(&self) -> &BlockKey {
        &self.names.identity.root
    }

    /// Number of groups of layers.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.windows.len()
    }

    /// The key of the block at a place.
    #[must_use]
    pub fn key(&self, place: usize) -> &BlockKey {
        &self.names.keys[place]
    }

    /// The name of the block at a place.
    #[must_use]
    pub fn name(&self, place: usize) -> BlockName<'_> {
        let Names { keys, extras, size, .. } = &*self.names;
        let prompt = self.prompt();
        let (parent, tokens) = (*prompt.parent(keys, place), prompt.block(place, *size));
        BlockName { key: keys[place], parent, tokens, extras: &extras[place] }
    }

    /// The block of a group in which the tokens at a place were found.
    #[must_use]
    pub fn found(&self, group: usize, place: usize) -> Option<u32> {
        self.found[group][place]
    }

    /// The longest prefix, of at most `most` blocks, for which each group has the blocks it needs: found ones, and
    /// those for which `there` returns true.
    pub fn reach(&self, most: usize, mut there: impl FnMut(usize, usize) -> bool) -> usize {
        let mut length = most.min(self.len());
        let mut missed = |length: usize| {
            (0..self.groups()).find_map(|group| {
                let has = |place: usize| self.found[group][place].is_some() || there(group, place);
                self.needed(group, length).missed(has)
            })
        };
        // A missing block ends every prefix between its place and this length.
        while let Some(shorter) = missed(length) {
            length = shorter;
        }
        length
    }

    /// The places that a prefix of `length` blocks needs in a group and that were not found, ascending.
    pub fn missing(&self, group: usize, length: usize) -> impl Iterator<Item = usize> {
        self.needed(group, length).places().filter(move |&place| self.found[group][place].is_none())
    }
}
