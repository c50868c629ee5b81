//! The blocks of one sequence, layer by layer, as a plain list.
//!
//! ```text
//! layer 0   logical block 0, 1, 2 -> handles
//! layer 1   logical block 0       -> handle
//! ```
//!
//! A table does not know the pool of its handles; the caller does. A layer without blocks costs nothing. Every call
//! is O(1), `append_block` amortised.

use std::collections::HashMap;

use crate::count::count_positive;
use crate::error::{Error, Result};
use crate::paged::pool::BlockHandle;

/// Which block holds which tokens of a layer: logical block i holds tokens `i * block_size` on.
#[derive(Clone, Debug)]
pub struct BlockTable {
    num_layers: u32,
    block_size: u32,
    layers: HashMap<u32, Vec<BlockHandle>>,
}

impl BlockTable {
    /// An empty table.
    pub fn new(num_layers: u32, block_size: u32) -> Result<Self> {
        let num_layers = count_positive("numLayers", num_layers.into())?;
        let block_size = count_positive("blockSize", block_size.into())?;
        Ok(BlockTable { num_layers, block_size, layers: HashMap::new() })
    }

    /// Adds a block behind those that the layer has.
    pub fn append_block(&mut self, layer: u32, block: BlockHandle) -> Result<()> {
        let count = u64::from(self.num_blocks(layer)?) + 1;
        let out_of_memory = |_| Error::OutOfMemory { count, what: "blocks" };
        self.layers.try_reserve(1).map_err(out_of_memory)?;
        let blocks = self.layers.entry(layer).or_default();
        blocks.try_reserve(1).map_err(out_of_memory)?;
        blocks.push(block);
        Ok(())
    }

    /// The block at a place, or none behind the last.
    pub fn get_block(&self, layer: u32, logical: u32) -> Result<Option<BlockHandle>> {
        Ok(self.blocks(layer)?.get(logical as usize).copied())
    }

    /// Blocks of a layer.
    pub fn num_blocks(&self, layer: u32) -> Result<u32> {
        Ok(self.blocks(layer)?.len() as u32)
    }

    /// Tokens that a layer's blocks can hold.
    pub fn token_capacity(&self, layer: u32) -> Result<u64> {
        Ok(u64::from(self.num_blocks(layer)?) * u64::from(self.block_size))
    }

    fn blocks(&self, layer: u32) -> Result<&[BlockHandle]> {
        if layer >= self.num_layers {
            return Err(Error::argument("layer", layer, format!("below {}", self.num_layers)));
        }
        Ok(self.layers.get(&layer).map_or(&[], Vec::as_slice))
    }
}
