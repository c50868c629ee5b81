//! All state of a group's blocks from hand-out to eviction: reference counts, marks, staging pages, tokens and keys.
//!
//! ```text
//! blocks    reference counts and the order of eviction       index     tokens and keys
//! marks     slots that were written                          staging   low-bit pages that are in floats
//! dirty     pages that may contain old bytes
//! ```
//!
//! Invariants: a block that is not held is cached if the index finds it, else free; a free block has no mark, no key
//! and no staged page, and its pages are dirty. Every call is O(1), except those on a run of slots. Only
//! [`PagePool::reserve`] allocates memory.

use std::ops::Range;

use super::blocks::{Blocks, Release};
use super::order::BlockState;
use super::policy::EvictionPolicy;
use super::rank::RankChain;
use crate::error::Result;
use crate::paged::index::{BlockKey, BlockName, Extras, PrefixIndex};
use crate::paged::pages::{Page, Slot, Staging, WrittenMarks};
use crate::paged::per_block::PerBlock;

/// Counts the chunks that hold a block.
pub trait HoldCounter {
    /// Counts one more chunk that holds the block.
    fn retain(&mut self, block: u32);
    /// Begins the release of blocks of one table.
    fn begin(&mut self);
    /// Counts one chunk less that holds the block, at this place. Blocks of one table are released from its end to its
    /// start.
    fn release(&mut self, block: u32, place: u32);
    /// True if blocks that stay must learn the rank of those released behind them.
    fn hands_on(&self) -> bool;
    /// Hands a rank on to a block that stays while blocks behind it were released. Called for the blocks of one table
    /// from its end to its start.
    fn hand_on(&mut self, block: u32);
}

/// All blocks of one group of layers.
#[derive(Debug)]
pub struct PagePool {
    blocks: Blocks,
    index: PrefixIndex,
    marks: WrittenMarks,
    /// Pages whose unmarked slots may contain old rows; one slot per page.
    dirty: WrittenMarks,
    staging: Staging,
    /// Number of times that each block lost its key, modulo 2^32.
    losses: PerBlock<u32>,
    /// Number of blocks for which memory was last reserved.
    announced: usize,
    /// Blocks that got a key since the last call of `take_named`; [`None`] if they are not recorded.
    named: Option<Vec<u32>>,
    /// Number of tokens before the end of each state that got a key from a sequence, for people who look at the cache;
    /// [`None`] if blocks are no states.
    ends: Option<PerBlock<u32>>,
    num_layers: u32,
    block_size: u32,
    /// True if pages are staged until they are full.
    low_bit: bool,
    /// The rank that is handed on while blocks of one sequence are released.
    chain: RankChain,
}

impl PagePool {
    /// Returns a pool of these blocks, none of which is in use.
    pub fn new(blocks: Blocks, num_layers: u32, block_size: u32) -> Result<Self> {
        let capacity = blocks.capacity();
        Ok(PagePool {
            blocks,
            index: PrefixIndex::new(capacity, block_size)?,
            marks: WrittenMarks::new(capacity, num_layers, block_size)?,
            dirty: WrittenMarks::new(capacity, num_layers, 1)?,
            staging: Staging::default(),
            losses: PerBlock::new(capacity, 1, 0),
            announced: 0,
            named: None,
            ends: None,
            num_layers,
            block_size,
            low_bit: false,
            chain: RankChain::default(),
        })
    }

    pub fn staging_pages(mut self) -> Self {
        self.low_bit = true;
        self
    }

    pub fn keeping_states(mut self) -> Self {
        self.ends = Some(PerBlock::new(self.blocks.capacity(), 1, 0));
        self
    }

    pub fn evicting(mut self, policy: Box<dyn EvictionPolicy>) -> Self {
        self.blocks = self.blocks.with_policy(policy);
        self
    }

    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    pub fn marks(&self) -> &WrittenMarks {
        &self.marks
    }

    pub fn staging(&self) -> &Staging {
        &self.staging
    }

    pub fn is_low_bit(&self) -> bool {
        self.low_bit
    }

    pub fn num_layers(&self) -> u32 {
        self.num_layers
    }

    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Bytes in use for blocks, without tokens and staged pages.
    pub fn bytes(&self) -> usize {
        self.blocks.bytes() + self.index.bytes() + self.marks.bytes() + self.dirty.bytes() + self.losses.bytes()
    }

