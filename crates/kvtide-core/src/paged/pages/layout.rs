//! The byte layout of the slab of a paged cache: the place of each row of K or V.
//!
//! ```text
//! slab    [ block 0 ][ block 1 ] ...
//! block   [ layer 0 ][ layer 1 ] ...                one contiguous piece: saved, sent or zeroed by one copy
//! page    [ K section ][ V section ]                one layer of one block
//! section [ codes: head 0, head 1, ... ][ scales: head 0, head 1, ... ]
//! head    [ slot 0 ][ slot 1 ] ...                  a row of codes for each token
//! ```
//!
//! If K and V have the same float type and the same head dim, there are no gaps, and a slab is a tensor `[blocks,
//! layers, 2, kv_heads, block_size, head_dim]` of that type. Otherwise it is bytes, and every section, its scales and
//! every page start at a multiple of [`ALIGNMENT`]. Every size of one block fits in `isize`, and so does every offset
//! inside a slab that [`PageLayout::slab_bytes`] accepted. All calls are O(1).

use super::format::{KeyOrValue, PageFormat};
use crate::count::{count, count_positive};
use crate::error::{Error, Result};

/// The alignment of sections in a slab of bytes.
pub const ALIGNMENT: usize = 64;

/// The numbers that determine a layout; all but `value_head_dim` are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShape {
    /// Tokens of a block.
    pub block_size: u32,
    /// Layers that share the block.
    pub num_layers: u32,
    /// Heads of K, and of V.
    pub num_kv_heads: u32,
    /// Elements of a row of K: one token of one head.
    pub head_dim: u32,
    /// Elements of a row of V; 0 if there is no V.
    pub value_head_dim: u32,
    /// The format of K.
    pub key_format: PageFormat,
    /// The format of V.
    pub value_format: PageFormat,
}

/// The K or the V of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionLayout {
    /// The format of its rows.
    pub format: PageFormat,
    /// Elements of a row.
    pub head_dim: usize,
    /// Bytes of the codes of a row; the next slot of the head follows.
    pub row_bytes: usize,
    /// Bytes of the codes of a head; the next head follows.
    pub head_bytes: usize,
    /// Bytes of the scales of a head; the next head's follow. 0 if there are none.
    pub scale_bytes: usize,
    /// First byte in the page.
    offset: usize,
    /// First byte of the scales in the page.
    scales: usize,
}

/// One layer of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page {
    /// Index of the block.
    pub block: u32,
    /// The layer.
    pub layer: u32,
}

/// The slot of a token in the slab; the same for every head of its layer, in K and in V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Index of the block.
    pub block: u32,
    /// The slot in the block.
    pub index: u32,
}

/// A page with tokens to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRead {
    /// Index of the block in the slab.
    pub block: u32,
    /// Number of tokens in the page.
    pub tokens: u32,
    /// The staging page, if it contains the rows.
    pub staged: Option<u32>,
    /// True for a staged page whose quantised form is in the slab as well.
    pub is_sealed: bool,
}

/// The place of one head of K or V of one page in the slab, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadPlace {
    /// First byte of the codes of slot 0.
    pub codes: usize,
    /// Bytes from a slot's codes to the next.
    pub row_bytes: usize,
    /// First byte of the scales, for formats that have them.
    pub scales: Option<usize>,
}

/// The byte layout of one block, and so of a slab of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    shape: PageShape,
    sections: [SectionLayout; 2],
    page_bytes: usize,
    block_bytes: usize,
}

impl PageLayout {
    /// Returns the layout of blocks of this shape, or an error if a number is 0 or memory cannot address one block.
    pub fn new(shape: PageShape) -> Result<Self> {
        let size = |argument, value: u32| count_positive(argument, value.into()).map(|value| value as usize);
        let sizes = SectionSizes {
            block_size: size("blockSize", shape.block_size)?,
            heads: size("numKvHeads", shape.num_kv_heads)?,
            packed: is_uniform(&shape),
        };
        let num_layers = size("numLayers", shape.num_layers)?;
        let head_dims =
            [size("headDim", shape.head_dim)?, count("valueHeadDim", shape.value_head_dim.into())? as usize];
        let (key, end) = addressable(sizes.section(KeyOrValue::Key, shape.key_format, head_dims[0], 0), 1)?;
        let (value, end) = addressable(sizes.section(KeyOrValue::Value, shape.value_format, head_dims[1], end), 1)?;
        let block_bytes = addressable(end.checked_mul(num_layers).filter(fits), 1)?;
        Ok(PageLayout { shape, sections: [key, value], page_bytes: end, block_bytes })
    }

    /// The shape that the layout was made from.
    #[must_use]
    pub fn shape(&self) -> PageShape {
        self.shape
    }

    /// The element type of the whole slab; [`None`] if the slab is bytes.
    #[must_use]
    pub fn uniform(&self) -> Option<PageFormat> {
        is_uniform(&self.shape).then_some(self.shape.key_format)
    }

    /// True if K or V is quantised.
    #[must_use]
    pub fn is_low_bit(&self) -> bool {
        self.sections.iter().any(|section| section.format.is_low_bit())
    }

    /// The section of K or of V, the same in every page.
    #[must_use]
    pub fn section(&self, part: KeyOrValue) -> SectionLayout {
        self.sections[part as usize]
    }

