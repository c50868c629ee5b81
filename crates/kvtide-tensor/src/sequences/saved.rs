//! What leaves a cache to be kept elsewhere, and comes back: blocks that prompts find, and sequences.
//!
//! ```text
//! found_blocks -> read ... -> gone          names first, then bytes from any thread; what made room meanwhile does not count
//! saved_sequence -> read ...                held, so that it stays as it is
//! new_blocks -> write ... -> name_blocks    or settle_sequence; dropped before that, nothing is left
//! ```
//!
//! The cache goes on meanwhile: nobody waits but for single pieces of at most 1 MiB. O(blocks) here, O(bytes) there.

use std::collections::{HashMap, HashSet};

use kvtide_core::paged::{BlockKey, BlockName, Event, PageLayout, SavedContent, SavedRow};

use super::cache::PagedKvCache;
use super::prefix_namer::{PrefixNamer, PromptOptions};
use crate::base::error::{Error, Result};
use crate::paged::{Hold, PageGroup, PageReader, PageWriter, StagedPage};

/// Names of blocks, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockNames {
    /// Their keys.
    pub keys: Vec<BlockKey>,
    /// The keys of the prefixes before them; of one that is not there any more the [tag](BlockKey::tag).
    pub parents: Vec<BlockKey>,
    /// Their tokens, all of each.
    pub tokens: Vec<u32>,
    /// The extras over each, encoded.
    pub extras: Vec<Vec<u8>>,
}

impl BlockNames {
    /// How many there are; each list has as many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Some of them.
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

    /// All of them, none before the one that it follows: so do those hear of them who follow what prompts find.
    fn in_order(&self) -> Vec<u32> {
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

    fn iter(&self, block_size: usize) -> impl ExactSizeIterator<Item = BlockName<'_>> {
        let lists = self.keys.iter().zip(&self.parents).zip(self.tokens.chunks_exact(block_size)).zip(&self.extras);
        lists.map(|(((key, parent), tokens), extras)| BlockName { key: *key, parent: *parent, tokens, extras })
    }
}

/// The blocks that prompts find, in each group: those that make room first first.
#[derive(Debug)]
pub struct FoundBlocks {
    /// Their names.
    pub names: Vec<BlockNames>,
    /// Their bytes.
    pub pages: Vec<PageReader>,
    /// Under which keys of no token they are found: a hint for explanations.
    pub roots: Vec<BlockKey>,
    /// The blocks, and how often each had lost its name.
    blocks: Vec<Vec<(u32, u32)>>,
    cache: u64,
}

impl FoundBlocks {
    /// Looks for whole parents: among the names of all groups, and the roots. Where a window let go of one, its tag stays.
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

/// What one group holds of a sequence.
#[derive(Debug)]
pub struct SavedGroup<Pages = PageReader> {
    /// What it has, and where.
    pub content: SavedContent,
    /// What is known of each block.
    pub rows: Vec<SavedRow>,
    /// Pages that lie in floats.
    pub staged: Vec<StagedPage>,
    /// The bytes of its blocks.
    pub pages: Pages,
}

/// New blocks in each group that nobody sees yet.
#[derive(Debug)]
pub struct NewBlocks {
    /// Their bytes.
    pub pages: Vec<PageWriter>,
    held: Vec<Hold>,
    cache: u64,
}

impl NewBlocks {
    /// Of which cache they are.
    pub(super) fn cache(&self) -> u64 {
        self.cache
    }
}

impl PagedKvCache {
    /// How its blocks are named.
    #[must_use]
    pub fn namer(&self) -> &PrefixNamer {
        &self.namer
    }

    /// Whether K is rotated before it is quantised.
    #[must_use]
    pub fn hadamard(&self) -> bool {
        self.first().shape().hadamard
    }

    /// The layouts of pages that lie in floats, of each group.
    pub fn staged_layouts(&self) -> impl Iterator<Item = PageLayout> + '_ {
        self.groups.iter().map(|group| group.shape().staged)
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        let is_used = |group: &PageGroup| group.planner().pool_stats().free < group.planner().total_count();
        !self.groups.iter().any(is_used) && self.sequence_ids().is_empty()
    }

    /// Whether prompts find a block of this name in a group.
    #[must_use]
    pub fn is_found(&self, group: usize, key: &BlockKey) -> bool {
        self.groups[group].planner().is_found(key)
    }

    /// Names blocks from now on as those that were saved under a key that nobody chose. Refused once there is something in the cache.
    pub fn adopt_key(&mut self, key: [u8; 32]) -> Result<()> {
        if !self.is_unused() {
            return Err(Error::argument("prefixKey", "another", "that of the cache, in which something is already"));
        }
        self.namer.adopt(key);
        Ok(())
    }

    /// What prompts find, to be read in the background. Nothing is held: what makes room meanwhile is named by [`PagedKvCache::gone`].
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