    /// Reserves memory for the next `blocks` blocks, for changing the marks of `changes` blocks, and for `staged` more
    /// staged pages.
    pub fn reserve(&mut self, blocks: usize, changes: usize, staged: usize) -> Result<()> {
        let mut highest = 0;
        self.announced = blocks;
        if blocks > 0 {
            self.blocks.reserve(blocks as u32)?;
            if let Some(block) = self.blocks.upcoming().take(blocks).map(|next| next.block).max() {
                self.dirty.reserve(block, 0)?;
                self.index.reserve(block)?;
                self.losses.reserve(block)?;
                if let Some(ends) = &mut self.ends {
                    ends.reserve(block)?;
                }
                highest = block;
            }
        }
        self.marks.reserve(highest, changes)?;
        if staged > 0 { self.staging.reserve(staged) } else { Ok(()) }
    }

    /// Hands out a block; the caller knows that one is available.
    pub fn take(&mut self) -> u32 {
        let taken = self.blocks.take().expect("a block that was counted available");
        if taken.evicted {
            self.lose(taken.block);
            self.index.evict(taken.block);
            self.empty(taken.block);
        }
        taken.block
    }

    /// True if all slots of a block are written and none of its pages is in floats.
    pub fn is_sealed(&self, block: u32) -> bool {
        self.marks.is_whole(block)
            && (self.staging.is_empty()
                || (0..self.num_layers).all(|layer| self.staging.get(Page { block, layer }).is_none()))
    }

    /// Marks slots as written in some layers. A page that is written as a whole, without staging, loses its staging
    /// page.
    pub fn mark(&mut self, block: u32, layers: Range<u32>, slots: Range<u32>, is_staged: bool) {
        self.marks.set_layers(block, layers.clone(), slots.clone());
        if slots.len() as u32 == self.block_size && !is_staged && !self.staging.is_empty() {
            layers.for_each(|layer| self.staging.give_back(Page { block, layer }));
        }
    }

    /// Clears the marks of these slots in all layers. Memory for the change is reserved.
    pub fn unmark(&mut self, block: u32, slots: Range<u32>) {
        if self.marks.has_any_layer(block, slots.clone()) {
            self.unwrite(block, slots);
        }
    }

    /// Like `unmark`, for slots that may have been written without marks.
    pub fn unwrite(&mut self, block: u32, slots: Range<u32>) {
        (0..self.num_layers).for_each(|layer| self.marks.unset(block, layer, slots.clone()));
        self.dirty.fill_block(block);
        self.unseal(block);
    }

    /// Clears the marks of a block from a slot on. Pages without marks left lose their staging pages.
    pub fn cut(&mut self, block: u32, slot: u32) {
        self.unmark(block, slot..self.block_size);
        for layer in 0..self.num_layers {
            if !self.marks.has_any(block, layer, 0..slot) {
                self.staging.give_back(Page { block, layer });
            }
        }
    }

    /// Notes the use of a block that has a key: the tokens that a prompt saves if it finds this block instead of the next
    /// one before it, and the number of prompts that had its tokens until now. Until then a block counts as if it saved
    /// all tokens before its end, for one prompt. Only a policy that orders blocks by usefulness needs this.
    pub fn note_use(&mut self, block: u32, tokens: u32, requests: u32) {
        self.blocks.note_use(block, tokens, requests);
    }

    pub fn set_tokens(&mut self, block: u32, slot: u32, tokens: &[u32]) {
        self.index.set_tokens(block, slot, tokens);
    }

    pub fn copy_token(&mut self, source: Slot, target: Slot) {
        let token = self.index.tokens(source.block)[source.index as usize];
        self.index.set_tokens(target.block, target.index, &[token]);
    }

    /// Copies the ids of the first `kept` tokens of a block to another one without a key.
    pub fn copy_ids(&mut self, source: u32, target: u32, kept: u32) {
        self.index.copy_tokens(source, target, kept);
    }

    /// Makes a block free that is cached and not held, unless it has lost its key since it had done so `losses` times.
    pub fn drop_cached(&mut self, block: u32, losses: u32) {
        if self.losses(block) == losses && self.blocks.is_cached(block) {
            self.lose(block);
            self.forget_cached(block);
        }
    }

    /// Makes a cached block free, whose loss of its key is counted.
    fn forget_cached(&mut self, block: u32) {
        self.blocks.forget(block);
        self.index.remove(block);
        self.empty(block);
    }

    /// Copies the state of the first `kept` slots of a block to another one, which was just handed out. `staged` are
    /// the layers that are in floats, with their staging pages.
    pub fn copy(&mut self, source: u32, target: u32, kept: u32, staged: impl Iterator<Item = (u32, u32)>) {
        for layer in 0..self.num_layers {
            if self.marks.has_all(source, layer, 0..kept) {
                self.marks.set(target, layer, 0..kept);
            } else {
                for slot in 0..kept {
                    if self.marks.get(source, layer, slot) {
                        self.marks.set(target, layer, slot..slot + 1);
                    }
                }
            }
        }
        // The copy also contains rows that are not kept.
        self.dirty.fill_block(target);
        self.index.copy_tokens(source, target, kept);
        for (layer, place) in staged {
            self.stage(Page { block: target, layer }, place);
            let is_sealed = kept == self.block_size && self.staging.is_sealed(Page { block: source, layer });
            self.set_sealed(Page { block: target, layer }, is_sealed);
        }
    }

