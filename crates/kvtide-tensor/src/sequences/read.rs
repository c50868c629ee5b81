//! Reads and writes of a sequence's tokens by layer and position.

use kvtide_core::paged::KeyOrValue;

use super::cache::PagedKvCache;
use crate::base::error::{Error, Result};
use crate::base::zeroed::zeroed_bytes;
use crate::tensor::source::Source;
use crate::tensor::token_kv::TokenKv;
use crate::tensor::view::Kv;

impl PagedKvCache {
    /// Writes one token of one layer; grows by itself. Of layers of one group: others would not grow with it.
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

    /// Writes neighbouring tokens of one layer from `position` on: K and V `[kvHeads, n, headDim]`, or with a 1 before it.
    /// Grows by itself. Of layers of one group.
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

    /// Reads one token of one layer. What is quantised comes as 32-bit floats, the rest as the cache's dtype.
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

    /// All tokens of a layer: K and V `[kvHeads, tokens, headDim]`, in memory of their own, but for those that left its window.
    /// What is quantised comes as 32-bit floats, the rest as the cache's dtype; slots that nobody wrote are zeros. Where blocks left
    /// the window behind sinks, they are two runs.
    pub fn gather(&mut self, sequence: u64, layer: u32) -> Result<Kv> {
        self.align()?;
        let (group, layer) = self.group_of(layer)?;
        group.gather(sequence, layer)
    }

    /// As [`PagedKvCache::gather`], into the caller's memory, which has room for just the tokens that are still there.
    pub fn gather_into(&mut self, sequence: u64, layer: u32, k: &mut [u8], v: &mut [u8]) -> Result<()> {
        self.align()?;
        let (group, layer) = self.group_of(layer)?;
        group.gather_into(sequence, layer, k, v)
    }

    /// All layers with keys and values of their own, in order, into the caller's memory: K and V of each as
    /// [`PagedKvCache::gather_into`] gives them. Where one has not the right size, nothing is written.
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

    /// As [`PagedKvCache::gather`], `[1, kvHeads, tokens, headDim]`.
    pub fn kv(&mut self, sequence: u64, layer: u32) -> Result<Kv> {
        self.place(layer)?;
        self.collect()?;
        let (group, layer) = self.group_of(layer)?;
        group.gather_batched(sequence, layer)
    }
}
