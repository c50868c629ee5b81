//! Pages that leave the cache, and come back: whole blocks as bytes, from any thread and while the cache goes on.
//!
//! ```text
//! PageReader   slab -> bytes    of blocks that are held, or whose names are looked at again afterwards
//! PageWriter   bytes -> slab    of blocks that are held and that nobody sees yet
//! ```
//!
//! Each takes the lock of the slab for at most 1 MiB at a time: so long does someone who writes have to wait. What nobody wrote leaves
//! as zeros: such blocks are read at once, when the reader is made. O(bytes).

use std::collections::HashMap;
use std::sync::Arc;

use kvtide_core::paged::{BlockKey, BlockName, HeldContent, Identity, SavedContent, SavedRow};

use super::group::PageGroup;
use super::hold::Hold;
use super::slabs::{Holes, Slab};
use crate::base::error::{Error, Result};
use crate::base::zeroed::zeroed_bytes;
use crate::device::form::Form;

/// Bytes of one look at a slab.
const MOST: usize = 1 << 20;

/// Bytes of a piece that is added to others.
const ADDED: usize = 256 << 10;

/// Blocks, one row each, to be read from any thread. Those of a sequence are held while this lives.
#[derive(Debug)]
pub struct PageReader {
    slab: Arc<Slab>,
    blocks: Vec<u32>,
    /// Rows with slots that nobody wrote, or pages that lie in floats.
    copied: HashMap<u32, Vec<u8>>,
    /// What keeps the blocks as they are.
    _held: Option<Hold>,
}

/// A page that lies in floats: its row and layer, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedPage {
    /// The row of its block.
    pub row: u32,
    /// The layer in its group.
    pub layer: u32,
    /// As the layout of staged pages says; what nobody wrote is zeros.
    pub bytes: Vec<u8>,
}

impl PageReader {
    fn new(slab: &Arc<Slab>, blocks: Vec<u32>, held: Option<Hold>) -> Self {
        PageReader { slab: slab.clone(), blocks, copied: HashMap::new(), _held: held }
    }

    /// Blocks.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Bytes of a block, all layers.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.slab.layout.block_bytes()
    }

    /// Copies a row, whole.
    pub fn read(&self, row: u32, out: &mut [u8]) -> Result<()> {
        check_row(row, self.rows(), out.len(), self.row_bytes())?;
        if let Some(copied) = self.copied.get(&row) {
            out.copy_from_slice(copied);
            return Ok(());
        }
        self.slab.fetch_block(self.blocks[row as usize], out)
    }
}

impl Slab {
    /// Copies a block, all layers, piece by piece.
    pub(super) fn fetch_block(&self, block: u32, out: &mut [u8]) -> Result<()> {
        let start = block as usize * self.layout.block_bytes();
        let pieces = out.chunks_mut(MOST).enumerate();
        pieces.into_iter().try_for_each(|(piece, out)| self.fetch(start + piece * MOST, out))
    }

    /// As [`Slab::fetch_block`], behind what `out` holds. It passes over each piece twice, on the host while it lies in the processor's cache.
    pub(super) fn add_block(&self, block: u32, out: &mut Vec<u8>) -> Result<()> {
        let (bytes, begin) = (self.layout.block_bytes(), out.len());
        let start = block as usize * bytes;
        let most = if matches!(self.form()?, Form::Bytes(_)) { ADDED } else { MOST };
        for at in (0..bytes).step_by(most) {
            out.resize(begin + bytes.min(at + most), 0);
            self.fetch(start + at, &mut out[begin + at..])?;
        }
        Ok(())
    }
}

/// New blocks, one row each, to be written from any thread.
#[derive(Debug)]
pub struct PageWriter {
    slab: Arc<Slab>,
    blocks: Vec<u32>,
}

