//! Pages on a device without kernels: with candle's tensor operations, and with two copies.
//!
//! ```text
//! one float type      rows are set and read on the device, as neighbouring elements of the slab
//! other pages         rows and pages are copied to the host, quantised or reordered there, and copied back as bytes
//! ```
//!
//! The memory is never accessed directly. A slab of bytes, for low-bit pages or for K and V of different sizes or types, has
//! no float elements for tensor operations, so its pages take the second way: whole pages if they are quantised, dequantised
//! or partly zeroed, and only the rows if they keep their format. At most 1 MiB at a time.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::Tensor;
use kvtide_core::paged::{PageWrite, Seal, StagingContent, WritePlan};

use super::rows::TokenRows;
use super::scratch::Scratch;
use super::slabs::{Holes, Slab, Slabs};
use crate::base::dtype::tensor_dtype;
use crate::base::error::Result;
use crate::base::zeroed::zeroed_bytes;
use crate::device::edit::{download, upload};
use crate::kernels::Carrier;
use crate::kernels::pages::{RowPlaces, Sources, check_sources, heads, write_run};

/// The most bytes of one operation.
const MOST: usize = 1 << 20;

/// The pages of a cache on such a device.
pub(super) struct Portable<'a> {
    pub slabs: &'a Slabs,
}

impl Portable<'_> {
    /// Prepares staging pages: zeroes them, or dequantises pages that were sealed.
    pub fn open(&self, writes: &[PageWrite], scratch: &Scratch) -> Result<()> {
        let Slabs { shape, slab, staging } = self.slabs;
        for write in writes {
            let is_sealed = match write.before {
                StagingContent::Sealed => true,
                StagingContent::Other => false,
                _ => continue,
            };
            let mut staged = zeroed_bytes(shape.staged.page_bytes())?;
            if is_sealed {
                let page = page(slab, write.page.block, write.page.layer)?;
                scratch.with(|scratch| shape.unseal(&page, &mut staged, scratch))?;
            }
            put(staging, shape.staged.page_offset(write.staged, 0), &staged)?;
        }
        Ok(())
    }

    /// Writes rows of some layers to the places in a plan.
    pub fn write(
        &self,
        plan: &WritePlan,
        layers: Range<u32>,
        rows: &[TokenRows<'_>; 2],
        scratch: &Scratch,
    ) -> Result<()> {
        let Slabs { shape, slab, staging } = self.slabs;
        let layout = &shape.pages;
        if layout.uniform().is_some() {
            return scatter(slab, plan, layers, rows);
        }
        let copies = [rows[0].on_host(layers.len(), shape.heads())?, rows[1].on_host(layers.len(), shape.heads())?];
        let sources: Sources<'_> = [0, 1].map(|part| (&*copies[part].0, copies[part].1));
        check_sources(&shape.staged, layers.clone(), plan.runs(), &sources);
        let place = |layer: u32| (layer - layers.start) as usize;
        if !layout.is_low_bit() {
            for (layer, run) in layers.clone().flat_map(|layer| plan.runs().iter().map(move |run| (layer, run))) {
                for (part, head) in heads(layout) {
                    let (bytes, of) = &sources[part as usize];
                    let mut own = zeroed_bytes(run.len as usize * of.row)?;
                    copy_rows(bytes, of, (place(layer), head, run.token), &mut own);
                    put(slab, layout.row_offset(run.block, layer, part, head, run.slot), &own)?;
                }
            }
            return Ok(());
        }
        for run in plan.whole_runs(shape.block_size()) {
            for layer in layers.clone() {
                let mut page = zeroed_bytes(layout.page_bytes())?;
                scratch.with(|scratch| {
                    for head in heads(layout) {
                        shape.write_whole(&mut page, head, place(layer), run, &sources, scratch);
                    }
                })?;
                put(slab, layout.page_offset(run.block, layer), &page)?;
            }
        }
        for write in plan.pages().iter().filter(|write| layers.contains(&write.page.layer)) {
            let mut staged = page(staging, write.staged, 0)?;
            let run = &plan.runs()[write.run as usize];
            write_run(&mut staged, &shape.staged, place(write.page.layer), run, &sources, Carrier::PLAIN);
            put(staging, shape.staged.page_offset(write.staged, 0), &staged)?;
        }
        Ok(())
    }

    /// Quantises pages that are full.
    pub fn seal(&self, seals: &[Seal], scratch: &Scratch) -> Result<()> {
        let Slabs { shape, slab, staging } = self.slabs;
        for seal in seals {
            let (staged, mut sealed) = (page(staging, seal.staged, 0)?, zeroed_bytes(shape.pages.page_bytes())?);
            scratch.with(|scratch| shape.seal(&staged, &mut sealed, scratch))?;
            put(slab, shape.pages.page_offset(seal.page.block, seal.page.layer), &sealed)?;
        }
        Ok(())
    }

    /// Zeroes slots of quantised pages.
    pub fn zero(&self, pages: &[Holes]) -> Result<()> {
        let Slabs { shape, slab, .. } = self.slabs;
        for Holes { block, layer, runs } in pages {
            let mut bytes = page(slab, *block, *layer)?;
            shape.zero(&mut bytes, runs);
            put(slab, shape.pages.page_offset(*block, *layer), &bytes)?;
        }
        Ok(())
    }
}

