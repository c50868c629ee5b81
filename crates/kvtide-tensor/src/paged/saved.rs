//! Pages that are saved and loaded: whole blocks as bytes, from any thread, while the cache is in use.
//!
//! ```text
//! PageReader   slab -> bytes    of blocks that are held, or whose keys are checked again afterwards
//! PageWriter   bytes -> slab    of blocks that are held and not visible yet
//! ```
//!
//! Each holds the lock of the slab for at most 1 MiB at a time, which bounds the delay of writers. Unwritten slots are saved
//! as zeros: blocks that have some are copied at once, when the reader is made. O(bytes).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use kvtide_core::paged::{BlockKey, BlockName, HeldContent, Identity, SavedContent, SavedRow};

use super::group::PageGroup;
use super::hold::Hold;
use super::slabs::Slab;
use crate::base::error::{Error, Result};
use crate::base::zeroed::zeroed_bytes;

/// Blocks, one row each, that can be read from any thread. Those of a sequence are held while this lives.
#[derive(Debug)]
pub struct PageReader {
    slab: Arc<Slab>,
    blocks: Vec<u32>,
    /// Copies of rows with unwritten slots, or with pages that are in the staging slab.
    copied: HashMap<u32, Vec<u8>>,
    /// Holds the blocks.
    _held: Option<Hold>,
}

/// A page in the staging slab: its row and layer, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedPage {
    /// The row of its block.
    pub row: u32,
    /// The layer in its group.
    pub layer: u32,
    /// The bytes in the layout of staging pages; unwritten slots are zeros.
    pub bytes: Vec<u8>,
}

impl PageReader {
    fn new(slab: &Arc<Slab>, blocks: Vec<u32>, held: Option<Hold>) -> Self {
        PageReader { slab: slab.clone(), blocks, copied: HashMap::new(), _held: held }
    }

    /// The number of blocks.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// The bytes of a block, all layers.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.slab.layout.block_bytes()
    }

    /// Copies a whole row.
    pub fn read(&self, row: u32, out: &mut [u8]) -> Result<()> {
        check_row(row, self.rows(), out.len(), self.row_bytes())?;
        if let Some(copied) = self.copied.get(&row) {
            out.copy_from_slice(copied);
            return Ok(());
        }
        self.slab.fetch_block(self.blocks[row as usize], out)
    }
}

/// New blocks, one row each, that can be written from any thread.
#[derive(Debug)]
pub struct PageWriter {
    slab: Arc<Slab>,
    blocks: Vec<u32>,
}

impl PageWriter {
    /// The number of blocks.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// The bytes of a block, all layers.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.slab.layout.block_bytes()
    }

    /// The block of a row.
    pub(super) fn block(&self, row: u32) -> u32 {
        self.blocks[row as usize]
    }

    /// Reverses the order of the blocks.
    pub(crate) fn reverse(&mut self) {
        self.blocks.reverse();
    }

    /// Writes a whole row.
    pub fn write(&self, row: u32, bytes: &[u8]) -> Result<()> {
        check_row(row, self.rows(), bytes.len(), self.row_bytes())?;
        self.slab.store_block(self.blocks[row as usize], bytes)
    }
}

fn check_row(row: u32, rows: u32, bytes: usize, row_bytes: usize) -> Result<()> {
    if row >= rows {
        return Err(Error::argument("row", row, format!("below {rows}")));
    }
    match bytes == row_bytes {
        true => Ok(()),
        false => Err(Error::argument("bytes.length", bytes, row_bytes.to_string())),
    }
}

impl PageGroup {
    /// The blocks that prompts can hit, in the order of eviction.
    pub fn found_pages(&mut self) -> Result<PageReader> {
        self.collect()?;
        Ok(PageReader::new(&self.slabs.slab, self.planner.found_blocks()?, None))
    }