    /// Bytes of one page: one layer of a block, K and V.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes of one block, all its layers.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes that one token takes in all layers, including its share of scales and gaps.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        self.block_bytes as f64 / f64::from(self.shape.block_size)
    }

    /// Bytes of a slab, or an error if memory cannot address them.
    pub fn slab_bytes(&self, blocks: u32) -> Result<usize> {
        addressable((blocks as usize).checked_mul(self.block_bytes).filter(fits), blocks)
    }

    /// Elements of a slab, which are bytes unless it is [uniform](PageLayout::uniform), or an error if memory cannot
    /// address them.
    pub fn slab_elements(&self, blocks: u32) -> Result<usize> {
        Ok(self.slab_bytes(blocks)? / self.uniform().and_then(PageFormat::element_bytes).unwrap_or(1))
    }

    /// The shape of a slab as a tensor: of elements if it is [uniform](PageLayout::uniform), else of the bytes of
    /// pages.
    #[must_use]
    pub fn slab_shape(&self, blocks: u32) -> Vec<usize> {
        let PageShape { block_size, num_layers, num_kv_heads, head_dim, .. } = self.shape;
        let sizes = |sizes: &[u32]| sizes.iter().map(|&size| size as usize).collect();
        match self.uniform() {
            Some(_) => sizes(&[blocks, num_layers, KeyOrValue::BOTH.len() as u32, num_kv_heads, block_size, head_dim]),
            None => [sizes(&[blocks, num_layers]), vec![self.page_bytes]].concat(),
        }
    }

    /// First byte of a page in the slab. Panics if the layer is not in the block, or memory cannot address the block.
    #[must_use]
    pub fn page_offset(&self, block: u32, layer: u32) -> usize {
        let num_layers = self.shape.num_layers;
        assert!(layer < num_layers, "layer {layer} of {num_layers}");
        let block_start = (block as usize).checked_mul(self.block_bytes).expect("a block of an addressable slab");
        block_start + layer as usize * self.page_bytes
    }

    /// The place of a head of K or V of a page in the slab. Panics if the head or the page does not exist.
    #[must_use]
    pub fn head_place(&self, block: u32, layer: u32, part: KeyOrValue, head: u32) -> HeadPlace {
        let place = self.head_in_page(part, head);
        let page = self.page_offset(block, layer);
        HeadPlace { codes: page + place.codes, scales: place.scales.map(|scales| page + scales), ..place }
    }

    /// The place of a head of K or V in its page. Panics if the head does not exist.
    #[must_use]
    pub fn head_in_page(&self, part: KeyOrValue, head: u32) -> HeadPlace {
        let num_kv_heads = self.shape.num_kv_heads;
        assert!(head < num_kv_heads, "head {head} of {num_kv_heads}");
        let section = &self.sections[part as usize];
        HeadPlace {
            codes: section.offset + head as usize * section.head_bytes,
            row_bytes: section.row_bytes,
            scales: (section.scale_bytes > 0).then(|| section.scales + head as usize * section.scale_bytes),
        }
    }

    /// First byte of a row's codes in the slab. Panics if the slot, head or layer does not exist.
    #[must_use]
    pub fn row_offset(&self, block: u32, layer: u32, part: KeyOrValue, head: u32, slot: u32) -> usize {
        let block_size = self.shape.block_size;
        assert!(slot < block_size, "slot {slot} of {block_size}");
        let place = self.head_place(block, layer, part, head);
        place.codes + slot as usize * place.row_bytes
    }
}

/// The sizes that both sections share.
struct SectionSizes {
    block_size: usize,
    heads: usize,
    /// True if there are no gaps between sections.
    packed: bool,
}

impl SectionSizes {
    /// A section that starts at `offset` of the page, and the start of the next one; [`None`] if that exceeds memory.
    fn section(
        &self,
        part: KeyOrValue,
        format: PageFormat,
        head_dim: usize,
        offset: usize,
    ) -> Option<(SectionLayout, usize)> {
        let row_bytes = format.row_bytes(head_dim)?;
        let head_bytes = row_bytes.checked_mul(self.block_size)?;
        // Without rows there is nothing to scale.
        let scale_bytes = if head_dim == 0 { 0 } else { format.scale_bytes(part, self.block_size, head_dim)? };
        let codes_end = head_bytes.checked_mul(self.heads)?.checked_add(offset)?;
        let scales = self.start(codes_end)?;
        let end = self.start(scale_bytes.checked_mul(self.heads)?.checked_add(scales)?).filter(fits)?;
        Some((SectionLayout { format, head_dim, row_bytes, head_bytes, scale_bytes, offset, scales }, end))
    }

    /// The first offset from `end` on at which a section or its scales may start.
    fn start(&self, end: usize) -> Option<usize> {
        if self.packed { Some(end) } else { end.checked_next_multiple_of(ALIGNMENT) }
    }
}

fn is_uniform(shape: &PageShape) -> bool {
    shape.key_format == shape.value_format && !shape.key_format.is_low_bit() && shape.head_dim == shape.value_head_dim
}

fn fits(bytes: &usize) -> bool {
    isize::try_from(*bytes).is_ok()
}

fn addressable<T>(found: Option<T>, blocks: u32) -> Result<T> {
    found.ok_or(Error::OutOfMemory { count: blocks.into(), what: "blocks" })
}
