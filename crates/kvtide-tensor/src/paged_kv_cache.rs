//! K and V of many sequences, in one slab of blocks.
//!
//! The slab is `[blocks, layers, 2 (k, v), kvHeads, blockSize, headDim]`: one block, all its layers, is one contiguous piece.
//! A write or a read of one token is O(1). A slot can only be read by the sequence that wrote it.

use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::paged::{PageLayout, PageShape, PagedPlanner, Part, Slot};

use crate::device::check_cpu;
use crate::dims::Dims;
use crate::dtype::DType;
use crate::edit::{edit, inspect};
use crate::error::{Error, Result};
use crate::kernels::{Place, copy};
use crate::memory::{Budget, Lease};
use crate::options::PagedKvCacheOptions;
use crate::source::Source;
use crate::stats::Stats;
use crate::token_kv::TokenKv;
use crate::zeroed::zeroed_bytes;

/// A pool of blocks, and the sequences that write in them.
///
/// ```
/// use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions};
///
/// let mut cache = PagedKvCache::new(PagedKvCacheOptions { capacity: 4, head_dim: 2, ..Default::default() })?;
/// let sequence = cache.create_sequence()?;
/// let key = [1f32, 2.].map(f32::to_ne_bytes).concat();
/// let token = || HostTensor::new("key", &key, DType::F32, &[2]);
/// cache.write_kv(sequence, 0, 0, token()?, token()?)?;
/// assert_eq!(cache.read_kv(sequence, 0, 0)?.key_f32()?, [1., 2.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PagedKvCache {
    planner: PagedPlanner,
    layout: PageLayout,
    dtype: DType,
    slab: Tensor,
    budget: Arc<Budget>,
    lease: Lease,
    poisoned: bool,
}

impl PagedKvCache {
    /// An empty cache, its slab reserved.
    pub fn new(options: PagedKvCacheOptions) -> Result<Self> {
        check_cpu(&options.device)?;
        let dtype = options.dtype;
        let layout = PageLayout::new(PageShape {
            block_size: options.block_size,
            num_layers: options.num_layers,
            num_kv_heads: options.num_kv_heads,
            head_dim: options.head_dim,
            value_head_dim: options.head_dim,
            key_format: dtype.page_format(),
            value_format: dtype.page_format(),
        })?;
        let budget = Budget::within(options.budget.as_ref(), options.memory_limit_bytes);
        let refused = |_| budget.refusal(u64::MAX);
        let bytes = layout.slab_bytes(options.capacity).map_err(refused)? as u64;
        let lease = budget.take(bytes)?;
        let planner = PagedPlanner::new(options.capacity, options.block_size, options.num_layers)?;
        let elements = layout.slab_elements(options.capacity).map_err(refused)?;
        let storage = dtype.zeros(elements).ok_or_else(|| budget.refusal(bytes))?;
        let slab = DType::tensor(storage, &layout.slab_shape(options.capacity))?;
        Ok(PagedKvCache { planner, layout, dtype, slab, budget, lease, poisoned: false })
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.planner.block_size()
    }

    /// Its element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where everything lies in the slab.
    #[must_use]
    pub fn layout(&self) -> PageLayout {
        self.layout
    }

    /// Elements of one token's key, or value.
    #[must_use]
    pub fn token_elements(&self) -> usize {
        let shape = self.layout.shape();
        shape.num_kv_heads as usize * shape.head_dim as usize
    }

    /// A new, empty sequence.
    pub fn create_sequence(&mut self) -> Result<u64> {
        self.check()?;
        Ok(self.planner.create_sequence()?)
    }