    /// The held content of a sequence: its blocks, their bookkeeping, and their pages in the staging slab.
    pub fn held_pages(&mut self, hold: Hold) -> Result<(SavedContent, Vec<SavedRow>, PageReader, Vec<StagedPage>)> {
        self.collect()?;
        let held = self.content(&hold)?;
        let saved = self.planner.saved_content(held)?;
        let block = |&place: &u32| self.planner.held_block(held, place).expect("a block at each place");
        let blocks: Vec<u32> = saved.places.iter().map(block).collect();
        let size = self.planner.block_size();
        let kept: Vec<u32> = saved.places.iter().map(|&place| saved.kept(place, size)).collect();
        let rows = blocks.iter().zip(&kept).map(|(&block, &kept)| self.planner.saved_row(block, kept));
        let rows: Vec<SavedRow> = rows.collect();
        let mut reader = PageReader::new(&self.slabs.slab, blocks.clone(), Some(hold));
        let mut staged = Vec::new();
        for (((row, &block), &kept), of) in (0..).zip(&blocks).zip(&kept).zip(&rows) {
            for &layer in &of.staged {
                staged.push(StagedPage { row, layer, bytes: self.staged_bytes(block, layer, kept)? });
            }
            if of.marks.is_some() || !of.staged.is_empty() {
                let bytes = self.written_bytes(block, kept)?;
                reader.copied.insert(row, bytes);
            }
        }
        Ok((saved, rows, reader, staged))
    }

    fn content(&self, hold: &Hold) -> Result<&HeldContent> {
        self.check_own(hold)?;
        Ok(&self.held[&hold.id()])
    }

    /// The bytes of a staging page, with zeros for unwritten slots and after the first `kept` slots.
    fn staged_bytes(&self, block: u32, layer: u32, kept: u32) -> Result<Vec<u8>> {
        let layout = &self.slabs.shape.staged;
        let place = self.planner.staged(block, layer).expect("a page that is staged");
        let mut bytes = zeroed_bytes(layout.page_bytes())?;
        self.slabs.staging.fetch(layout.page_offset(place, 0), &mut bytes)?;
        self.holes(block, layer, kept).iter().for_each(|run| super::pages::zero_rows(&mut bytes, layout, run));
        Ok(bytes)
    }

    /// The bytes of a block of which the first `kept` slots belong to the sequence. Unwritten slots are erased, and pages in
    /// the staging slab are zeros. Only a page with a staging page is in the staging slab; without one its rows are in the
    /// slab, even if it was truncated since.
    fn written_bytes(&self, block: u32, kept: u32) -> Result<Vec<u8>> {
        let (layout, slab) = (&self.slabs.shape.pages, &self.slabs.slab);
        let mut bytes = zeroed_bytes(layout.block_bytes())?;
        for (layer, page) in (0..self.planner.num_layers()).zip(bytes.chunks_exact_mut(layout.page_bytes())) {
            if self.planner.staged(block, layer).is_none() {
                slab.fetch(layout.page_offset(block, layer), page)?;
                self.slabs.shape.erase(page, &self.holes(block, layer, kept));
            }
        }
        Ok(bytes)
    }

    /// The slots of a page that do not belong to the sequence, or are unwritten; none of a slot of states.
    fn holes(&self, block: u32, layer: u32, kept: u32) -> Vec<Range<u32>> {
        if self.keeps_states() {
            return Vec::new();
        }
        self.planner.unwritten(block, layer, kept).chain(std::iter::once(kept..self.planner.block_size())).collect()
    }

    /// Fails with [`Error::Busy`] while another thread computes a step that was undone, or whose sequences are gone: its
    /// blocks may be free, and it still writes to them.
    fn check_no_stray_run(&self) -> Result<()> {
        match &self.lent {
            Some(plan) if self.planner.check_step(plan).is_err() => self.life.check_no_run(),
            _ => Ok(()),
        }
    }

