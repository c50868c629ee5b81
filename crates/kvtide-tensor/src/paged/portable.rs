//! Plain pages in candle's tensor operations alone: what a device without kernels of its own runs.
//!
//! Rows are set and read as neighbouring elements of the slab, at most 1 MiB at a time. That takes a slab of one element type:
//! in a slab of bytes no tensor operation can put floats, and its pages go through memory that the host sees.

use std::ops::Range;

use candle_core::{CpuStorage, Tensor};
use kvtide_core::paged::WritePlan;

use super::rows::TokenRows;
use super::slabs::Slab;
use crate::base::dtype::{DType, bytes_mut};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::device::edit::inspect;
use crate::kernels::pages::heads;

/// Bytes of one operation.
const MOST: usize = 1 << 20;

/// Puts a plan's rows where it says.
pub(super) fn scatter(slab: &Slab, plan: &WritePlan, layers: Range<u32>, rows: &[TokenRows<'_>; 2]) -> Result<()> {
    let first = layers.start;
    for (layer, run) in layers.flat_map(|layer| plan.runs().iter().map(move |run| (layer, run))) {
        for (part, head) in heads(&slab.layout) {
            let row = slab.layout.section(part).row_bytes;
            let most = (MOST / row).max(1);
            for done in (0..run.len as usize).step_by(most) {
                let (token, count) = (run.token as usize + done, most.min(run.len as usize - done));
                let piece = rows[part as usize].piece((layer - first) as usize, head as usize, token, count)?;
                let at = slab.layout.row_offset(run.block, layer, part, head, run.slot) + done * row;
                slab.storage().slice_set(&piece.flatten_all()?, 0, slab.element(at))?;
            }
        }
    }
    Ok(())
}

/// Copies neighbouring rows from the byte `at` of the slab on to `out`.
pub(super) fn read(slab: &Slab, at: usize, out: &mut [u8]) -> Result<()> {
    for (place, out) in out.chunks_mut(MOST).enumerate() {
        let (first, end) = (slab.element(at + place * MOST), slab.element(at + place * MOST + out.len()));
        // Not `copy`, which takes the whole allocation along.
        let piece = Tensor::zeros(end - first, slab.tensor.dtype(), slab.tensor.device())?;
        piece.slice_set(&slab.storage().narrow(0, first, end - first)?, 0, 0)?;
        inspect(&piece, |bytes| {
            out.copy_from_slice(bytes);
            Ok(())
        })?;
    }
    Ok(())
}

/// Copies bytes of the slab to another place in it.
pub(super) fn copy(slab: &Slab, from: Range<usize>, to: usize) -> Result<()> {
    for done in (0..from.len()).step_by(MOST) {
        let (first, end) = (slab.element(from.start + done), slab.element(from.end.min(from.start + done + MOST)));
        // A tensor cannot be set from itself.
        let piece = Tensor::zeros(end - first, slab.tensor.dtype(), slab.tensor.device())?;
        piece.slice_set(&slab.storage().narrow(0, first, end - first)?, 0, 0)?;
        slab.storage().slice_set(&piece, 0, slab.element(to + done))?;
    }
    Ok(())
}

/// Zeroes neighbouring slots of a page, in each head of K and V.
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
    /// Neighbouring tokens of one head, `[count, dim]`.
    fn piece(&self, layer: usize, head: usize, token: usize, count: usize) -> Result<Tensor> {
        if let Some(tensor) = self.tensor() {
            let heads = tensor.rank() - 3;
            let layers = if heads == 1 { tensor.narrow(0, layer, 1)?.squeeze(0)? } else { tensor.clone() };
            return Ok(layers.narrow(0, head, 1)?.squeeze(0)?.narrow(0, token, count)?.contiguous()?);
        }
        let (bytes, rows, dtype) = (self.bytes(&mut std::iter::empty()), &self.rows, self.dtype);
        let elements = count * rows.row / dtype.bytes();
        let mut storage: CpuStorage =
            dtype.zeros(elements).ok_or_else(|| Budget::process().refusal(rows.row as u64))?;
        for (at, row) in bytes_mut(&mut storage)?.chunks_exact_mut(rows.row).enumerate() {
            let from = rows.at(layer, head, token + at);
            row.copy_from_slice(&bytes[from..from + rows.row]);
        }
        Ok(DType::tensor(storage, &[count, elements / count])?)
    }
}
