//! The memory of pages, and in what form K and V lie there: tensors laid out as a `PageLayout` says, the first page on a line of the
//! caches.
//!
//! A group has two of them: the slab with its pages, and the staging slab, where low-bit pages lie in floats until they are full.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::paged::{ALIGNMENT, KeyOrValue, PageFormat, PageLayout, PageShape};
use kvtide_cuda::{ROW_MAX, Span};

use super::options::PagedKvCacheOptions;
use super::portable;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::{Budget, Lease};
use crate::device::edit::{download, edit, first_byte, inspect, launch};
use crate::device::form::{Form, is_seen};
use crate::device::memory::{DeviceTensor, zeroed};
use crate::kernels::quantise::Codec;

/// The layouts of both slabs, and how rows get from one to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagedShape {
    /// The element type of what goes in, and of staging pages of what is quantised.
    pub dtype: DType,
    /// Of the slab.
    pub pages: PageLayout,
    /// Of the staging slab: one layer of one block each.
    pub staged: PageLayout,
    /// How the low-bit ones of K and V are quantised.
    pub codecs: [Option<Codec>; 2],
    /// K is rotated before it is quantised.
    pub hadamard: bool,
}

impl PagedShape {
    /// What these options ask for, or why it cannot be.
    pub fn new(options: &PagedKvCacheOptions) -> Result<Self> {
        let dtype = options.dtype;
        let own = dtype.page_format();
        let [key_format, value_format] = [("keyFormat", options.key_format), ("valueFormat", options.value_format)]
            .map(|(argument, format)| check_format(argument, format.unwrap_or(own), dtype));
        let shape = PageShape {
            block_size: options.block_size,
            num_layers: options.num_layers,
            num_kv_heads: options.num_kv_heads,
            head_dim: options.head_dim,
            value_head_dim: options.value_head_dim.unwrap_or(options.head_dim),
            key_format: key_format?,
            value_format: value_format?,
        };
        if options.hadamard && !shape.key_format.is_low_bit() {
            return Err(Error::argument("hadamard", "true", "false, unless keyFormat is one of f8e4m3, q8, q4"));
        }
        let pages = PageLayout::new(shape)?;
        // What is not quantised lies there as it does in pages.
        let staged = |format: PageFormat| if format.is_low_bit() { own } else { format };
        let (key_format, value_format) = (staged(shape.key_format), staged(shape.value_format));
        let staged = PageLayout::new(PageShape { num_layers: 1, key_format, value_format, ..shape })?;
        let codecs = KeyOrValue::BOTH.map(|part| Codec::of(part, &pages.section(part), options.hadamard));
        Ok(PagedShape { dtype, pages, staged, codecs, hadamard: options.hadamard })
    }

    /// Refuses what the kernels of a device do not take.
    pub fn check_launched(&self) -> Result<()> {
        for (argument, part) in [("headDim", KeyOrValue::Key), ("valueHeadDim", KeyOrValue::Value)] {
            let head_dim = self.pages.section(part).head_dim;
            if self.codecs[part as usize].is_some() && head_dim > ROW_MAX {
                let expected = format!("at most {ROW_MAX}, for low-bit pages on this device");
                return Err(Error::argument(argument, head_dim, expected));
            }
        }
        Ok(())
    }

    /// Heads of K, and of V.
    pub fn heads(&self) -> usize {
        self.pages.shape().num_kv_heads as usize
    }

    /// The type of the rows of K or V that come out: 32-bit floats where they were quantised, else as they lie in pages.
    pub fn read_dtype(&self, part: KeyOrValue) -> DType {
        if self.codecs[part as usize].is_some() { DType::F32 } else { self.row_dtype(part) }
    }

    /// The type of the rows of K or V on their way into pages: that of the pages, unless those are quantised.
    pub fn row_dtype(&self, part: KeyOrValue) -> DType {
        DType::of_format(self.pages.section(part).format).unwrap_or(self.dtype)
    }

    /// Elements of one token of one layer in K or V.
    pub fn token_elements(&self, part: KeyOrValue) -> usize {
        self.heads() * self.pages.section(part).head_dim
    }

    /// Bytes of so many tokens of one layer as they come out.
    pub fn out_bytes(&self, part: KeyOrValue, tokens: usize) -> usize {
        tokens * self.token_elements(part) * self.read_dtype(part).bytes()
    }
}

/// Pages in one allocation.
#[derive(Debug)]
pub(crate) struct Slab {
    pub layout: PageLayout,
    /// Blocks in it.
    pub blocks: u32,
    /// As [`PageLayout::slab_shape`] says.
    pub tensor: DeviceTensor,
    /// The whole allocation in one dimension, which candle checks faster before each change.
    flat: DeviceTensor,
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
        let flat = zeroed(dtype, &[room], budget)?;
        // Memory of a device of its own starts on such a line.
        let start = if bytes > 0 && is_seen(flat.device()) { first_byte(&flat)?.addr() } else { 0 };
        let base = start.next_multiple_of(ALIGNMENT) - start;
        let tensor = flat.narrow(0, base / dtype.bytes(), elements)?.reshape(layout.slab_shape(blocks))?;
        Ok(Slab { layout, blocks, tensor: DeviceTensor::new(tensor), flat, base, lease })
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
    pub(super) fn form(&self) -> Result<Form> {
        Form::of(self.tensor.device())
    }

    /// Copies bytes of its blocks to the host's memory, from the byte `at` on: whole elements.
    pub(super) fn fetch(&self, at: usize, out: &mut [u8]) -> Result<()> {
        match self.form()? {
            Form::Portable => portable::read(self, at, out),
            Form::Launched(_) | Form::Bytes(_) => download(&self.flat, self.base + at, out),
        }
    }

    /// Copies bytes of the host's memory to its blocks, from the byte `at` on: whole elements.
    pub(super) fn store(&self, at: usize, bytes: &[u8]) -> Result<()> {
        match self.form()? {
            Form::Portable => portable::put(self, at, bytes),
            Form::Launched(stream) => self.launch(&[], |pages, _| Ok(stream.upload(bytes, pages.from(at))?)),
            Form::Bytes(_) => self.edit(&[], |pages, _| pages[at..at + bytes.len()].copy_from_slice(bytes)),
        }
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

fn check_format(argument: &'static str, format: PageFormat, dtype: DType) -> Result<PageFormat> {
    let own = dtype.page_format();
    let is_half = matches!(format, PageFormat::F16 | PageFormat::BF16);
    if format == own || format.is_low_bit() && dtype != DType::U8 || is_half && dtype == DType::F32 {
        return Ok(format);
    }
    let expected = match dtype {
        DType::U8 => "u8, as dtype".to_owned(),
        DType::F32 => "f32, as dtype, or f16, bf16, f8e4m3, q8, q4".to_owned(),
        _ => format!("{own}, as dtype, or f8e4m3, q8, q4"),
    };
    Err(Error::argument(argument, format.name(), expected))
}