    /// Puts a page in floats, in the staging page that was announced.
    pub fn stage(&mut self, page: Page, announced: u32) {
        assert_eq!(self.staging.take(page), announced, "staging pages are handed out as announced");
    }

    /// Records if the slab has the quantised form of a staged page as well.
    pub fn set_sealed(&mut self, page: Page, is_sealed: bool) {
        self.staging.set_sealed(page, is_sealed);
    }

    /// Records that rows of a block have changed: the quantised forms of its staged pages are no longer valid.
    pub fn unseal(&mut self, block: u32) {
        if !self.staging.is_empty() {
            (0..self.num_layers).for_each(|layer| self.staging.set_sealed(Page { block, layer }, false));
        }
    }

    /// Releases the staging page of a page.
    pub fn unstage(&mut self, page: Page) {
        self.staging.give_back(page);
    }

    /// Gives a key to a block whose tokens are recorded, unless it has one.
    pub fn name(&mut self, block: u32, key: &BlockKey, parent: &BlockKey, position: u32, extras: &Extras) {
        if self.index.key(block).is_none() {
            self.index.insert(block, key, parent, position, extras);
            self.blocks.note_use(block, position + self.block_size, 1);
            // Without memory for the record, the block is offloaded when it is evicted, or not at all.
            if let Some(named) = &mut self.named
                && named.try_reserve(1).is_ok()
            {
                named.push(block);
            }
        }
    }

    /// Records from now on which blocks get a key.
    pub fn note_named(&mut self) {
        self.named.get_or_insert_default();
    }

