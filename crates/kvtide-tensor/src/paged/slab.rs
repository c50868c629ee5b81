//! The memory of pages: a tensor laid out as a `PageLayout` says, its first page on a line of the caches.

use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::paged::{ALIGNMENT, PageLayout};
use kvtide_cuda::{Span, Stream};

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::memory::{Budget, Lease};
use crate::device::edit::{address, edit, inspect, launch};
use crate::device::form::Form;

/// Pages in one allocation.
#[derive(Debug)]
pub(crate) struct Slab {
    pub layout: PageLayout,
    /// Blocks in it.
    pub blocks: u32,
    /// As [`PageLayout::slab_shape`] says.
    pub tensor: Tensor,
    /// The whole allocation in one dimension, which candle checks faster before each change.
    flat: Tensor,
    /// The first byte of the first block in it.
    base: usize,
    lease: Lease,
}

impl Slab {
    /// Zeroed pages for so many blocks.
    pub fn new(layout: PageLayout, blocks: u32, budget: &Arc<Budget>) -> Result<Self> {
        let refused = |_| budget.refusal(u64::MAX);
        let bytes = layout.slab_bytes(blocks).map_err(refused)?;
        let elements = layout.slab_elements(blocks).map_err(refused)?;
        let lease = budget.take(bytes as u64)?;
        let dtype = layout.uniform().and_then(DType::of_format).unwrap_or(DType::U8);
        let spare = if bytes == 0 { 0 } else { ALIGNMENT / dtype.bytes() };
        let room = elements.checked_add(spare).ok_or_else(|| budget.refusal(u64::MAX))?;
        let flat = dtype.zeroed(&[room], budget.device()).ok_or_else(|| budget.refusal(bytes as u64))?;
        // Memory of a device of its own starts on such a line.
        let start = if bytes > 0 && flat.device().is_cpu() { address(&flat)? } else { 0 };
        let base = start.next_multiple_of(ALIGNMENT) - start;
        let tensor = flat.narrow(0, base / dtype.bytes(), elements)?.reshape(layout.slab_shape(blocks))?;
        Ok(Slab { layout, blocks, tensor, flat, base, lease })
    }

    /// Bytes of all its blocks.
    pub fn bytes(&self) -> u64 {
        self.lease.bytes()
    }

    /// The whole allocation, as a source of [`Slab::edit`]; its blocks are [`Slab::pages`] of its bytes.
    pub fn storage(&self) -> &Tensor {
        &self.flat
    }

    /// Which element of the allocation starts at a byte of its blocks.
    pub fn element(&self, byte: usize) -> usize {
        (self.base + byte) / self.tensor.dtype().size_in_bytes()
    }

    /// The blocks in the bytes of its allocation.
    pub fn pages<'a>(&self, storage: &'a [u8]) -> &'a [u8] {
        &storage[self.base..self.base + self.bytes() as usize]
    }

    /// Runs `work` on its blocks and on the bytes of `sources`, which must lie elsewhere. Nothing is done without blocks.
    pub fn edit(&self, sources: &[&Tensor], work: impl Fn(&mut [u8], &[&[u8]])) -> Result<()> {
        let bytes = self.bytes() as usize;
        edit(&self.flat, sources, |storage, sources| work(&mut storage[self.base..self.base + bytes], sources))
    }

    /// The stream of its device, where that has kernels of its own.
    pub fn stream(&self) -> Result<Option<Stream>> {
        Ok(match Form::of(self.tensor.device())? {
            Form::Launched(stream) => Some(stream),
            Form::Bytes(_) | Form::Portable => None,
        })
    }

    /// The blocks in the memory of its allocation.
    pub fn span<'a>(&self, storage: Span<'a>) -> Span<'a> {
        storage.from(self.base)
    }

    /// Runs `work`, which launches kernels, on its blocks and on the memory of `sources`, which must lie elsewhere. Nothing is
    /// done without blocks.
    pub fn launch(&self, sources: &[&Tensor], work: impl Fn(Span<'_>, &[Span<'_>]) -> Result<()>) -> Result<()> {
        launch(&self.flat, sources, |storage, sources| work(self.span(storage), sources))
    }

    /// Runs `work` on its blocks.
    pub fn inspect<T>(&self, work: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        inspect(&self.flat, |storage| work(self.pages(storage)))
    }
}