/// Writes a plan's rows to their places, on the device.
fn scatter(slab: &Slab, plan: &WritePlan, layers: Range<u32>, rows: &[TokenRows<'_>; 2]) -> Result<()> {
    let first = layers.start;
    for (layer, run) in layers.flat_map(|layer| plan.runs().iter().map(move |run| (layer, run))) {
        for (part, head) in heads(&slab.layout) {
            let row = slab.layout.section(part).row_bytes;
            let most = (MOST / row).max(1);
            for done in (0..run.len as usize).step_by(most) {
                let (token, count) = (run.token as usize + done, most.min(run.len as usize - done));
                let at = slab.layout.row_offset(run.block, layer, part, head, run.slot) + done * row;
                let rows = &rows[part as usize];
                match rows.tensor() {
                    Some(tensor) => {
                        let piece = piece(tensor, (layer - first) as usize, head as usize, token, count)?;
                        slab.storage().slice_set(&piece.flatten_all()?, 0, slab.element(at))?;
                    }
                    None => {
                        let mut own = zeroed_bytes(count * row)?;
                        let bytes = rows.bytes(&mut std::iter::empty());
                        copy_rows(bytes, &rows.rows, ((layer - first) as usize, head, token as u32), &mut own);
                        put(slab, at, &own)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Neighbouring tokens of one head, `[count, dim]`.
fn piece(tensor: &Tensor, layer: usize, head: usize, token: usize, count: usize) -> Result<Tensor> {
    let heads = tensor.rank() - 3;
    let layers = if heads == 1 { tensor.narrow(0, layer, 1)?.squeeze(0)? } else { tensor.clone() };
    Ok(layers.narrow(0, head, 1)?.squeeze(0)?.narrow(0, token, count)?.contiguous()?)
}

/// Copies as many neighbouring tokens of one head as `out` has room for.
fn copy_rows(bytes: &[u8], rows: &RowPlaces, (layer, head, token): (usize, u32, u32), out: &mut [u8]) {
    for (at, row) in out.chunks_exact_mut(rows.row.max(1)).enumerate() {
        let from = rows.at(layer, head as usize, token as usize + at);
        row.copy_from_slice(&bytes[from..from + rows.row]);
    }
}

/// A copy of a page.
fn page(slab: &Slab, block: u32, layer: u32) -> Result<Vec<u8>> {
    let mut bytes = zeroed_bytes(slab.layout.page_bytes())?;
    read(slab, slab.layout.page_offset(block, layer), &mut bytes)?;
    Ok(bytes)
}

/// Copies neighbouring bytes of the slab, from the byte `at` on, to `out`: whole elements.
pub(super) fn read(slab: &Slab, at: usize, out: &mut [u8]) -> Result<()> {
    for (place, out) in out.chunks_mut(MOST).enumerate() {
        let (first, end) = (slab.element(at + place * MOST), slab.element(at + place * MOST + out.len()));
        // Not `copy`, which would copy the whole allocation.
        let piece = Tensor::zeros(end - first, slab.tensor.dtype(), slab.tensor.device())?;
        piece.slice_set(&slab.storage().narrow(0, first, end - first)?, 0, 0)?;
        download(&piece, 0, out)?;
    }
    Ok(())
}

/// Copies bytes to the slab, from its byte `at` on: whole elements.
pub(super) fn put(slab: &Slab, at: usize, bytes: &[u8]) -> Result<()> {
    let dtype = tensor_dtype("slab", &slab.tensor)?;
    for (place, bytes) in bytes.chunks(MOST).enumerate() {
        let piece = upload(bytes, dtype, &[bytes.len() / dtype.bytes()], slab.tensor.device())?;
        slab.storage().slice_set(&piece, 0, slab.element(at + place * MOST))?;
    }
    Ok(())
}

/// Copies bytes of a slab to a place in the same slab, or in another one of the same type.
pub(super) fn copy(source: &Slab, from: Range<usize>, target: &Slab, to: usize) -> Result<()> {
    for done in (0..from.len()).step_by(MOST) {
        let (first, end) = (source.element(from.start + done), source.element(from.end.min(from.start + done + MOST)));
        // candle cannot set a tensor from itself.
        let piece = Tensor::zeros(end - first, source.tensor.dtype(), source.tensor.device())?;
        piece.slice_set(&source.storage().narrow(0, first, end - first)?, 0, 0)?;
        target.storage().slice_set(&piece, 0, target.element(to + done))?;
    }
    Ok(())
}

/// Zeroes neighbouring slots of an unquantised page, in each head of K and V, on the device.
pub(super) fn zero(slab: &Slab, block: u32, layer: u32, slots: Range<u32>) -> Result<()> {
    for (part, head) in heads(&slab.layout) {
        let (start, bytes) = (
            slab.layout.row_offset(block, layer, part, head, slots.start),
            slots.len() * slab.layout.section(part).row_bytes,
        );
        for done in (0..bytes).step_by(MOST) {
            let (first, end) = (slab.element(start + done), slab.element(start + bytes.min(done + MOST)));
            let zeros = Tensor::zeros(end - first, slab.tensor.dtype(), slab.tensor.device())?;
            slab.storage().slice_set(&zeros, 0, first)?;
        }
    }
    Ok(())
}

impl TokenRows<'_> {
    /// Its bytes on the host, and the places of the rows in them; a tensor is downloaded without gaps.
    fn on_host(&self, layers: usize, heads: usize) -> Result<(Cow<'_, [u8]>, RowPlaces)> {
        let Some(tensor) = self.tensor() else {
            return Ok((Cow::Borrowed(self.bytes(&mut std::iter::empty())), self.rows));
        };
        let (tokens, row) = (self.tokens as usize, self.rows.row);
        let [head, layer] = [tokens * row, heads * tokens * row];
        let copy = self.dtype.download(tensor)?;
        debug_assert_eq!(copy.len(), layers * layer, "all rows of the call");
        Ok((Cow::Owned(copy), RowPlaces { offset: 0, layer, head, token: row, row }))
    }
}
