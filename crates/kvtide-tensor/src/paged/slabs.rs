//! The memory of pages and the formats of K and V in it: tensors in the layout of `PageLayout`, with the first page aligned
//! to a cache line.
//!
//! A group has two slabs: one with its pages, and the staging slab, which has low-bit pages as floats until they are full.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::paged::{ALIGNMENT, KeyOrValue, PageFormat, PageLayout, PageShape};
use kvtide_cuda::{ROW_MAX, Span};

use super::options::PagedKvCacheOptions;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::{Budget, Lease};
use crate::device::edit::{edit, edit_once, first_byte, inspect, launch};
use crate::device::form::{Form, is_seen};
use crate::device::memory::zeroed;
use crate::kernels::quantise::Codec;

/// The layouts of both slabs, and the conversion between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagedShape {
    /// The element type of inputs, and of staging pages of quantised parts.
    pub dtype: DType,
    /// The layout of the slab.
    pub pages: PageLayout,
    /// The layout of the staging slab: one layer of one block per page.
    pub staged: PageLayout,
    /// The quantisation of K and V, if they are low-bit.
    pub codecs: [Option<Codec>; 2],
    /// True for K, and for V, if its rows are rotated before they are quantised.
    pub rotated: [bool; 2],
}

impl PagedShape {
    /// The shape for these options; fails if they are not possible.
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
        let rotated = [options.hadamard, options.value_hadamard];
        let of_parts =
            [("hadamard", "keyFormat", shape.key_format), ("valueHadamard", "valueFormat", shape.value_format)];
        for ((argument, of, format), is_rotated) in of_parts.into_iter().zip(rotated) {
            if is_rotated && !format.is_low_bit() {
                return Err(Error::argument(argument, "true", format!("false, unless {of} is one of f8e4m3, q8, q4")));
            }
        }
        let pages = PageLayout::new(shape)?;
        // Unquantised parts have the same format as in the slab.
        let staged = |format: PageFormat| if format.is_low_bit() { own } else { format };
        let (key_format, value_format) = (staged(shape.key_format), staged(shape.value_format));
        let staged = PageLayout::new(PageShape { num_layers: 1, key_format, value_format, ..shape })?;
        let codecs = KeyOrValue::BOTH.map(|part| Codec::of(part, &pages.section(part), rotated[part as usize]));
        Ok(PagedShape { dtype, pages, staged, codecs, rotated })
    }

    /// Fails if the kernels of a device do not support this shape.
    pub fn check_launched(&self) -> Result<()> {
        for (argument, part) in [("headDim", KeyOrValue::Key), ("valueHeadDim", KeyOrValue::Value)] {
            let head_dim = self.pages.section(part).head_dim;
            if self.codecs[part as usize].is_some() && head_dim > ROW_MAX {
                let expected = format!("at most {ROW_MAX} for low-bit pages on this device");
                return Err(Error::argument(argument, head_dim, expected));
            }
        }
        Ok(())
    }

    /// The number of slots in a page.
    pub fn block_size(&self) -> u32 {
        self.pages.shape().block_size
    }

    /// The number of KV heads.
    pub fn heads(&self) -> usize {
        self.pages.shape().num_kv_heads as usize
    }

    /// The element type of K or V in reads: 32-bit floats if quantised, else that of the pages.
    pub fn read_dtype(&self, part: KeyOrValue) -> DType {
        if self.codecs[part as usize].is_some() { DType::F32 } else { self.row_dtype(part) }
    }

    /// The element type of K or V in writes: that of the pages, or if they are quantised that of the inputs.
    pub fn row_dtype(&self, part: KeyOrValue) -> DType {
        DType::of_format(self.pages.section(part).format).unwrap_or(self.dtype)
    }

    /// The number of elements of one token of one layer in K or V.
    pub fn token_elements(&self, part: KeyOrValue) -> usize {
        self.heads() * self.pages.section(part).head_dim
    }

    /// The bytes of this many tokens of one layer in reads.
    pub fn out_bytes(&self, part: KeyOrValue, tokens: usize) -> usize {
        tokens * self.token_elements(part) * self.read_dtype(part).bytes()
    }
}

/// Pages in one allocation.
#[derive(Debug)]
pub(crate) struct Slab {
    pub layout: PageLayout,
    /// The number of its blocks.
    pub blocks: u32,
    /// The blocks in the shape of [`PageLayout::slab_shape`].
    pub tensor: Tensor,
    /// The whole allocation in one dimension, which candle checks faster before each change.
    flat: Tensor,
    /// The byte offset of the first block.
    pub(super) base: usize,
    lease: Lease,
}