    /// Returns the blocks that got a key since the last call.
    pub fn take_named(&mut self) -> Vec<u32> {
        self.named.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// True if some blocks got a key since the last call.
    pub fn has_named(&self) -> bool {
        self.named.as_ref().is_some_and(|named| !named.is_empty())
    }

    /// The cached blocks that will be evicted for the blocks whose memory was reserved last.
    pub fn evicted_next(&self) -> impl Iterator<Item = u32> {
        self.blocks.upcoming().take(self.announced).filter(|next| next.evicted).map(|next| next.block)
    }

    /// Gives a name to a block that was handed out and whose slots are all written with saved rows.
    pub fn name_new(&mut self, block: u32, name: &BlockName<'_>, extras: Vec<u8>) {
        self.write_saved(block, None, self.block_size);
        self.index.set_tokens(block, 0, name.tokens);
        self.index.insert_encoded(block, &name.key, &name.parent, Some(extras));
        self.note_end(block, 0);
    }

    /// Notes the number of tokens before the end of a state; 0 if it is unknown.
    pub fn note_end(&mut self, block: u32, tokens: u32) {
        if let Some(ends) = self.ends.as_mut().filter(|ends| block < ends.rows()) {
            ends[block] = tokens;
        }
    }

    /// The number of tokens before the end of a state that prompts can find; 0 for any other block.
    pub fn end(&self, block: u32) -> u32 {
        let ends = self.ends.as_ref().filter(|ends| block < ends.rows() && self.index.is_indexed(block));
        ends.map_or(0, |ends| ends[block])
    }

    /// Marks the first `kept` slots of a block that was handed out as they were saved; all of them if `marks` is
    /// [`None`]. The other slots contain saved bytes too.
    pub fn write_saved(&mut self, block: u32, marks: Option<&[u8]>, kept: u32) {
        let Some(marks) = marks else {
            return self.marks.set_layers(block, 0..self.num_layers, 0..kept);
        };
        let layers = marks.chunks_exact(self.block_size.div_ceil(8) as usize);
        for (layer, bits) in (0..self.num_layers).zip(layers) {
            let written = (0..kept).filter(|slot| bits[*slot as usize / 8] >> (slot % 8) & 1 == 1);
            written.for_each(|slot| self.marks.set(block, layer, slot..slot + 1));
        }
    }

    /// Adds a root to those that explanations try.
    pub fn note_root(&mut self, root: &BlockKey) {
        self.index.note_root(root);
    }

    /// Removes the key of a block.
    pub fn unname(&mut self, block: u32) {
        self.lose(block);
        self.index.remove(block);
    }

    /// Counts that a block loses its key, if it has one.
    fn lose(&mut self, block: u32) {
        if self.index.key(block).is_some() {
            self.losses[block] = self.losses[block].wrapping_add(1);
        }
    }

    /// Number of times that a block lost its key. While this number is unchanged, so is the content of a block with a
    /// key.
    pub fn losses(&self, block: u32) -> u32 {
        if block < self.losses.rows() { self.losses[block] } else { 0 }
    }

    /// Removes all keys, so that prompts find no block. Blocks that are not held become free.
    pub fn forget_prefixes(&mut self) {
        for block in 0..self.blocks.touched() {
            self.lose(block);
            if self.blocks.is_cached(block) {
                self.forget_cached(block);
            }
        }
        self.index.clear();
    }

    pub fn keep_events(&mut self, capacity: u32) {
        self.index.keep_events(capacity);
    }

    pub fn join_events(&mut self, other: &PrefixIndex) {
        self.index.join_events(other);
    }

    /// Sets the priority of blocks; of none if there is no memory for their limits.
    pub fn set_priorities(&mut self, blocks: &[u32], priority: u8, until: Option<u64>) -> Result<()> {
        if until.is_some() {
            self.blocks.reserve_limits(blocks.len())?;
        }
        blocks.iter().try_for_each(|&block| self.blocks.set_priority(block, priority, until))
    }

    pub fn advance(&mut self, now: u64) {
        self.blocks.advance(now);
    }

    /// True if unmarked slots of a page may contain old rows.
    pub fn is_dirty(&self, block: u32, layer: u32) -> bool {
        self.dirty.get(block, layer, 0)
    }

    /// Marks a block as dirty: its unmarked slots may contain anything.
    pub fn soil(&mut self, block: u32) {
        self.dirty.fill_block(block);
    }

    /// True if unmarked slots of some page of a block may contain old rows.
    pub fn is_exposed(&self, block: u32) -> bool {
        !self.dirty.is_clear(block) && !self.marks.is_whole(block)
    }

    /// Records that the unmarked slots of a page are zeros. Without memory for that, the page stays dirty.
    pub fn clean(&mut self, block: u32, layer: u32) {
        if self.is_dirty(block, layer) && self.dirty.reserve(block, 1).is_ok() {
            self.dirty.unset(block, layer, 0..1);
        }
    }

    /// Clears the state of a block; its memory still contains the old rows.
    fn empty(&mut self, block: u32) {
        self.marks.clear_block(block);
        self.dirty.fill_block(block);
        self.staging.give_back_block(block, self.num_layers);
    }

    /// Returns an error of the bookkeeping, if any. `held` returns the number of chunks that hold a block. O(slots).
    pub fn check(&self, held: impl Fn(u32) -> u32) -> Result<(), String> {
        self.blocks.check_invariants()?;
        self.index.check_invariants()?;
        self.marks.check()?;
        self.staging.check_invariants()?;
        for block in 0..self.blocks.touched() {
            let (count, found) = (self.blocks.count(block), held(block));
            if count != found {
                return Err(format!("block {block} counts {count} chunks, {found} hold it"));
            }
            if self.blocks.is_cached(block) != (count == 0 && self.index.is_indexed(block)) {
                return Err(format!("block {block} is cached without being indexed, or indexed without being cached"));
            }
            if count == 0 && !self.blocks.is_cached(block) && !self.marks.is_clear(block) {
                return Err(format!("block {block} is free and marked as written"));
            }
            if self.index.key(block).is_some() && !self.is_sealed(block) {
                return Err(format!("block {block} is found by its key and not full"));
            }
        }
        // Only pages of low-bit blocks that are held can be in floats.
        match self.staging.pages().find(|page| !self.low_bit || self.blocks.count(page.block) == 0) {
            Some(Page { block, layer }) => {
                Err(format!("layer {layer} of block {block} is staged, and the block is not held"))
            }
            None => Ok(()),
        }
    }
}

impl HoldCounter for PagePool {
    fn retain(&mut self, block: u32) {
        self.blocks.retain(block);
    }

    fn begin(&mut self) {
        self.chain = RankChain::default();
    }

    fn release(&mut self, block: u32, place: u32) {
        let how = Release { cached: self.index.is_indexed(block), depth: place };
        self.blocks.release(block, how, &mut self.chain);
        if self.blocks.set(block) == BlockState::Free {
            self.lose(block);
            self.index.remove(block);
            self.empty(block);
        }
    }

    fn hands_on(&self) -> bool {
        self.blocks.hands_on(&self.chain)
    }

    fn hand_on(&mut self, block: u32) {
        self.blocks.hand_on(block, &self.chain);
    }
}