    /// What prompts find as events: no block before the one that it follows, and those that follow nothing that is found left out. And
    /// the number of the event that comes next. Of the group whose events [`PagedKvCache::events`] has. O(blocks).
    pub fn found_events(&mut self) -> Result<(Vec<Event>, u64)> {
        let (size, group) = (self.block_size() as usize, self.followed_group());
        let mut found = self.found_blocks()?;
        let (names, blocks) = (found.names.swap_remove(group), found.blocks.swap_remove(group));
        let order = names.in_order();
        let planner = self.groups[group].planner();
        let firsts: Vec<bool> = order.iter().map(|&row| planner.is_first_block(blocks[row as usize].0)).collect();
        let names = names.at(&order, size);
        let mut told: HashSet<BlockKey> = HashSet::new();
        let mut events = Vec::new();
        for (name, is_first) in names.iter(size).zip(firsts) {
            if is_first || told.contains(&name.parent) {
                told.insert(name.key);
                let BlockName { key, parent, tokens, .. } = name;
                events.push(Event::Stored { key, parent, tokens: tokens.into(), is_first });
            }
        }
        Ok((events, self.events(0).next))
    }

    /// The rows of each group that are not found any more, or anew: what was read of them is not what they were.
    pub fn gone(&self, found: &FoundBlocks) -> Result<Vec<Vec<u32>>> {
        self.check_held(found.cache)?;
        let gone = |(group, blocks): (&PageGroup, &Vec<(u32, u32)>)| {
            let planner = group.planner();
            let is_gone = |&(_, (block, losses)): &(u32, &(u32, u32))| planner.name_losses(*block) != *losses;
            (0..).zip(blocks).filter(is_gone).map(|(row, _)| row).collect()
        };
        Ok(self.groups.iter().zip(&found.blocks).map(gone).collect())
    }

    /// What a sequence holds, to be read in the background: it stays as it is while the readers live. Refused while a transaction or a
    /// step is open on it.
    pub fn saved_sequence(&mut self, sequence: u64) -> Result<Vec<SavedGroup>> {
        self.check_all(|group| Ok(group.planner().check_idle(sequence)?))?;
        let held = self.groups.iter_mut().map(|group| group.snapshot(sequence)).collect::<Result<Vec<_>>>()?;
        let saved = self.groups.iter_mut().zip(held).map(|(group, hold)| {
            let (content, rows, pages, staged) = group.held_pages(hold)?;
            Ok(SavedGroup { content, rows, staged, pages })
        });
        saved.collect()
    }

    /// New blocks, so many in each group, for what is brought back; blocks that nobody holds make room.
    pub fn new_blocks(&mut self, rows: &[u32]) -> Result<NewBlocks> {
        let places: Vec<Vec<u32>> = rows.iter().map(|&rows| (0..rows).collect()).collect();
        let mut new =
            self.new_at(&places.iter().zip(rows).map(|(of, &length)| (&of[..], length)).collect::<Vec<_>>())?;
        // What is released is released from its end on.
        new.pages.iter_mut().for_each(PageWriter::reverse);
        Ok(new)
    }

    /// New blocks for what was saved of a sequence.
    pub fn new_blocks_of(&mut self, groups: &[&SavedContent]) -> Result<NewBlocks> {
        let size = self.block_size();
        let at = groups.iter().map(|saved| (&saved.places[..], saved.length.div_ceil(size)));
        self.new_at(&at.collect::<Vec<_>>())
    }

    pub(super) fn new_at(&mut self, groups: &[(&[u32], u32)]) -> Result<NewBlocks> {
        self.check_groups(groups.len())?;
        self.check_all(|_| Ok(()))?;
        let mut new = NewBlocks { pages: Vec::new(), held: Vec::new(), cache: self.id };
        let is_one = self.groups.len() == 1;
        for (at, (group, (places, length))) in self.groups.iter_mut().zip(groups).enumerate() {
            let made = group.new_pages(places, *length);
            let (hold, pages) = made.map_err(|error| if is_one { error } else { error.in_group(at) })?;
            new.held.push(hold);
            new.pages.push(pages);
        }
        Ok(new)
    }

    /// Whether blocks that prompts find would have to make room for so many new ones, in some group.
    #[must_use]
    pub fn must_evict_for(&self, rows: &[usize]) -> bool {
        let lacks = |(group, &rows): (&PageGroup, &usize)| (group.planner().pool_stats().free as usize) < rows;
        self.groups.iter().zip(rows).any(lacks)
    }

    /// Lets prompts find new blocks whose bytes were all written: those of the first rows make room first, once `new` is dropped.
    pub fn name_blocks(&mut self, new: &NewBlocks, names: &[BlockNames], roots: &[BlockKey]) -> Result<()> {
        self.check_held(new.cache)?;
        self.check_groups(names.len())?;
        let size = self.block_size() as usize;
        let mut all = new.pages.iter().zip(names);
        self.check_all(|group| {
            let (pages, names) = all.next().expect("names for each group");
            group.check_names(pages, names.iter(size))
        })?;
        for ((group, pages), names) in self.groups.iter_mut().zip(&new.pages).zip(names) {
            group.note_roots(roots);
            let order = names.in_order();
            group.name_pages(pages, &order, names.at(&order, size).iter(size))?;
        }
        Ok(())
    }

    /// A new sequence in new blocks whose bytes were all written; prompts of `options` find it, where those are what it was saved with.
    /// With pages in floats, refused with `BUSY` while a step is computed elsewhere: nothing has changed then.
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
            group.settle(hold, &of.content, &of.rows, identity.clone())
        })
    }

    /// Refuses what cannot have been saved of a cache like this one.
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
