//! Options of a cache for a model's layers, and the division of memory between their groups.

use std::sync::Arc;

use candle_core::Device;
use kvtide_core::COUNT_MAX;
use kvtide_core::model::{LayerGroup, LayerKind, ModelDescription};
use kvtide_core::paged::{EvictionPolicy, PageFormat, Window};

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::device::check_kernels;
use crate::paged::{PagedKvCacheOptions, PagedShape};

/// Options of a cache for a model's layers.
#[derive(Clone, Debug)]
pub struct PagedModelOptions {
    /// The layers.
    pub model: ModelDescription,
    /// The number of blocks.
    pub room: PoolRoom,
    /// The number of tokens in a block.
    pub block_size: u32,
    /// The element type of inputs, and of outputs from pages that are not low-bit.
    pub dtype: DType,
    /// The format of K in pages: `dtype` (the default) or low-bit.
    pub key_format: Option<PageFormat>,
    /// The format of V in pages: `dtype` (the default) or low-bit.
    pub value_format: Option<PageFormat>,
    /// Rotates K by a Hadamard matrix before it is quantised.
    pub hadamard: bool,
    /// The meaning of token ids: the model, its rope settings.
    pub namespace: String,
    /// The secret under which block keys are made; by default a random one per process.
    pub prefix_key: Option<[u8; 32]>,
    /// The order in which free cached blocks are evicted; by default by priority, then the least recently used first.
    pub eviction: Option<Arc<dyn EvictionPolicy>>,
    /// The number of cache events to keep for followers of the prefix cache; 0 for none.
    pub events: u32,
    /// The devices of its layers, indexed by the numbers that [`ModelDescription::split`] gave them; one device if the model
    /// was not split. See [`crate::runtime::device()`].
    pub devices: Vec<Device>,
    /// The most bytes that it may use on each device.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that its memory is taken from, if that is for the same device; by default the budget of the whole device.
    pub budget: Option<Arc<Budget>>,
}

impl PagedModelOptions {
    /// Options for this model, with defaults.
    #[must_use]
    pub fn new(model: ModelDescription, room: PoolRoom) -> Self {
        let PagedKvCacheOptions { block_size, dtype, .. } = PagedKvCacheOptions::default();
        PagedModelOptions {
            model,
            room,
            block_size,
            dtype,
            key_format: None,
            value_format: None,
            hadamard: false,
            namespace: String::new(),
            prefix_key: None,
            eviction: None,
            events: 0,
            devices: vec![Device::Cpu],
            memory_limit_bytes: None,
            budget: None,
        }
    }
}

/// A device, and the budget of the cache's memory there.
#[derive(Clone, Debug)]
pub(super) struct CacheDevice {
    pub device: Device,
    pub budget: Arc<Budget>,
}

impl PagedModelOptions {
    /// The devices of all groups, by number.
    pub(super) fn cache_devices(&self) -> Result<Vec<CacheDevice>> {
        let needed = self.model.groups().iter().map(|group| group.device as usize + 1).max().unwrap_or(1);
        if self.devices.len() != needed {
            let expected = format!("{needed}, one for each device number of the layers");
            return Err(Error::argument("devices.length", self.devices.len(), expected));
        }
        let made = |device: &Device| {
            check_kernels(device)?;
            let budget = Budget::of_parts(device, self.budget.as_ref(), self.memory_limit_bytes);
            Ok(CacheDevice { device: device.clone(), budget })
        };
        self.devices.iter().map(made).collect()
    }
}

/// The number of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolRoom {
    /// A number for each group of layers, in the order of [`ModelDescription::groups`].
    Blocks(Vec<u32>),
    /// As many as fit in `bytes`, for at most `max_sequences` sequences at once. A sliding group gets the blocks of its
    /// windows for that many sequences, two further blocks for each, and the blocks for one call's tokens, but sliding
    /// groups together get at most half of the bytes. Groups that keep all tokens get the rest, the same number of tokens
    /// each.
    Memory {
        /// The bytes of all blocks.
        bytes: u64,
        /// The number of sequences at once.
        max_sequences: u32,
        /// The number of tokens that one call appends, in all its sequences: blocks outside the window are freed only after
        /// all of them were written.
        max_prefill_tokens: u32,
    },
}

impl PoolRoom {
    /// The default of `max_prefill_tokens`.
    pub const PREFILL_TOKENS: u32 = 512;
}

impl PagedModelOptions {
    /// The options of each group's pages, without the number of blocks and the device.
    pub(crate) fn page_options(&self) -> Result<Vec<PagedKvCacheOptions>> {
        self.model.check_states()?;
        let mut slots = self.model.state_layout().slots.into_iter();
        let pages = |group: &LayerGroup| {
            if group.kind == LayerKind::State {
                let slot = slots.next().expect("a slot for each group of states");
                return Ok(self.slot_options(slot.end - slot.start));
            }
            Ok(PagedKvCacheOptions {
                block_size: self.block_size,
                num_layers: group.layers.len() as u32,
                num_kv_heads: group.num_kv_heads,
                head_dim: group.head_dim,
                value_head_dim: Some(group.value_head_dim),
                dtype: self.dtype,
                key_format: self.key_format,
                value_format: self.value_format,
                hadamard: self.hadamard,
                window: window(group)?,
                eviction: self.eviction.clone(),
                events: self.events,
                ..PagedKvCacheOptions::default()
            })
        };
        self.model.groups().iter().map(pages).collect()
    }

