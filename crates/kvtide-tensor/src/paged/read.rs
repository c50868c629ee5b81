//! Reads of one token, or of all tokens of a layer, as copies for the caller.
//!
//! ```text
//! pages   [ block 7: all 16 ][ block 2: staged, 5 ]  ->  [heads, 21, dim]
//! ```
//!
//! Tokens outside the window are not included: copies know the positions of their tokens. Unwritten slots are zeros in a
//! bulk read, whatever the memory has there; a read of a single one fails. O(bytes of the tokens).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use kvtide_core::paged::{HeadPlace, KeyOrValue, PageRead};

use super::group::PageGroup;
use super::launched::{Launched, LayerRead, ReadRun};
use super::portable;
use super::run::GroupRun;
use super::slabs::Slabs;
use crate::base::dims::Dims;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_bytes;
use crate::device::form::Form;
use crate::kernels::Carrier;
use crate::kernels::pages::each_rows;
use crate::kernels::quantise::to_f32;
use crate::tensor::view::{CacheWindow, Kv, View};

/// K or V of one layer in the bytes of both slabs.
struct Reader<'a> {
    slabs: &'a Slabs,
    /// True if the slabs are read with candle's operations, because the host cannot address them.
    is_portable: bool,
    slab: &'a [u8],
    staging: &'a [u8],
    layer: u32,
    part: KeyOrValue,
}

impl PageGroup {
    /// Reads one token of one layer into the caller's memory.
    pub fn read_kv_into(
        &mut self,
        sequence: u64,
        layer: u32,
        position: u32,
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<()> {
        self.collect()?;
        self.check_out("key", KeyOrValue::Key, key, 1)?;
        self.check_out("value", KeyOrValue::Value, value, 1)?;
        let slot = self.planner.locate(sequence, layer, position)?;
        let staged = self.planner.staged(slot.block, layer);
        let page = PageRead { block: slot.block, tokens: 1, staged, is_sealed: false };
        if let Form::Launched(stream) = self.slab().form()? {
            let launched = Launched { stream, slabs: &self.slabs };
            let run = ReadRun { block: page.block, staged: page.staged, slot: slot.index, tokens: 1, token: 0 };
            return launched.read(LayerRead { layer, runs: &[run], tokens: 1 }, [key, value]);
        }
        self.slabs.with_reader(layer, |mut reader| {
            for (part, out) in KeyOrValue::BOTH.into_iter().zip([key, value]) {
                reader.part = part;
                let row = out.len() / self.shape().heads();
                for (head, out) in out.chunks_exact_mut(row.max(1)).enumerate() {
                    reader.read(&page, head as u32, slot.index, out, Carrier::PLAIN)?;
                }
            }
            Ok(())
        })
    }

    /// All tokens of a layer that are still in the cache: K and V `[kvHeads, tokens, headDim]`, in memory of their own. If
    /// blocks between the sinks and the window were dropped, they are two runs.
    pub fn gather(&mut self, sequence: u64, layer: u32) -> Result<Kv> {
        let (Kv { k, v }, gap) = (self.copies(sequence, layer)?, self.planner.gap(sequence)?);
        let kv = Kv { k: k.with_gap(1, gap.clone()), v: v.with_gap(1, gap) };
        Ok(kv.in_window(self.window_of(sequence)?))
    }

    /// Like [`PageGroup::gather`], as `[1, kvHeads, tokens, headDim]`.
    pub(crate) fn gather_batched(&mut self, sequence: u64, layer: u32) -> Result<Kv> {
        let (Kv { k, v }, gap) = (self.copies(sequence, layer)?, self.planner.gap(sequence)?);
        let batched = |view: View| Ok::<_, Error>(view.batched()?.with_gap(2, gap.clone()));
        Ok(Kv { k: batched(k)?, v: batched(v)? }.in_window(self.window_of(sequence)?))
    }

    /// The window of a sequence, whose last tokens may be a tree.
    fn window_of(&self, sequence: u64) -> Result<Option<CacheWindow>> {
        let Some(window) = self.planner.window() else { return Ok(None) };
        Ok(Some(CacheWindow { window, is_tree: self.planner.tree(sequence)?.is_some() }))
    }

    fn copies(&mut self, sequence: u64, layer: u32) -> Result<Kv> {
        let pages = self.read_pages(sequence, layer)?;
        let holes = |page: &PageRead| self.planner.unwritten(page.block, layer, page.tokens).collect();
        self.slabs.gather(LayerPart { layer, pages: &pages, holes: &holes }, &self.budget)
    }

    /// Like [`PageGroup::gather`], into the caller's memory, whose size must fit the tokens that are still in the cache
    /// exactly.
    pub fn gather_into(&mut self, sequence: u64, layer: u32, k: &mut [u8], v: &mut [u8]) -> Result<()> {
        let pages = self.read_pages(sequence, layer)?;
        let tokens = self.check_rooms(&pages, [k, v])?;
        let holes = |page: &PageRead| self.planner.unwritten(page.block, layer, page.tokens).collect();
        let part = LayerPart { layer, pages: &pages, holes: &holes };
        if let Form::Launched(stream) = self.slab().form()? {
            let runs = part.runs();
            return Launched { stream, slabs: &self.slabs }.read(LayerRead { layer, runs: &runs, tokens }, [k, v]);
        }
        self.slabs.with_reader(layer, |mut reader| {
            reader.read_part(&part, k)?;
            reader.part = KeyOrValue::Value;
            reader.read_part(&part, v)
        })
    }

    /// Checks everything that [`PageGroup::gather_into`] checks.
    pub fn check_gather(&mut self, sequence: u64, layer: u32, rooms: [&[u8]; 2]) -> Result<()> {
        let pages = self.read_pages(sequence, layer)?;
        self.check_rooms(&pages, rooms).map(drop)
    }

    /// Checks that memory for K and V fits the tokens of these pages exactly, and returns the number of tokens.
    fn check_rooms(&self, pages: &[PageRead], [k, v]: [&[u8]; 2]) -> Result<usize> {
        let tokens = pages.iter().map(|page| page.tokens as usize).sum();
        self.check_out("k", KeyOrValue::Key, k, tokens)?;
        self.check_out("v", KeyOrValue::Value, v, tokens)?;
        Ok(tokens)
    }

    /// Checks that memory fits this many tokens exactly.
    fn check_out(&self, argument: &'static str, part: KeyOrValue, out: &[u8], tokens: usize) -> Result<()> {
        let element = self.shape().read_dtype(part).bytes();
        let expected = tokens * self.shape().token_elements(part);
        if out.len() == expected * element {
            return Ok(());
        }
        Err(Error::DimMismatch { argument, actual: (out.len() / element) as u64, expected: expected as u64 })
    }

    /// The pages of a sequence as it is now; a step that was dropped is rolled back first.
    fn read_pages(&mut self, sequence: u64, layer: u32) -> Result<Vec<PageRead>> {
        self.collect()?;
        Ok(self.planner.pages(sequence, layer)?.collect())
    }
}

/// The tokens of some pages of a layer.
struct LayerPart<'a> {
    layer: u32,
    pages: &'a [PageRead],
    /// The unwritten slots among the tokens of a page.
    holes: &'a (dyn Fn(&PageRead) -> Vec<Range<u32>> + Sync),
}

