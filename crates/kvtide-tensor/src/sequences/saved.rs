//! Saving and loading: cached prefixes, and sequences.
//!
//! ```text
//! found_blocks -> read ... -> gone          keys first, then bytes from any thread; blocks that were evicted meanwhile are left out
//! saved_sequence -> read ...                held, so that it stays unchanged
//! new_blocks -> write ... -> name_blocks    or settle_sequence; dropping them before that leaves no trace
//! ```
//!
//! The cache stays in use meanwhile: other calls wait at most for single pieces of 1 MiB. O(blocks) here, O(bytes) for the
//! reads and writes.

use std::collections::HashMap;

use kvtide_core::paged::{BlockKey, BlockName, PageFormat, PageLayout, SavedContent, SavedRow};

use super::cache::PagedKvCache;
use super::prefix_namer::{PrefixNamer, PromptOptions};
use crate::base::error::{Error, Result};
use crate::paged::{Hold, PageGroup, PageReader, PageWriter, StagedPage};

/// The names of blocks, as parallel lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockNames {
    /// Their keys.
    pub keys: Vec<BlockKey>,
    /// The keys of the prefixes before them; if a prefix is not cached any more, the [tag](BlockKey::tag) of its key.
    pub parents: Vec<BlockKey>,
    /// Their tokens, all of each block.
    pub tokens: Vec<u32>,
    /// The encoded extras of each block.
    pub extras: Vec<Vec<u8>>,
}

impl BlockNames {
    /// The number of names; each list has as many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The names at these indices.
    #[must_use]
    pub fn at(&self, rows: &[u32], block_size: usize) -> Self {
        let rows = || rows.iter().map(|&row| row as usize);
        BlockNames {
            keys: rows().map(|row| self.keys[row]).collect(),
            parents: rows().map(|row| self.parents[row]).collect(),
            tokens: rows().flat_map(|row| &self.tokens[row * block_size..][..block_size]).copied().collect(),
            extras: rows().map(|row| self.extras[row].clone()).collect(),
        }
    }

    /// The indices of all names, none before its parent: followers of the prefix cache get their events in this order.
    pub(super) fn in_order(&self) -> Vec<u32> {
        let places: HashMap<&BlockKey, usize> = self.keys.iter().zip(0..).collect();
        let (mut order, mut done) = (Vec::with_capacity(self.len()), vec![false; self.len()]);
        let mut line = Vec::new();
        for row in 0..self.len() {
            let mut next = Some(row);
            while let Some(row) = next.filter(|&row| !done[row]) {
                done[row] = true;
                line.push(row as u32);
                next = places.get(&self.parents[row]).copied();
            }
            order.extend(line.drain(..).rev());
        }
        order
    }

    fn push(&mut self, name: &BlockName<'_>) {
        self.keys.push(name.key);
        self.parents.push(name.parent);
        self.tokens.extend(name.tokens);
        self.extras.push(name.extras.to_vec());
    }

    pub(super) fn iter(&self, block_size: usize) -> impl ExactSizeIterator<Item = BlockName<'_>> {
        let lists = self.keys.iter().zip(&self.parents).zip(self.tokens.chunks_exact(block_size)).zip(&self.extras);
        lists.map(|(((key, parent), tokens), extras)| BlockName { key: *key, parent: *parent, tokens, extras })
    }
}

/// The blocks in the prefix cache of each group, in the order of eviction.
#[derive(Debug)]
pub struct FoundBlocks {
    /// Their names.
    pub names: Vec<BlockNames>,
    /// Their bytes.
    pub pages: Vec<PageReader>,
    /// The keys of the empty prefixes before them: a hint for explanations of misses.
    pub roots: Vec<BlockKey>,
    /// The blocks, and how often each had lost its key.
    blocks: Vec<Vec<(u32, u32)>>,
    cache: u64,
}

impl FoundBlocks {
    /// Takes the names of a group out, and its blocks with the number of times that each had lost its key.
    pub(super) fn take_group(&mut self, group: usize) -> (BlockNames, Vec<(u32, u32)>) {
        (std::mem::take(&mut self.names[group]), std::mem::take(&mut self.blocks[group]))
    }

    /// Replaces tags by whole parent keys, found among the keys of all groups and the roots. If a window has dropped the
    /// parent, its tag stays.
    fn find_parents(&mut self, block_size: usize) {
        let mut by_tag: HashMap<BlockKey, Vec<BlockKey>> = HashMap::new();
        for key in self.names.iter().flat_map(|names| &names.keys).chain(&self.roots) {
            let keys = by_tag.entry(key.tag()).or_default();
            if !keys.contains(key) {
                keys.push(*key);
            }
        }
        for names in &mut self.names {
            let parent = |name: BlockName<'_>| {
                let found = by_tag.get(&name.parent)?.iter().find(|parent| name.follows(parent));
                found.copied()
            };
            let parents = names.iter(block_size).map(|name| parent(name).unwrap_or(name.parent)).collect();
            names.parents = parents;
        }
    }
}

