//! A prompt's blocks one by one: what each is called, and which are found in which group. For those who bring the others from elsewhere.
//!
//! O(tokens), and for each group O(blocks of the prompt).

use super::identity::Prompt;
use super::key::BlockKey;
use super::name::BlockName;
use super::needed::NeededBlocks;
use super::prefix_match::{GroupIndex, block_size};
use crate::error::{Result, reserve};
use crate::paged::window::Window;

const WHAT: &str = "blocks of a prompt";

/// The whole blocks of a prompt that may be found: at most all tokens but the last.
#[derive(Clone, Debug)]
pub struct PromptBlocks {
    root: BlockKey,
    keys: Vec<BlockKey>,
    tokens: Vec<u32>,
    extras: Vec<Vec<u8>>,
    size: usize,
    /// Of each group.
    windows: Vec<Option<Window>>,
    found: Vec<Vec<Option<u32>>>,
}

impl PromptBlocks {
    /// Looks for all of them in all groups.
    pub(in crate::paged) fn find(groups: &[GroupIndex<'_>], prompt: Prompt<'_>) -> Result<Self> {
        let size = block_size(groups)?;
        prompt.check()?;
        let blocks = prompt.blocks_max(size);
        let keys = prompt.keys(blocks, size)?;
        let (mut tokens, mut extras, mut found) = (Vec::new(), Vec::new(), Vec::new());
        reserve(&mut tokens, blocks * size, WHAT)?;
        tokens.extend_from_slice(&prompt.tokens[..blocks * size]);
        reserve(&mut extras, blocks, WHAT)?;
        for place in 0..blocks {
            extras.push(prompt.extras.encoding((place * size) as u32..((place + 1) * size) as u32)?);
        }
        for group in groups {
            let mut of_group = Vec::new();
            reserve(&mut of_group, blocks, WHAT)?;
            of_group.extend((0..blocks).map(|place| {
                let (parent, position) = (prompt.parent(&keys, place), (place * size) as u32);
                group.index.find(&keys[place], parent, prompt.block(place, size), position, prompt.extras)
            }));
            found.push(of_group);
        }
        let windows = groups.iter().map(|group| group.window).collect();
        Ok(PromptBlocks { root: *prompt.root, keys, tokens, extras, size, windows, found })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key of no token, which those of its blocks are made from.
    #[must_use]
    pub fn root(&self) -> &BlockKey {
        &self.root
    }

    /// Groups of layers.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.windows.len()
    }

    /// The key of one.
    #[must_use]
    pub fn key(&self, place: usize) -> &BlockKey {
        &self.keys[place]
    }

    /// What one is found by.
    #[must_use]
    pub fn name(&self, place: usize) -> BlockName<'_> {
        let parent = place.checked_sub(1).map_or(self.root, |last| self.keys[last]);
        let tokens = &self.tokens[place * self.size..(place + 1) * self.size];
        BlockName { key: self.keys[place], parent, tokens, extras: &self.extras[place] }
    }

    /// The block of a group in which one was found.
    #[must_use]
    pub fn found(&self, group: usize, place: usize) -> Option<u32> {
        self.found[group][place]
    }

    /// The longest prefix, of at most `most` blocks, for which each group has what it needs: what was found, and what `there` says.
    pub fn reach(&self, most: usize, mut there: impl FnMut(usize, usize) -> bool) -> usize {
        let mut length = most.min(self.len());
        let mut missed = |length: usize| {
            (0..self.groups()).find_map(|group| {
                let has = |place: usize| self.found[group][place].is_some() || there(group, place);
                NeededBlocks::of(self.windows[group], length, self.size).missed(has)
            })
        };
        // A block that is missed is missed by every prefix from there up to here.
        while let Some(shorter) = missed(length) {
            length = shorter;
        }
        length
    }

    /// The places that a prefix of `length` blocks needs in a group and that were not found, ascending.
    pub fn missing(&self, group: usize, length: usize) -> impl Iterator<Item = usize> {
        let needed = NeededBlocks::of(self.windows[group], length, self.size);
        needed.places().filter(move |&place| self.found[group][place].is_none())
    }
}