impl LayerPart<'_> {
    fn tokens(&self) -> usize {
        self.pages.iter().map(|page| page.tokens as usize).sum()
    }

    /// The written slots, and their places in the output.
    fn runs(&self) -> Vec<ReadRun> {
        let (mut runs, mut first) = (Vec::new(), 0);
        for page in self.pages {
            let (&PageRead { block, tokens, staged, .. }, mut start) = (page, 0);
            for hole in (self.holes)(page).into_iter().chain(std::iter::once(tokens..tokens)) {
                if start < hole.start {
                    runs.push(ReadRun { block, staged, slot: start, tokens: hole.start - start, token: first + start });
                }
                start = hole.end;
            }
            first += tokens;
        }
        runs
    }
}

impl GroupRun {
    /// The tokens that a sequence had in a layer before the step: K and V `[kvHeads, tokens, headDim]`, in memory of their
    /// own. Tokens outside its window are not included.
    pub fn gather(&self, layer: u32, sequence: usize) -> Result<Kv> {
        self.check()?;
        let pages = self.pages_before(layer, sequence)?;
        // Their unwritten slots were zeroed when the run began.
        self.slabs.gather(LayerPart { layer, pages: &pages, holes: &|_| Vec::new() }, &self.budget)
    }
}

impl Slabs {
    /// Copies K and V of a layer to memory of their own.
    fn gather(&self, of: LayerPart<'_>, budget: &Arc<Budget>) -> Result<Kv> {
        let (layer, tokens) = (of.layer, of.tokens());
        let gathered = |part: KeyOrValue| {
            let dims = Dims::new("shape", &[self.shape.heads(), tokens, self.shape.pages.section(part).head_dim])?;
            let view = View::given(dims, self.shape.read_dtype(part), budget)?;
            match self.slab.form()? {
                Form::Launched(stream) => {
                    let launched = Launched { stream, slabs: self };
                    launched.gather(LayerRead { layer, runs: &of.runs(), tokens }, part, &view)?;
                }
                Form::Portable => {
                    let mut out = zeroed_bytes(view.bytes())?;
                    Reader { slabs: self, is_portable: true, slab: &[], staging: &[], layer, part }
                        .read_part(&of, &mut out)?;
                    view.fill(&out)?;
                }
                Form::Bytes(_) => {
                    let failed = std::cell::RefCell::new(Ok(()));
                    view.buffer.edit(&[self.slab.storage(), self.staging.storage()], |out, sources| {
                        let (slab, staging) = (self.slab.pages(sources[0]), self.staging.pages(sources[1]));
                        let reader = Reader { slabs: self, is_portable: false, slab, staging, layer, part };
                        *failed.borrow_mut() = reader.read_part(&of, out);
                    })?;
                    failed.into_inner()?;
                }
            }
            Ok::<_, Error>(view)
        };
        Ok(Kv { k: gathered(KeyOrValue::Key)?, v: gathered(KeyOrValue::Value)? })
    }