impl Slab {
    /// Allocates zeroed pages for this many blocks.
    pub fn new(layout: PageLayout, blocks: u32, budget: &Arc<Budget>) -> Result<Self> {
        let refused = |_| budget.refusal(u64::MAX);
        let bytes = layout.slab_bytes(blocks).map_err(refused)?;
        let elements = layout.slab_elements(blocks).map_err(refused)?;
        let lease = budget.take(bytes as u64)?;
        let dtype = layout.uniform().and_then(DType::of_format).unwrap_or(DType::U8);
        let spare = if bytes == 0 { 0 } else { ALIGNMENT / dtype.bytes() };
        let room = elements.checked_add(spare).ok_or_else(|| budget.refusal(u64::MAX))?;
        let flat = zeroed(dtype, &[room], budget)?;
        // Device memory is always aligned like this.
        let start = if bytes > 0 && is_seen(flat.device()) { first_byte(&flat)?.addr() } else { 0 };
        let base = start.next_multiple_of(ALIGNMENT) - start;
        let tensor = flat.narrow(0, base / dtype.bytes(), elements)?.reshape(layout.slab_shape(blocks))?;
        Ok(Slab { layout, blocks, tensor, flat, base, lease })
    }

    /// The bytes of all its blocks.
    pub fn bytes(&self) -> u64 {
        self.lease.bytes()
    }

    /// The whole allocation, as a source of [`Slab::edit`]; its blocks are [`Slab::pages`] of its bytes.
    pub fn storage(&self) -> &Tensor {
        &self.flat
    }

    /// The index in the allocation of the element at this byte of its blocks.
    pub fn element(&self, byte: usize) -> usize {
        (self.base + byte) / self.tensor.dtype().size_in_bytes()
    }

    /// The blocks in the bytes of its allocation.
    pub fn pages<'a>(&self, storage: &'a [u8]) -> &'a [u8] {
        &storage[self.base..self.base + self.bytes() as usize]
    }

    /// Runs `work` on its blocks and on the bytes of `sources`, which must not overlap them. Does nothing if there are no
    /// blocks.
    pub fn edit(&self, sources: &[&Tensor], work: impl Fn(&mut [u8], &[&[u8]])) -> Result<()> {
        let bytes = self.bytes() as usize;
        edit(&self.flat, sources, |storage, sources| work(&mut storage[self.base..self.base + bytes], sources))
    }

    /// Runs `work` on its blocks, and returns its result. Fails if there are no blocks.
    pub fn edit_once<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let bytes = self.bytes() as usize;
        edit_once(&self.flat, |storage| work(&mut storage[self.base..self.base + bytes]))
    }

    /// The implementation that moves its pages.
    pub(super) fn form(&self) -> Result<Form> {
        Form::of(self.tensor.device())
    }

    /// The blocks in the memory of its allocation.
    pub fn span<'a>(&self, storage: Span<'a>) -> Span<'a> {
        storage.from(self.base)
    }

    /// Runs `work`, which launches kernels, on its blocks and on the memory of `sources`, which must not overlap them. Does
    /// nothing if there are no blocks.
    pub fn launch(&self, sources: &[&Tensor], work: impl Fn(Span<'_>, &[Span<'_>]) -> Result<()>) -> Result<()> {
        launch(&self.flat, sources, |storage, sources| work(self.span(storage), sources))
    }

    /// Runs `work` on its blocks.
    pub fn inspect<T>(&self, work: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        inspect(&self.flat, |storage| work(self.pages(storage)))
    }
}

/// The slabs, and the layouts of their pages.
#[derive(Clone, Debug)]
pub(crate) struct Slabs {
    pub shape: PagedShape,
    pub slab: Arc<Slab>,
    /// Low-bit pages that are not full: pages of one layer, as floats.
    pub staging: Arc<Slab>,
}

/// The unwritten slots of a page.
pub(super) struct Holes {
    pub block: u32,
    pub layer: u32,
    pub runs: Vec<Range<u32>>,
}

impl Slabs {
    /// Allocates zeroed pages for this many blocks, and a staging slab without pages.
    pub fn new(shape: PagedShape, blocks: u32, budget: &Arc<Budget>) -> Result<Self> {
        let slab = Arc::new(Slab::new(shape.pages, blocks, budget)?);
        Ok(Slabs { shape, slab, staging: Arc::new(Slab::new(shape.staged, 0, budget)?) })
    }

    /// The slab that a page is in, and its block and layer there; `staged` is its staging page, if it has one.
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
        DType::U8 => "u8, the dtype".to_owned(),
        DType::F32 => "f32 (the dtype), f16, bf16, f8e4m3, q8 or q4".to_owned(),
        _ => format!("{own} (the dtype), f8e4m3, q8 or q4"),
    };
    Err(Error::argument(argument, format.name(), expected))
}