impl PageWriter {
    /// Blocks.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Bytes of a block, all layers.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.slab.layout.block_bytes()
    }

    /// The block of a row.
    pub(super) fn block(&self, row: u32) -> u32 {
        self.blocks[row as usize]
    }

    /// The same blocks from the last to the first.
    pub(crate) fn reverse(&mut self) {
        self.blocks.reverse();
    }

    /// Writes a row, whole.
    pub fn write(&self, row: u32, bytes: &[u8]) -> Result<()> {
        check_row(row, self.rows(), bytes.len(), self.row_bytes())?;
        let start = self.blocks[row as usize] as usize * self.row_bytes();
        let pieces = bytes.chunks(MOST).enumerate();
        pieces.into_iter().try_for_each(|(piece, bytes)| self.slab.store(start + piece * MOST, bytes))
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
    /// The blocks that prompts find, those that make room first first.
    pub fn found_pages(&mut self) -> Result<PageReader> {
        self.collect()?;
        Ok(PageReader::new(&self.slabs.slab, self.planner.found_blocks()?, None))
    }

    /// What is held of a sequence: its blocks, what is known of them, and their pages in floats.
    pub fn held_pages(&mut self, hold: Hold) -> Result<(SavedContent, Vec<SavedRow>, PageReader, Vec<StagedPage>)> {
        self.collect()?;
        let held = self.content(&hold)?;
        let saved = self.planner.saved_content(held)?;
        let block = |&place: &u32| self.planner.held_block(held, place).expect("a block at each place");
        let blocks: Vec<u32> = saved.places.iter().map(block).collect();
        let rows: Vec<SavedRow> = blocks.iter().map(|&block| self.planner.saved_row(block)).collect();
        let mut reader = PageReader::new(&self.slabs.slab, blocks.clone(), Some(hold));
        let mut staged = Vec::new();
        for ((row, &block), of) in (0..).zip(&blocks).zip(&rows) {
            for &layer in &of.staged {
                staged.push(StagedPage { row, layer, bytes: self.staged_bytes(block, layer)? });
            }
            if of.marks.is_some() || !of.staged.is_empty() {
                let bytes = self.written_bytes(block, of)?;
                reader.copied.insert(row, bytes);
            }
        }
        Ok((saved, rows, reader, staged))
    }

    fn content(&self, hold: &Hold) -> Result<&HeldContent> {
        self.check_own(hold)?;
        Ok(&self.held[&hold.id()])
    }

    /// A page in floats, zeros where nobody wrote.
    fn staged_bytes(&self, block: u32, layer: u32) -> Result<Vec<u8>> {
        let layout = &self.slabs.shape.staged;
        let place = self.planner.staged(block, layer).expect("a page that is staged");
        let mut bytes = zeroed_bytes(layout.page_bytes())?;
        self.slabs.staging.fetch(layout.page_offset(place, 0), &mut bytes)?;
        self.holes(block, layer).runs.iter().for_each(|run| super::pages::zero_rows(&mut bytes, layout, run));
        Ok(bytes)
    }

    /// The bytes of a block that is not whole: zeros where nobody wrote, and for pages that lie in floats.
    fn written_bytes(&self, block: u32, row: &SavedRow) -> Result<Vec<u8>> {
        let (layout, slab) = (&self.slabs.shape.pages, &self.slabs.slab);
        let mut bytes = zeroed_bytes(layout.block_bytes())?;
        for (layer, page) in (0..self.planner.num_layers()).zip(bytes.chunks_exact_mut(layout.page_bytes())) {
            let holes = self.holes(block, layer);
            let is_whole = holes.runs.is_empty();
            if row.staged.contains(&layer) || layout.is_low_bit() && !is_whole {
                continue;
            }
            slab.fetch(layout.page_offset(block, layer), page)?;
            holes.runs.iter().for_each(|run| super::pages::zero_rows(page, layout, run));
        }
        Ok(bytes)
    }

    fn holes(&self, block: u32, layer: u32) -> Holes {
        let runs = self.planner.unwritten(block, layer, self.planner.block_size()).collect();
        Holes { block, layer, runs }
    }

    /// New blocks at some places of `length`, which nobody sees before they are named or settled.
    pub fn new_pages(&mut self, places: &[u32], length: u32) -> Result<(Hold, PageWriter)> {
        self.change()?;
        self.planner.reserve_blocks(places.len())?;
        self.hand_down_evicted();
        let held = self.planner.hold_new(places, length)?;
        let block = |&place: &u32| self.planner.held_block(&held, place).expect("a block at each place");
        let blocks = places.iter().map(block).collect();
        let hold = self.keep(held)?;
        Ok((hold, PageWriter { slab: self.slabs.slab.clone(), blocks }))
    }

    /// Refuses names that new blocks cannot have.
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
                let expected = "the key of its tokens behind its parent";
                return Err(Error::argument("name", "another key", expected));
            }
        }
        Ok(())
    }

    /// Lets prompts find new blocks, whose bytes were all written: these rows, with their names.
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

    /// Counts keys of no token among those that explanations look under.
    pub fn note_roots(&mut self, roots: &[BlockKey]) {
        roots.iter().for_each(|root| self.planner.note_root(root));
    }

    /// Puts pages that lie in floats where those of new blocks do.
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

    /// A new sequence in new blocks, whose bytes were all written, and whose pages in floats are there.
    pub fn settle(&mut self, hold: &Hold, saved: &SavedContent, rows: &[SavedRow], of: Identity) -> Result<u64> {
        self.change()?;
        self.check_own(hold)?;
        let held = self.held.remove(&hold.id()).expect("blocks of a hold");
        Ok(self.planner.settle(held, saved, rows, of)?)
    }

    /// Refuses what cannot have been saved of such a group.
    pub fn check_saved(&self, saved: &SavedContent, rows: &[SavedRow], staged: &[StagedPage]) -> Result<()> {
        self.planner.check_saved(saved, rows)?;
        let named = |page: &StagedPage| rows.get(page.row as usize).is_some_and(|row| row.staged.contains(&page.layer));
        let fits = |page: &StagedPage| named(page) && page.bytes.len() == self.slabs.shape.staged.page_bytes();
        let all: usize = rows.iter().map(|row| row.staged.len()).sum();
        if all != staged.len() || !staged.iter().all(fits) || all > 0 && !self.slabs.shape.pages.is_low_bit() {
            return Err(Error::argument("staged", staged.len(), format!("the {all} pages that lie in floats")));
        }
        Ok(())
    }
}