    /// The options of slots for this many bytes: pages of floats, whose rows are multiples of 64 bytes.
    fn slot_options(&self, bytes: u64) -> PagedKvCacheOptions {
        PagedKvCacheOptions {
            block_size: self.block_size,
            head_dim: bytes.div_ceil(4 * u64::from(self.block_size.max(1))).next_multiple_of(16) as u32,
            value_head_dim: Some(0),
            states: true,
            eviction: self.eviction.clone(),
            events: self.events,
            ..PagedKvCacheOptions::default()
        }
    }

    /// The options of each group's cache.
    pub(super) fn of_groups(&self, devices: &[CacheDevice]) -> Result<Vec<PagedKvCacheOptions>> {
        let groups = self.model.groups();
        let mut made = self.page_options()?;
        for (of, group) in made.iter_mut().zip(groups) {
            let CacheDevice { device, budget } = devices[group.device as usize].clone();
            (of.device, of.budget) = (device, Some(budget));
        }
        let blocks = match &self.room {
            PoolRoom::Blocks(blocks) if blocks.len() == groups.len() => blocks.clone(),
            PoolRoom::Blocks(blocks) => {
                let expected = format!("{}, one number for each group of layers", groups.len());
                return Err(Error::argument("capacity.length", blocks.len(), expected));
            }
            &PoolRoom::Memory { bytes, max_sequences, max_prefill_tokens } => {
                Split::new(&made, groups, [max_sequences, max_prefill_tokens])?.blocks_of(bytes)?
            }
        };
        made.iter_mut().zip(blocks).for_each(|(of, blocks)| of.capacity = blocks);
        Ok(made)
    }
}

/// The window of a group, if it has one.
fn window(group: &LayerGroup) -> Result<Option<Window>> {
    Ok(match group.kind {
        LayerKind::Sliding { window, sinks } => Some(Window::new(window, sinks)?),
        _ => None,
    })
}

/// Divides memory into blocks of each group, as in [`PoolRoom::Memory`].
struct Split {
    block_size: u32,
    /// The bytes of a block of each group.
    block_bytes: Vec<u64>,
    /// The blocks for the windows of all sequences and for one call's tokens; 0 in a group that keeps all tokens.
    window_blocks: Vec<u64>,
}

impl Split {
    fn new(caches: &[PagedKvCacheOptions], groups: &[LayerGroup], [sequences, prefill]: [u32; 2]) -> Result<Self> {
        let block_size = caches.first().map_or(1, |of| of.block_size);
        let of_windows = |group: &LayerGroup| match group.kind {
            LayerKind::Sliding { window, sinks } => {
                let block = u64::from(block_size);
                let each = u64::from(window).div_ceil(block) + u64::from(sinks).div_ceil(block) + 2;
                each * u64::from(sequences.max(1)) + u64::from(prefill).div_ceil(block)
            }
            _ => 0,
        };
        let bytes_of = |of| Ok(PagedShape::new(of)?.pages.block_bytes() as u64);
        let block_bytes = caches.iter().map(bytes_of).collect::<Result<_>>()?;
        Ok(Split { block_size, block_bytes, window_blocks: groups.iter().map(of_windows).collect() })
    }

    /// The blocks of each group for this many bytes; fails if a group would get none.
    fn blocks_of(&self, bytes: u64) -> Result<Vec<u32>> {
        let blocks = self.split(bytes);
        if blocks.contains(&0) {
            let (least, tokens) = (self.least(), self.block_size);
            let expected = format!("at least {least}, for a block of {tokens} tokens in each group of layers");
            return Err(Error::argument("memoryBytes", bytes, expected));
        }
        Ok(blocks.into_iter().map(|count| count.min(COUNT_MAX.into()) as u32).collect())
    }

    fn split(&self, bytes: u64) -> Vec<u64> {
        let mut blocks = self.window_blocks.clone();
        let all_slide = blocks.iter().all(|&count| count > 0);
        let most = if all_slide { bytes } else { bytes / 2 };
        let sliding = self.bytes_of(&blocks);
        if sliding > most.into() {
            let share = |count: &mut u64| *count = (u128::from(*count) * u128::from(most) / sliding) as u64;
            blocks.iter_mut().for_each(share);
        }
        let rest = u128::from(bytes).saturating_sub(self.bytes_of(&blocks)) as u64;
        let is_full = || self.window_blocks.iter().map(|&windows| windows == 0);
        let full: u64 = self.block_bytes.iter().zip(is_full()).filter(|(_, full)| *full).map(|(each, _)| each).sum();
        for (count, _) in blocks.iter_mut().zip(is_full()).filter(|(_, full)| *full) {
            *count = rest.checked_div(full).unwrap_or(0);
        }
        blocks
    }

    fn bytes_of(&self, blocks: &[u64]) -> u128 {
        blocks.iter().zip(&self.block_bytes).map(|(count, each)| u128::from(*count) * u128::from(*each)).sum()
    }

    /// The fewest bytes with which every group gets a block. O(groups) for each bit of the result.
    fn least(&self) -> u64 {
        let (mut refused, mut enough) = (0, u64::MAX);
        while enough - refused > 1 {
            let middle = refused + (enough - refused) / 2;
            *(if self.split(middle).contains(&0) { &mut refused } else { &mut enough }) = middle;
        }
        enough
    }
}
