//! The longest cached prefix of a prompt in one or several groups of layers: it is as long as every group has the
//! blocks it needs.
//!
//! ```text
//! tokens     [ block 0 ][ block 1 ][ block 2 ][ block 3 ] next token
//! full           yes        yes        yes        yes          needs every block
//! sliding        sinks       -          yes        yes          needs what the next token attends to, and its sinks
//! ```
//!
//! The block of the prefix's last token is needed in every group, even if the next token does not attend to it: its key
//! depends on every token before, and so proves that the prompt was computed for the same tenant. Keys are the same in
//! all groups, and computed once.
//!
//! O(tokens), plus O(needed blocks) for each group.

use super::group_index::{GroupIndex, block_size, check_sizes};
use super::identity::Prompt;
use super::key::BlockKey;
use super::needed::NeededBlocks;
use super::prefix_index::FoundPrefix;
use super::prompt_blocks::PromptBlocks;
use crate::error::{Result, reserve};

const WHAT: &str = "blocks of a prompt";

/// The cached prefix of a prompt in all groups.
#[derive(Debug)]
pub struct PrefixMatch {
    /// The keys of the prompt's blocks, at least of those in the prefix.
    keys: Vec<BlockKey>,
    /// Number of full blocks in the prefix.
    length: usize,
    /// Number of tokens in them, and in the start of a block behind them.
    tokens: u32,
    /// The blocks of each group in the prefix; [`None`] at places that a group does not need.
    blocks: Vec<Vec<Option<u32>>>,
}

impl PrefixMatch {
    /// Finds the longest prefix for which every group has the tokens that the next token attends to, and the last
    /// token's block.
    pub fn find(groups: &[GroupIndex<'_>], prompt: Prompt<'_>) -> Result<Self> {
        let size = block_size(groups)?;
        prompt.check()?;
        check_sizes(groups, size)?;
        let full = groups.iter().position(|group| group.window.is_none());
        let FoundPrefix { keys, blocks: of_full } = match full {
            Some(full) => groups[full].index.find_prefix(prompt.root, prompt.tokens, prompt.extras)?,
            None => FoundPrefix { keys: prompt.keys(prompt.blocks_max(size), size)?, blocks: Vec::new() },
        };
        let mut others = Vec::new();
        reserve(&mut others, groups.len(), WHAT)?;
        for (place, &group) in groups.iter().enumerate().filter(|(place, _)| Some(*place) != full) {
            let mut blocks = Vec::new();
            reserve(&mut blocks, keys.len(), WHAT)?;
            blocks.resize(keys.len(), None);
            others.push((place, Lookup { group, prompt, keys: &keys, size, blocks }));
        }
        let mut length = keys.len();
        // A missing block ends every prefix between its place and this length.
        while let Some(missed) = others.iter_mut().find_map(|(_, lookup)| lookup.missed(length)) {
            length = missed;
        }
        let mut blocks: Vec<Vec<Option<u32>>> = Vec::new();
        reserve(&mut blocks, groups.len(), WHAT)?;
        blocks.resize(groups.len(), Vec::new());
        for of_group in &mut blocks {
            // Leaves room for the start of one more block.
            reserve(of_group, length + 1, WHAT)?;
        }
        if let Some(full) = full {
            blocks[full].extend(of_full[..length].iter().copied().map(Some));
        }
        for (place, lookup) in others {
            blocks[place].extend(lookup.needed_blocks(length));
        }
        Ok(PrefixMatch { keys, length, tokens: (length * size) as u32, blocks })
    }

    /// As [`PrefixMatch::find`], for a prompt whose keys were computed before: nothing is hashed.
    pub fn named(groups: &[GroupIndex<'_>], blocks: &PromptBlocks) -> Result<Self> {
        check_sizes(groups, block_size(groups)?)?;
        let blocks = blocks.again(groups)?;
        let length = blocks.reach(blocks.len(), |_, _| false);
        let (mut keys, mut found) = (Vec::new(), Vec::new());
        reserve(&mut keys, length, WHAT)?;
        keys.extend_from_slice(&blocks.keys()[..length]);
        reserve(&mut found, groups.len(), WHAT)?;
        for group in 0..groups.len() {
            let (mut of_group, needed) = (Vec::new(), blocks.needed(group, length));
            // The start of the next block may follow.
            reserve(&mut of_group, length + 1, WHAT)?;
            of_group.extend((0..length).map(|place| blocks.found(group, place).filter(|_| needed.contains(place))));
            found.push(of_group);
        }
        let tokens = (length * block_size(groups)?) as u32;
        Ok(PrefixMatch { keys, length, tokens, blocks: found })
    }

    /// Adds the start of the next block, if no group has a window and each has a block that begins with some of the
    /// next tokens.
    pub fn add_rest(&mut self, groups: &[GroupIndex<'_>], prompt: Prompt<'_>) {
        if groups.iter().any(|group| group.window.is_some()) {
            return;
        }
        let mut least = u32::MAX;
        for (group, blocks) in groups.iter().zip(&mut self.blocks) {
            let keys = &self.keys[..self.length];
            let Some((block, same)) = group.index.find_rest(prompt.root, prompt.tokens, prompt.extras, keys) else {
                return self.blocks.iter_mut().for_each(|blocks| blocks.truncate(self.length));
            };
            // Memory for it is reserved.
            blocks.push(Some(block));
            least = least.min(same);
        }
        self.tokens += least;
    }

    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    pub fn length(&self) -> usize {
        self.length
    }

    pub fn blocks(&self, group: usize) -> &[Option<u32>] {
        &self.blocks[group]
    }

    pub fn keys(&self) -> &[BlockKey] {
        &self.keys[..self.length]
    }
}

/// The blocks of a prompt in one group, looked up when they are needed.
struct Lookup<'a> {
    group: GroupIndex<'a>,
    prompt: Prompt<'a>,
    keys: &'a [BlockKey],
    size: usize,
    /// The look-ups so far: a block, or that there is none.
    blocks: Vec<Option<Option<u32>>>,
}

impl Lookup<'_> {
    /// The place of a block that a prefix of `length` blocks needs and that is not cached.
    fn missed(&mut self, length: usize) -> Option<usize> {
        self.needed(length).missed(|place| self.block(place).is_some())
    }

    fn needed(&self, length: usize) -> NeededBlocks {
        NeededBlocks::of(self.group.window, length, self.size)
    }

    fn block(&mut self, place: usize) -> Option<u32> {
        let Lookup { group, prompt, keys, size, .. } = *self;
        *self.blocks[place].get_or_insert_with(|| {
            let (parent, position) = (prompt.parent(keys, place), (place * size) as u32);
            group.index.find(&keys[place], parent, prompt.block(place, size), position, prompt.extras)
        })
    }

    /// The blocks that a prefix of `length` blocks needs, at their places.
    fn needed_blocks(self, length: usize) -> impl Iterator<Item = Option<u32>> {
        let needed = self.needed(length);
        let blocks = self.blocks.into_iter().take(length).enumerate();
        blocks.map(move |(place, block)| block.flatten().filter(|_| needed.contains(place)))
    }
}
