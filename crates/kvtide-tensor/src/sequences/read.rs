//! Reads and writes of a sequence's tokens by layer and position.

use kvtide_core::paged::KeyOrValue;

use super::cache::PagedKvCache;
use crate::base::error::{Error, Result};
use crate::base::zeroed::zeroed_bytes;
use crate::tensor::source::Source;
use crate::tensor::token_kv::TokenKv;
use crate::tensor::view::Kv;

impl PagedKvCache {
    /// Writes one token of one layer; the sequence grows as needed. Only for caches with one group of layers, because other
    /// groups would not grow with it.
    pub fn write_kv<'a>(
        &mut self,
        sequence: u64,
        layer: u32,
        position: u32,
        key: impl Into<Source<'a>>,
        value: impl Into<Source<'a>>,
    ) -> Result<()> {
        self.one_group("layer")?.write_kv(sequence, layer, position, [key.into(), value.into()])
    }

    /// Writes neighbouring tokens of one layer from `position` on: K and V `[kvHeads, n, headDim]`, or with a 1 in front.
    /// The sequence grows as needed. Only for caches with one group of layers.
    pub fn write_tokens<'a>(
        &mut self,
        sequence: u64,
        layer: u32,
        position: u32,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
    ) -> Result<()> {
        self.one_group("layer")?.write_tokens(sequence, layer, position, [k.into(), v.into()])
    }

    /// Reads one token of one layer. Quantised parts are returned as 32-bit floats, others as the cache's dtype.
    pub fn read_kv(&mut self, sequence: u64, layer: u32, position: u32) -> Result<TokenKv> {
        let (group, _) = self.group_of(layer)?;
        let [key_dtype, value_dtype] = KeyOrValue::BOTH.map(|part| group.shape().read_dtype(part));
        let [key, value] = KeyOrValue::BOTH.map(|part| zeroed_bytes(group.shape().out_bytes(part, 1)));
        let mut token = TokenKv { key_dtype, value_dtype, key: key?, value: value? };
        self.read_kv_into(sequence, layer, position, &mut token.key, &mut token.value)?;
        Ok(token)
    }

    /// Reads one token of one layer into the caller's memory.
    pub fn read_kv_into(
        &mut self,
        sequence: u64,
        layer: u32,
        position: u32,
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<()> {
        self.align()?;
        let (group, layer) = self.group_of(layer)?;
        group.read_kv_into(sequence, layer, position, key, value)
    }

    /// All tokens of a layer, except those outside its window: K and V `[kvHeads, tokens, headDim]`, in memory of their own.
    /// Quantised parts are returned as 32-bit floats, others as the cache's dtype; unwritten slots are zeros. If blocks
    /// between the sinks and the window were dropped, they are two runs.
    pub fn gather(&mut self, sequence: u64, layer: u32) -> Result<Kv> {
        self.align()?;
        let (group, layer) = self.group_of(layer)?;
        group.gather(sequence, layer)
    }

    /// Like [`PagedKvCache::gather`], into the caller's memory, whose size must fit the tokens that are still in the cache
    /// exactly.
    pub fn gather_into(&mut self, sequence: u64, layer: u32, k: &mut [u8], v: &mut [u8]) -> Result<()> {
        self.align()?;
        let (group, layer) = self.group_of(layer)?;
        group.gather_into(sequence, layer, k, v)
    }

    /// Reads all layers that store their own keys and values, in order, into the caller's memory: K and V of each as in
    /// [`PagedKvCache::gather_into`]. If one has the wrong size, nothing is written.
    pub fn read_into(&mut self, sequence: u64, layers: &mut [[&mut [u8]; 2]]) -> Result<()> {
        self.collect()?;
        let own: Vec<u32> = self.own_layers().collect();
        if layers.len() != own.len() {
            let expected = format!("{}, one for each layer with keys and values of its own", own.len());
            return Err(Error::argument("layers.length", layers.len(), expected));
        }
        for (&layer, [k, v]) in own.iter().zip(layers.iter()) {
            let (group, layer) = self.group_of(layer)?;
            group.check_gather(sequence, layer, [k, v])?;
        }
        for (&layer, [k, v]) in own.iter().zip(layers) {
            let (group, layer) = self.group_of(layer)?;
            group.gather_into(sequence, layer, k, v)?;
        }
        Ok(())
    }

    /// Like [`PagedKvCache::gather`], as `[1, kvHeads, tokens, headDim]`.
    pub fn kv(&mut self, sequence: u64, layer: u32) -> Result<Kv> {
        self.place(layer)?;
        self.collect()?;
        let (group, layer) = self.group_of(layer)?;
        group.gather_batched(sequence, layer)
    }
}