    /// Takes new blocks for some places of `length`; they are not visible until they are named or settled.
    pub fn new_pages(&mut self, places: &[u32], length: u32) -> Result<(Hold, PageWriter)> {
        self.change()?;
        self.check_no_stray_run()?;
        self.planner.reserve_blocks(places.len())?;
        self.hand_down_evicted();
        let held = self.planner.hold_new(places, length)?;
        let block = |&place: &u32| self.planner.held_block(&held, place).expect("a block at each place");
        let blocks = places.iter().map(block).collect();
        let hold = self.keep(held)?;
        Ok((hold, PageWriter { slab: self.slabs.slab.clone(), blocks }))
    }

    /// Checks the names for new blocks.
    pub fn check_names<'a>(
        &self,
        pages: &PageWriter,
        names: impl ExactSizeIterator<Item = BlockName<'a>>,
    ) -> Result<()> {
        if names.len() != pages.blocks.len() {
            return Err(Error::argument("names.length", names.len(), pages.blocks.len().to_string()));
        }
        for name in names {
            if name.tokens.len() != self.planner.block_size() as usize || !name.holds() {
                let expected = "the key of these tokens after its parent";
                return Err(Error::argument("name", "another key", expected));
            }
        }
        Ok(())
    }

    /// Makes these rows of new blocks, whose bytes were all written, visible to prompts under their names.
    pub fn name_pages<'a>(
        &mut self,
        pages: &PageWriter,
        rows: &[u32],
        names: impl Iterator<Item = BlockName<'a>>,
    ) -> Result<()> {
        self.change()?;
        let mut blocks = rows.iter().map(|&row| pages.blocks[row as usize]).zip(names);
        blocks.try_for_each(|(block, name)| Ok(self.planner.name_new(block, &name)?))
    }

    /// Adds keys of empty prefixes to those under which explanations of misses search.
    pub fn note_roots(&mut self, roots: &[BlockKey]) {
        roots.iter().for_each(|root| self.planner.note_root(root));
    }

    /// Stores saved staging pages of new blocks.
    pub fn stage_saved(&mut self, pages: &PageWriter, staged: &[StagedPage]) -> Result<()> {
        if staged.is_empty() {
            return Ok(());
        }
        self.change_pages()?;
        let room = self.planner.staging_for(staged.len())?;
        self.reserve_staging(room)?;
        for page in staged {
            let place = self.planner.stage_saved(pages.blocks[page.row as usize], page.layer);
            let layout = &self.slabs.shape.staged;
            self.slabs.staging.store(layout.page_offset(place, 0), &page.bytes)?;
        }
        Ok(())
    }

    /// Makes a sequence of new blocks, whose bytes and staging pages were all written. The blocks get no keys if prefixes
    /// were forgotten since the count `since`.
    pub fn settle(
        &mut self,
        hold: &Hold,
        saved: &SavedContent,
        rows: &[SavedRow],
        of: Identity,
        since: u64,
    ) -> Result<u64> {
        self.change()?;
        self.check_own(hold)?;
        let held = self.held.remove(&hold.id()).expect("blocks of a hold");
        Ok(self.planner.settle(held, saved, rows, of, since)?)
    }

    /// Checks that this can have been saved from such a group.
    pub fn check_saved(&self, saved: &SavedContent, rows: &[SavedRow], staged: &[StagedPage]) -> Result<()> {
        self.planner.check_saved(saved, rows)?;
        let named = |page: &StagedPage| rows.get(page.row as usize).is_some_and(|row| row.staged.contains(&page.layer));
        let fits = |page: &StagedPage| named(page) && page.bytes.len() == self.slabs.shape.staged.page_bytes();
        let all: usize = rows.iter().map(|row| row.staged.len()).sum();
        if all != staged.len() || !staged.iter().all(fits) || all > 0 && !self.slabs.shape.pages.is_low_bit() {
            return Err(Error::argument(
                "staged",
                staged.len(),
                format!("{all}, the number of staging pages in the rows"),
            ));
        }
        Ok(())
    }
}