    /// Runs `work` with a reader of the keys of a layer.
    fn with_reader<T>(&self, layer: u32, work: impl FnOnce(Reader<'_>) -> Result<T>) -> Result<T> {
        let part = KeyOrValue::Key;
        if let Form::Portable = self.slab.form()? {
            return work(Reader { slabs: self, is_portable: true, slab: &[], staging: &[], layer, part });
        }
        self.slab.inspect(|slab| {
            self.staging.inspect(|staging| work(Reader { slabs: self, is_portable: false, slab, staging, layer, part }))
        })
    }
}

impl Reader<'_> {
    /// Copies the tokens of these pages, head by head.
    fn read_part(&self, of: &LayerPart<'_>, out: &mut [u8]) -> Result<()> {
        let (stores, shape) = (Carrier::of(out.len()), &self.slabs.shape);
        let row = shape.pages.section(self.part).head_dim * shape.read_dtype(self.part).bytes();
        let page_bytes = shape.pages.shape().block_size as usize * row;
        each_rows(out, shape.heads(), of.pages, page_bytes, row, |pages, heads| {
            let mut start = 0;
            for page in pages {
                let end = start + page.tokens as usize * row;
                let holes = (of.holes)(page);
                // Head by head within a page, so that the page is read in order.
                for (head, out) in heads.iter_mut().enumerate() {
                    let rows = &mut out[start..end];
                    self.read(page, head as u32, 0, rows, stores)?;
                    for run in &holes {
                        rows[run.start as usize * row..run.end as usize * row].fill(0);
                    }
                }
                start = end;
            }
            stores.settle();
            Ok(())
        })
    }

    /// Copies the rows of a head of a page from `slot` on, as many as `out` has room for.
    fn read(&self, page: &PageRead, head: u32, slot: u32, out: &mut [u8], stores: Carrier) -> Result<()> {
        let (of, block, layer) = self.slabs.page(page.block, self.layer, page.staged);
        let (shape, layout) = (&self.slabs.shape, &of.layout);
        let HeadPlace { codes, row_bytes, scales } = layout.head_place(block, layer, self.part, head);
        let section = layout.section(self.part);
        let Some(codec) = &shape.codecs[self.part as usize] else {
            let start = codes + slot as usize * row_bytes;
            if self.is_portable {
                return portable::read(of, start, out);
            }
            stores.carry(out, &self.bytes(page, start..start + out.len())?);
            return Ok(());
        };
        let codes = self.bytes(page, codes..codes + section.head_bytes)?;
        let scales = scales.map(|scales| self.bytes(page, scales..scales + section.scale_bytes)).transpose()?;
        as_floats(out, section.head_dim, |row, values| {
            let slot = slot as usize + row;
            if page.staged.is_some() {
                let (start, element) = (slot * row_bytes, shape.dtype.bytes());
                to_f32(shape.dtype, &codes[start..start + values.len() * element], values);
            } else {
                codec.decode(&codes, scales.as_deref().unwrap_or_default(), slot, values);
            }
        });
        Ok(())
    }

    /// Bytes of the slab that a page is in.
    fn bytes(&self, page: &PageRead, range: Range<usize>) -> Result<Cow<'_, [u8]>> {
        if !self.is_portable {
            return Ok(Cow::Borrowed(&if page.staged.is_some() { self.staging } else { self.slab }[range]));
        }
        let mut bytes = zeroed_bytes(range.len())?;
        portable::read(self.slabs.page(page.block, self.layer, page.staged).0, range.start, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}

/// Calls `work` with the index of a row and floats for rows of `dim` elements from that row on: the memory of `out` itself
/// if it is aligned, else one row at a time, which is then copied.
fn as_floats(out: &mut [u8], dim: usize, mut work: impl FnMut(usize, &mut [f32])) {
    if let Ok(values) = bytemuck::try_cast_slice_mut(out) {
        return work(0, values);
    }
    let mut row = vec![0.; dim];
    for (place, out) in out.chunks_exact_mut(4 * dim).enumerate() {
        work(place, &mut row);
        out.copy_from_slice(bytemuck::cast_slice(&row));
    }
}