/// The content of a sequence in one group.
#[derive(Debug)]
pub struct SavedGroup<Pages = PageReader> {
    /// Its tokens and the places of its blocks.
    pub content: SavedContent,
    /// The bookkeeping of each block.
    pub rows: Vec<SavedRow>,
    /// Its staging pages.
    pub staged: Vec<StagedPage>,
    /// The bytes of its blocks.
    pub pages: Pages,
}

/// New blocks in each group that are not visible yet.
#[derive(Debug)]
pub struct NewBlocks {
    /// Their bytes.
    pub pages: Vec<PageWriter>,
    held: Vec<Hold>,
    cache: u64,
    /// The count of forgotten prefix caches at the time the content of the blocks was requested.
    since: u64,
}

impl NewBlocks {
    /// Says that the content was requested earlier, when prefixes had been [forgotten](PagedKvCache::forgotten) this often.
    /// If they were forgotten since, prompts cannot hit it.
    #[must_use]
    pub fn since(mut self, forgotten: u64) -> Self {
        self.since = self.since.min(forgotten);
        self
    }

    /// The number of their cache.
    pub(super) fn cache(&self) -> u64 {
        self.cache
    }
}

impl PagedKvCache {
    /// The namer of its block keys.
    #[must_use]
    pub fn namer(&self) -> &PrefixNamer {
        &self.namer
    }

    /// True for K, and for V, if it is rotated before it is quantised.
    #[must_use]
    pub fn rotated(&self) -> [bool; 2] {
        self.form.rotated
    }

    /// The formats of K and V in pages.
    #[must_use]
    pub fn formats(&self) -> [PageFormat; 2] {
        self.form.formats
    }

