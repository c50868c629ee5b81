//! Where a row of K or V lies in the slab of a paged cache.
//!
//! ```text
//! slab    [ block 0 ][ block 1 ] ...
//! block   [ layer 0 ][ layer 1 ] ...                one contiguous piece: saved, sent or zeroed by one copy
//! layer   [ K section ][ V section ]
//! section [ head 0: slot 0, slot 1, ... ][ head 1 ] ...
//! row     head_dim elements of one token
//! ```
//!
//! As a tensor of one float type a slab is `[blocks, layers, 2, kv_heads, block_size, head_dim]`.
//!
//! Invariants: every size of one block fits in `isize` (checked once, in [`PageLayout::new`]), and so does every offset
//! inside a slab that [`PageLayout::slab_bytes`] accepted. All calls are O(1).

use crate::count::count_positive;
use crate::error::{Error, Result};

/// The numbers that a layout follows from; all are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShape {
    /// Tokens of a block.
    pub block_size: u32,
    /// Layers that share the block.
    pub num_layers: u32,
    /// Heads of K, and of V.
    pub num_kv_heads: u32,
    /// Elements of one row: one token of one head.
    pub head_dim: u32,
    /// Bytes of one element.
    pub element_bytes: u32,
}

/// The two halves of a layer's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// K.
    Key,
    /// V.
    Value,
}

impl Part {
    /// Both, in the order in which they lie.
    pub const BOTH: [Part; 2] = [Part::Key, Part::Value];
}

/// The byte layout of one block, and with it of a slab of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    shape: PageShape,
    row_bytes: usize,
    head_bytes: usize,
    section_bytes: usize,
    layer_bytes: usize,
    block_bytes: usize,
}

impl PageLayout {
    /// The layout of blocks of this shape; refused when a number is 0 or one block is more than memory can address.
    pub fn new(shape: PageShape) -> Result<Self> {
        let size = |argument, value: u32| count_positive(argument, value.into()).map(|value| value as usize);
        let block_size = size("blockSize", shape.block_size)?;
        let num_layers = size("numLayers", shape.num_layers)?;
        let num_kv_heads = size("numKvHeads", shape.num_kv_heads)?;
        let row_bytes = product(size("headDim", shape.head_dim)?, size("elementBytes", shape.element_bytes)?)?;
        let head_bytes = product(block_size, row_bytes)?;
        let section_bytes = product(num_kv_heads, head_bytes)?;
        let layer_bytes = product(Part::BOTH.len(), section_bytes)?;
        let block_bytes = product(num_layers, layer_bytes)?;
        Ok(PageLayout { shape, row_bytes, head_bytes, section_bytes, layer_bytes, block_bytes })
    }

    /// What the layout was made from.
    #[must_use]
    pub fn shape(&self) -> PageShape {
        self.shape
    }

    /// Bytes of one token of one head, in K or in V.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of one layer of a block, K and V.
    #[must_use]
    pub fn layer_bytes(&self) -> usize {
        self.layer_bytes
    }

    /// Bytes of one block, all its layers.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes of a slab; refused when memory cannot address so many.
    pub fn slab_bytes(&self, blocks: u32) -> Result<usize> {
        addressable((blocks as usize).checked_mul(self.block_bytes), blocks)
    }

    /// Elements of a slab; refused as its bytes are.
    pub fn slab_elements(&self, blocks: u32) -> Result<usize> {
        Ok(self.slab_bytes(blocks)? / self.shape.element_bytes as usize)
    }

    /// First byte of a row in the slab. The next slots of the same head follow it, `row_bytes` apart; the next heads lie
    /// `block_size * row_bytes` apart.
    ///
    /// # Panics
    ///
    /// When layer, head or slot is not in the block, or the block is in no slab that memory can address.
    #[must_use]
    pub fn row_offset(&self, block: u32, layer: u32, part: Part, head: u32, slot: u32) -> usize {
        let PageShape { block_size, num_layers, num_kv_heads, .. } = self.shape;
        assert!(layer < num_layers, "layer {layer} of {num_layers}");
        assert!(head < num_kv_heads, "head {head} of {num_kv_heads}");
        assert!(slot < block_size, "slot {slot} of {block_size}");
        let block_start = (block as usize).checked_mul(self.block_bytes).expect("a block of an addressable slab");
        let section_start = layer as usize * self.layer_bytes + part as usize * self.section_bytes;
        block_start + section_start + head as usize * self.head_bytes + slot as usize * self.row_bytes
    }
}

fn product(a: usize, b: usize) -> Result<usize> {
    addressable(a.checked_mul(b), 1)
}

fn addressable(bytes: Option<usize>, blocks: u32) -> Result<usize> {
    bytes
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or(Error::OutOfMemory { count: blocks.into(), what: "blocks" })
}
