//! What of a prompt is there, in one group of layers or in several: a prefix counts as far as every group has what it needs of it.
//!
//! ```text
//! tokens     [ block 0 ][ block 1 ][ block 2 ][ block 3 ] next token
//! full           yes        yes        yes        yes          needs every block
//! sliding        sinks       -          yes        yes          needs what the next token sees, and its sinks
//! ```
//!
//! The block of the prefix's last token is needed in every group, also where the next token sees nothing of it: its key follows from
//! every token before, and so proves that the prompt was computed for those who ask. Names are the same in all groups, and made once.
//!
//! O(tokens), and for each group O(its blocks that are needed).

use super::identity::Prompt;
use super::key::BlockKey;
use super::needed::NeededBlocks;
use super::prefix_index::{FoundPrefix, PrefixIndex};
use crate::error::{Error, Result, reserve};
use crate::paged::window::Window;

const WHAT: &str = "blocks of a prompt";

/// A group of layers that is asked: what is found in it, and what its tokens see, where not all before them.
#[derive(Clone, Copy, Debug)]
pub struct GroupIndex<'a> {
    /// Where its blocks are found.
    pub index: &'a PrefixIndex,
    /// What its tokens see.
    pub window: Option<Window>,
}

/// What a prompt has in all groups.
#[derive(Debug)]
pub struct PrefixMatch {
    /// The names of its blocks, at least of those that count.
    keys: Vec<BlockKey>,
    /// Blocks that count.
    length: usize,
    /// Tokens of them, and of the start of a block behind them.
    tokens: u32,
    /// The blocks of each group up to there; none where a group needs none.
    blocks: Vec<Vec<Option<u32>>>,
}

impl PrefixMatch {
    /// The longest prefix for which every group has what the next token sees and the last token's block.
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
        // A block that is missed is missed by every prefix from there up to here.
        while let Some(missed) = others.iter_mut().find_map(|(_, lookup)| lookup.missed(length)) {
            length = missed;
        }
        let mut blocks: Vec<Vec<Option<u32>>> = Vec::new();
        reserve(&mut blocks, groups.len(), WHAT)?;
        blocks.resize(groups.len(), Vec::new());
        for of_group in &mut blocks {
            // The start of a block may follow.
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

    /// Adds the start of the block behind it, where no group has a window and each has one that begins with some of these tokens.
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
            // There is room for it.
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

/// Tokens of a block of all groups.
pub(super) fn block_size(groups: &[GroupIndex<'_>]) -> Result<usize> {
    match groups.first() {
        Some(group) => Ok(group.index.block_size() as usize),
        None => Err(Error::argument("groups.length", 0, "at least 1")),
    }
}

fn check_sizes(groups: &[GroupIndex<'_>], size: usize) -> Result<()> {
    match groups.iter().map(|group| group.index.block_size()).find(|&other| other as usize != size) {
        Some(other) => Err(Error::argument("blockSize", other, format!("{size}, as in the first group"))),
        None => Ok(()),
    }
}

/// What one group has of a prompt, looked up as it is asked.
struct Lookup<'a> {
    group: GroupIndex<'a>,
    prompt: Prompt<'a>,
    keys: &'a [BlockKey],
    size: usize,
    /// What was looked up: a block, or that there is none.
    blocks: Vec<Option<Option<u32>>>,
}

impl Lookup<'_> {
    /// A block that a prefix of `length` blocks needs and that is not there.
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
