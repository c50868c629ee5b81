//! The memory of pages: tensors laid out as a `PageLayout` says, the first page on a line of the caches.
//!
//! A group has two of them: the slab with its pages, and the staging slab, where low-bit pages lie in floats until they are full.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::paged::{ALIGNMENT, PageLayout};
use kvtide_cuda::{Span, Stream};

use super::shape::PagedShape;
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

/// The form of what moves pages: see [`Form`].
pub(super) enum SlabForm {
    /// By kernels of the device.
    Launched(Stream),
    /// In candle's operations, where the slab is a tensor of one float type.
    Portable,
    /// On bytes.
    Bytes,
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

    /// How its pages are moved.
    pub(super) fn form(&self) -> Result<SlabForm> {
        Ok(match Form::of(self.tensor.device())? {
            Form::Launched(stream) => SlabForm::Launched(stream),
            Form::Portable if self.layout.uniform().is_some() => SlabForm::Portable,
            Form::Bytes(_) | Form::Portable => SlabForm::Bytes,
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

/// The slabs, and what their pages look like.
#[derive(Clone, Debug)]
pub(crate) struct Slabs {
    pub shape: PagedShape,
    pub slab: Arc<Slab>,
    /// Low-bit pages that are not full: pages of one layer, in floats.
    pub staging: Arc<Slab>,
}

/// Slots of a page that nobody wrote.
pub(super) struct Holes {
    pub block: u32,
    pub layer: u32,
    pub runs: Vec<Range<u32>>,
}

impl Slabs {
    /// Zeroed pages for so many blocks, and a staging slab without pages.
    pub fn new(shape: PagedShape, blocks: u32, budget: &Arc<Budget>) -> Result<Self> {
        let slab = Arc::new(Slab::new(shape.pages, blocks, budget)?);
        Ok(Slabs { shape, slab, staging: Arc::new(Slab::new(shape.staged, 0, budget)?) })
    }

    /// The slab in which a page lies, and its block and layer there: `staged` is its staging page, if it has one.
    pub fn page(&self, block: u32, layer: u32, staged: Option<u32>) -> (&Slab, u32, u32) {
        match staged {
            Some(page) => (&self.staging, page, 0),
            None => (&self.slab, block, layer),
        }
    }
}
