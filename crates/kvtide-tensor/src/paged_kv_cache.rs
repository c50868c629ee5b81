//! K and V of many sequences, in one slab of blocks.
//!
//! Blocks, layouts and low-bit pages are explained in `paged/mod.rs`. A write or a read of one token is O(1), of many tokens
//! O(their bytes). A slot can only be read by the sequence that wrote it.

use std::collections::HashMap;
use std::sync::Arc;

use kvtide_core::paged::{Held, PageLayout, PagedPlanner, Part};

use crate::device::check_kernels;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::form::Form;
use crate::life::Life;
use crate::memory::Budget;
use crate::options::PagedKvCacheOptions;
use crate::paged::{PagedShape, PrefixKeys, PromptOptions, Returns, Slab};
use crate::stats::Stats;

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
    pub(crate) planner: PagedPlanner,
    pub(crate) shape: PagedShape,
    pub(crate) slab: Arc<Slab>,
    /// Low-bit pages that are not full; without those it has no pages.
    pub(crate) staging: Arc<Slab>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) growths: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) poisoned: bool,
    /// Who reads its pages in the background.
    pub(crate) life: Arc<Life>,
    /// Under which keys blocks are found.
    pub(crate) keys: PrefixKeys,
    /// What snapshots and prefixes hold, by their numbers.
    pub(crate) held: HashMap<u64, Held>,
    pub(crate) next_held: u64,
    /// What was dropped since the last change.
    pub(crate) returns: Returns,
}

impl PagedKvCache {
    /// An empty cache, its slab reserved.
    pub fn new(options: PagedKvCacheOptions) -> Result<Self> {
        check_kernels(&options.device)?;
        let shape = PagedShape::new(&options)?;
        match Form::of(&options.device)? {
            Form::Launched(_) => shape.check_launched()?,
            Form::Portable if !options.device.is_cpu() => shape.check_portable(&options.device)?,
            Form::Bytes | Form::Portable => {}
        }
        let planner = PagedPlanner::new(options.capacity, options.block_size, options.num_layers)?;
        let mut planner = if shape.pages.is_low_bit() { planner.staging_pages() } else { planner };
        if let Some(window) = options.window {
            planner = planner.sliding(window);
        }
        if let Some(policy) = options.eviction {
            planner = planner.evicting(Box::new(policy));
        }
        planner.keep_events(options.events);
        let budget = Budget::within(&options.device, options.budget.as_ref(), options.memory_limit_bytes);
        Ok(PagedKvCache {
            planner,
            shape,
            slab: Arc::new(Slab::new(shape.pages, options.capacity, &budget)?),
            staging: Arc::new(Slab::new(shape.staged, 0, &budget)?),
            budget,
            growths: 0,
            copied_bytes: 0,
            poisoned: false,
            life: Arc::default(),
            keys: PrefixKeys::new(options.prefix_key, &options.namespace, [&shape])?,
            held: HashMap::new(),
            next_held: 0,
            returns: Returns::default(),
        })
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.planner.block_size()
    }

    /// The element type of what goes in, and of what comes out of pages that are not low-bit.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.shape.dtype
    }

    /// Where everything lies in the slab.
    #[must_use]
    pub fn layout(&self) -> PageLayout {
        self.slab.layout
    }

    /// Elements of one token's key, or value.
    #[must_use]
    pub fn token_elements(&self, part: Part) -> usize {
        self.shape.token_elements(part)
    }

    /// Bytes of the slab that one token of all layers takes, its share of scales included.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        self.slab.layout.bytes_per_token()
    }

    /// A new, empty sequence, of no salt.
    pub fn create_sequence(&mut self) -> Result<u64> {
        self.create_sequence_of(PromptOptions::default())
    }

    /// Ends a sequence and gives all its blocks back.
    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        self.change()?;
        Ok(self.planner.drop_sequence(sequence)?)
    }

    /// Gives the sequence blocks for `tokens` tokens in total; takes all that are missing, or none.
    pub fn ensure_capacity(&mut self, sequence: u64, tokens: u32) -> Result<()> {
        self.change()?;
        Ok(self.planner.ensure_capacity(&[(sequence, tokens)])?)
    }

    /// The used share of the pool, 0 to 1.
    #[must_use]
    pub fn pool_utilization(&mut self) -> f64 {
        self.current().pool_utilization()
    }

    /// Blocks that are free.
    #[must_use]
    pub fn free_count(&mut self) -> u32 {
        self.current().free_count()
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
    pub fn sequence_capacity(&mut self, sequence: u64) -> u64 {
        self.current().sequence_capacity(sequence)
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
            buffer_bytes: self.slab.bytes() + self.staging.bytes(),
            used_bytes: self.budget.used(),
            held_bytes: self.budget.held(),
            limit_bytes: self.budget.limit(),
            growths: self.growths,
            copies_on_write: self.planner.pool_stats().counters.copies,
            copied_bytes: self.copied_bytes,
            ..Stats::default()
        }
    }

    /// Low-bit pages that lie in floats because they are not full.
    #[must_use]
    pub fn staged_count(&mut self) -> u32 {
        self.current().staged_count()
    }

    /// Checks what must hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        self.planner.check_invariants(&self.held.values().collect::<Vec<_>>())?;
        let (staged, room) = (self.planner.staged_count(), self.staging.blocks);
        if staged > room { Err(format!("{staged} pages are staged, there is room for {room}")) } else { Ok(()) }
    }

    /// Refuses a change when the cache cannot be used, or while someone reads it in the background.
    pub(crate) fn check_change(&self) -> Result<()> {
        self.check()?;
        self.life.check_idle()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.poisoned { Err(Error::Poisoned) } else { Ok(()) }
    }
}