    /// Ends a sequence and gives all its blocks back.
    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        self.check()?;
        Ok(self.planner.drop_sequence(sequence)?)
    }

    /// Gives the sequence blocks for `tokens` tokens in total; takes all that are missing, or none.
    pub fn ensure_capacity(&mut self, sequence: u64, tokens: u32) -> Result<()> {
        self.check()?;
        Ok(self.planner.ensure_capacity(sequence, tokens)?)
    }

    /// Writes one token of one layer; grows by itself.
    pub fn write_kv<'a>(
        &mut self,
        sequence: u64,
        layer: u32,
        position: u32,
        key: impl Into<Source<'a>>,
        value: impl Into<Source<'a>>,
    ) -> Result<()> {
        self.check()?;
        let (key, value) = (key.into(), value.into());
        let key = self.token("key", &key)?;
        let value = self.token("value", &value)?;
        let plan = self.planner.plan_tokens(sequence, layer, position, 1)?;
        self.planner.reserve(&plan)?;
        let slot = Slot { block: plan.runs()[0].block, slot: plan.runs()[0].slot };
        let (dims, row) = self.token_dims()?;
        self.poisoned = true;
        edit(&self.slab, &[], |bytes, _| {
            for (part, token) in Part::BOTH.into_iter().zip([&key, &value]) {
                copy(&dims, self.dtype.bytes(), bytes, self.place(slot, layer, part), token, row);
            }
        })?;
        self.poisoned = false;
        Ok(self.planner.commit(&plan)?)
    }

    /// Reads one token of one layer.
    pub fn read_kv(&self, sequence: u64, layer: u32, position: u32) -> Result<TokenKv> {
        let bytes = self.token_elements() * self.dtype.bytes();
        let mut token = TokenKv { dtype: self.dtype, key: zeroed_bytes(bytes)?, value: zeroed_bytes(bytes)? };
        self.read_kv_into(sequence, layer, position, &mut token.key, &mut token.value)?;
        Ok(token)
    }

    /// Reads one token of one layer into the caller's memory.
    pub fn read_kv_into(
        &self,
        sequence: u64,
        layer: u32,
        position: u32,
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<()> {
        self.check()?;
        for (argument, out) in [("key", &*key), ("value", &*value)] {
            self.check_elements(argument, out.len() / self.dtype.bytes())?;
        }
        let slot = self.planner.locate(sequence, layer, position)?;
        let (dims, row) = self.token_dims()?;
        inspect(&self.slab, |bytes| {
            for (part, out) in Part::BOTH.into_iter().zip([key, value]) {
                copy(&dims, self.dtype.bytes(), out, row, bytes, self.place(slot, layer, part));
            }
            Ok(())
        })
    }

    /// The used share of the pool, 0 to 1.
    #[must_use]
    pub fn pool_utilization(&self) -> f64 {
        self.planner.pool_utilization()
    }

    /// Blocks that are free.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.planner.free_count()
    }

    /// Blocks in all.
    #[must_use]
    pub fn total_count(&self) -> u32 {
        self.planner.total_count()
    }

    /// Highest written position + 1; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_length(&self, sequence: u64) -> u32 {
        self.planner.sequence_length(sequence)
    }

    /// Slots of its blocks; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_capacity(&self, sequence: u64) -> u64 {
        self.planner.sequence_capacity(sequence)
    }

    /// The ids of the sequences there are, ascending.
    #[must_use]
    pub fn sequence_ids(&self) -> Vec<u64> {
        self.planner.sequence_ids()
    }

    /// What it costs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            buffer_bytes: self.lease.bytes(),
            used_bytes: self.budget.used(),
            held_bytes: self.budget.held(),
            limit_bytes: self.budget.limit(),
            ..Stats::default()
        }
    }

    /// Checks what must hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        self.planner.check_invariants()
    }

    fn check(&self) -> Result<()> {
        if self.poisoned { Err(Error::Poisoned) } else { Ok(()) }
    }

    fn check_elements(&self, argument: &'static str, actual: usize) -> Result<()> {
        let expected = self.token_elements();
        if actual == expected {
            return Ok(());
        }
        Err(Error::DimMismatch { argument, actual: actual as u64, expected: expected as u64 })
    }

    /// One token's bytes, in order.
    fn token<'a>(&self, argument: &'static str, source: &Source<'a>) -> Result<std::borrow::Cow<'a, [u8]>> {
        let (dtype, bytes) = source.row_major(argument)?;
        if dtype != self.dtype {
            let (value, expected) = (dtype.to_string(), self.dtype.to_string());
            return Err(Error::DtypeMismatch { argument, value, expected });
        }
        self.check_elements(argument, bytes.len() / dtype.bytes())?;
        Ok(bytes)
    }

    /// The shape of one token's K or V, and where it lies in memory without gaps.
    fn token_dims(&self) -> Result<(Dims, Place)> {
        let shape = self.layout.shape();
        let dims = Dims::new("token", &[shape.num_kv_heads as usize, shape.head_dim as usize])?;
        Ok((dims, Place { offset: 0, strides: dims.contiguous_strides().scaled(self.dtype.bytes()) }))
    }

    /// Where one token's K or V lies in the slab, head by head.
    fn place(&self, slot: Slot, layer: u32, part: Part) -> Place {
        let head = self.layout.section(part).head_bytes;
        let offset = self.layout.row_offset(slot.block, layer, part, 0, slot.slot);
        Place { offset, strides: Dims::pair(head, self.dtype.bytes()) }
    }
}