    /// The layout of each group's staging pages.
    pub fn staged_layouts(&self) -> impl Iterator<Item = PageLayout> + '_ {
        self.groups.iter().map(|group| group.shape().staged)
    }

    /// True if there is nothing in the cache.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        let is_used = |group: &PageGroup| group.planner().pool_stats().free < group.planner().total_count();
        !self.groups.iter().any(is_used) && self.sequence_ids().is_empty()
    }

    /// True if a block with this key is cached in a group.
    #[must_use]
    pub fn is_found(&self, group: usize, key: &BlockKey) -> bool {
        self.groups[group].planner().is_found(key)
    }

    /// Makes keys from now on under the secret of saved blocks, which was not given by the caller. Fails if the cache is not
    /// empty.
    pub fn adopt_key(&mut self, key: [u8; 32]) -> Result<()> {
        if !self.is_unused() {
            return Err(Error::argument("prefixKey", "another", "the key of the cache, which is not empty"));
        }
        self.namer.adopt(key);
        Ok(())
    }

    /// The cached blocks, for reading in the background. They are not held: [`PagedKvCache::gone`] returns those that were
    /// evicted meanwhile.
    pub fn found_blocks(&mut self) -> Result<FoundBlocks> {
        self.collect()?;
        let (id, roots) = (self.id, self.first().planner().roots().to_vec());
        let mut found = FoundBlocks { names: Vec::new(), pages: Vec::new(), roots, blocks: Vec::new(), cache: id };
        for group in &mut self.groups {
            let (pages, blocks) = (group.found_pages()?, group.planner().found_blocks()?);
            let mut names = BlockNames::default();
            for &block in &blocks {
                names.push(&group.planner().block_name(block).expect("a block that is found"));
            }
            found.blocks.push(blocks.iter().map(|&block| (block, group.planner().name_losses(block))).collect());
            found.names.push(names);
            found.pages.push(pages);
        }
        found.find_parents(self.block_size() as usize);
        Ok(found)
    }

    /// The rows of each group that are no longer cached, or were cached anew: bytes that were read of them may be wrong.
    pub fn gone(&self, found: &FoundBlocks) -> Result<Vec<Vec<u32>>> {
        self.check_held(found.cache)?;
        let gone = |(group, blocks): (&PageGroup, &Vec<(u32, u32)>)| {
            let planner = group.planner();
            let is_gone = |&(_, (block, losses)): &(u32, &(u32, u32))| planner.name_losses(*block) != *losses;
            (0..).zip(blocks).filter(is_gone).map(|(row, _)| row).collect()
        };
        Ok(self.groups.iter().zip(&found.blocks).map(gone).collect())
    }

    /// The content of a sequence, for reading in the background: it stays unchanged while the readers live. Tokens of an
    /// open step are not included; fails while a transaction is open.
    pub fn saved_sequence(&mut self, sequence: u64) -> Result<Vec<SavedGroup>> {
        self.check_all(|group| Ok(group.planner().check_undrafted(sequence)?))?;
        let held = self.groups.iter_mut().map(|group| group.snapshot(sequence)).collect::<Result<Vec<_>>>()?;
        let saved = self.groups.iter_mut().zip(held).map(|(group, hold)| {
            let (content, rows, pages, staged) = group.held_pages(hold)?;
            Ok(SavedGroup { content, rows, staged, pages })
        });
        saved.collect()
    }

    /// Takes this many new blocks in each group for content that is loaded; free cached blocks are evicted for them.
    pub fn new_blocks(&mut self, rows: &[u32]) -> Result<NewBlocks> {
        let places: Vec<Vec<u32>> = rows.iter().map(|&rows| (0..rows).collect()).collect();
        let mut new =
            self.new_at(&places.iter().zip(rows).map(|(of, &length)| (&of[..], length)).collect::<Vec<_>>())?;
        // Blocks are released from the last to the first.
        new.pages.iter_mut().for_each(PageWriter::reverse);
        Ok(new)
    }

    /// Takes new blocks for a saved sequence.
    pub fn new_blocks_of(&mut self, groups: &[&SavedContent]) -> Result<NewBlocks> {
        let size = self.block_size();
        let at = groups.iter().map(|saved| (&saved.places[..], saved.length.div_ceil(size)));
        self.new_at(&at.collect::<Vec<_>>())
    }

    pub(super) fn new_at(&mut self, groups: &[(&[u32], u32)]) -> Result<NewBlocks> {
        self.check_groups(groups.len())?;
        self.check_all(|_| Ok(()))?;
        let since = self.forgotten();
        let mut new = NewBlocks { pages: Vec::new(), held: Vec::new(), cache: self.id, since };
        let is_one = self.groups.len() == 1;
        for (at, (group, (places, length))) in self.groups.iter_mut().zip(groups).enumerate() {
            let made = group.new_pages(places, *length);
            let (hold, pages) = made.map_err(|error| if is_one { error } else { error.in_group(at) })?;
            new.held.push(hold);
            new.pages.push(pages);
        }
        Ok(new)
    }

    /// True if some group has to evict cached blocks to get this many new ones.
    #[must_use]
    pub fn must_evict_for(&self, rows: &[usize]) -> bool {
        let lacks = |(group, &rows): (&PageGroup, &usize)| (group.planner().pool_stats().free as usize) < rows;
        self.groups.iter().zip(rows).any(lacks)
    }

    /// True if prefixes were not forgotten since the content was requested; otherwise the blocks get no keys.
    pub(super) fn is_current(&self, new: &NewBlocks) -> bool {
        new.since == self.forgotten()
    }

    /// Makes new blocks, whose bytes were all written, visible to prompts; the first rows are evicted first, once `new` is
    /// dropped. Returns false, and names none, if prefixes were forgotten since the content was requested.
    pub fn name_blocks(&mut self, new: &NewBlocks, names: &[BlockNames], roots: &[BlockKey]) -> Result<bool> {
        self.check_held(new.cache)?;
        self.check_groups(names.len())?;
        let size = self.block_size() as usize;
        let mut all = new.pages.iter().zip(names);
        self.check_all(|group| {
            let (pages, names) = all.next().expect("names for each group");
            group.check_names(pages, names.iter(size))
        })?;
        if !self.is_current(new) {
            return Ok(false);
        }
        for ((group, pages), names) in self.groups.iter_mut().zip(&new.pages).zip(names) {
            group.note_roots(roots);
            let order = names.in_order();
            group.name_pages(pages, &order, names.at(&order, size).iter(size))?;
        }
        Ok(true)
    }

    /// Creates a sequence of new blocks, whose bytes were all written. Prompts with `options` can hit it if these are the
    /// options it was saved with and prefixes were not forgotten since the content was requested. With staging pages, fails
    /// with `BUSY`, and changes nothing, while another thread computes a step.
    pub fn settle_sequence(
        &mut self,
        new: &NewBlocks,
        saved: &[SavedGroup<()>],
        options: PromptOptions<'_>,
    ) -> Result<u64> {
        self.check_held(new.cache)?;
        self.check_saved(saved)?;
        let identity = self.namer.identity(options)?;
        if saved.iter().any(|of| !of.staged.is_empty()) {
            self.check_pages()?;
        }
        for ((group, pages), of) in self.groups.iter_mut().zip(&new.pages).zip(saved) {
            group.stage_saved(pages, &of.staged)?;
        }
        let mut parts = new.held.iter().zip(saved);
        self.each(|group| {
            let (hold, of) = parts.next().expect("a part for each group");
            group.settle(hold, &of.content, &of.rows, identity.clone(), new.since)
        })
    }

    /// Checks that this can have been saved from a cache like this one.
    pub fn check_saved(&mut self, saved: &[SavedGroup<()>]) -> Result<()> {
        self.check_groups(saved.len())?;
        if let Some(other) = saved.iter().find(|of| of.content.length != saved[0].content.length) {
            let expected = format!("{}, as in the first group", saved[0].content.length);
            return Err(Error::argument("length", other.content.length, expected));
        }
        let mut parts = saved.iter();
        self.check_all(|group| {
            let of = parts.next().expect("a part for each group");
            group.check_saved(&of.content, &of.rows, &of.staged)
        })
    }

    fn check_groups(&self, given: usize) -> Result<()> {
        match self.groups.len() {
            groups if groups == given => Ok(()),
            groups => Err(Error::argument("groups.length", given, groups.to_string())),
        }
    }
}
