//! The naive paged cache: sequences with a number of blocks, and one value for each token.

use std::collections::{BTreeMap, HashMap};

use kvtide_core::{BlockHolders, Error};

use super::memory::Value;

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub capacity: u32,
    pub block_size: u32,
    pub layers: u32,
    pub low_bit: bool,
}

/// The naive cache: sequences with a number of blocks, and a value per token.
pub struct Model {
    pub shape: Shape,
    pub blocks: BTreeMap<u64, u32>,
    pub values: HashMap<(u64, u32, u32), Value>,
    pub created: u64,
}

impl Model {
    pub fn new(shape: Shape) -> Self {
        Model { shape, blocks: BTreeMap::new(), values: HashMap::new(), created: 0 }
    }

    pub fn free(&self) -> u32 {
        self.shape.capacity - self.blocks.values().sum::<u32>()
    }

    fn holders(&self) -> BlockHolders {
        BlockHolders { sequences: self.blocks.len() as u64, blocks: self.blocks.values().sum::<u32>().into() }
    }

    pub fn length(&self, sequence: u64) -> u32 {
        let of_sequence = self.values.keys().filter(|key| key.0 == sequence);
        of_sequence.map(|key| key.2 + 1).max().unwrap_or(0)
    }

    /// Blocks missing for so many tokens each, or the refusal.
    pub fn missing(&self, wanted: &[(u64, u32)]) -> Result<u32, Error> {
        let mut missing = 0u32;
        for &(sequence, tokens) in wanted {
            let held = self.blocks.get(&sequence).ok_or(Error::SequenceNotFound { sequence })?;
            missing += tokens.div_ceil(self.shape.block_size).saturating_sub(*held);
        }
        match missing > self.free() {
            true => Err(Error::OutOfBlocks {
                needed: missing.into(),
                free: self.free().into(),
                holders: Some(self.holders()),
            }),
            false => Ok(missing),
        }
    }

    pub fn layer(&self, layer: u32) -> Result<(), Error> {
        let layers = self.shape.layers;
        if layer < layers { Ok(()) } else { Err(Error::argument("layer", layer, format!("below {layers}"))) }
    }

    pub fn read(&self, sequence: u64, layer: u32, position: u32) -> Result<Value, Error> {
        self.layer(layer)?;
        if !self.blocks.contains_key(&sequence) {
            return Err(Error::SequenceNotFound { sequence });
        }
        let (length, place) = (self.length(sequence).into(), u64::from(position));
        let value = self.values.get(&(sequence, layer, position)).copied();
        value.ok_or(Error::PositionOutOfRange { sequence, layer, position: place, length })
    }

    /// Notes tokens of one layer; the first has number `token` of its call.
    pub fn write(&mut self, sequence: u64, layer: u32, position: u32, tokens: u32, value: impl Fn(u32) -> Value) {
        let held = self.blocks.get_mut(&sequence).unwrap();
        if tokens > 0 {
            *held = (*held).max((position + tokens).div_ceil(self.shape.block_size));
        }
        for token in 0..tokens {
            self.values.insert((sequence, layer, position + token), value(token));
        }
    }
}
