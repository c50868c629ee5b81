//! What a cache of a model's layers is made with, and how memory is split between their groups.

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

/// What a cache of a model's layers is made with.
#[derive(Clone, Debug)]
pub struct PagedModelOptions {
    /// The layers.
    pub model: ModelDescription,
    /// How many blocks there are.
    pub room: PoolRoom,
    /// Tokens of a block.
    pub block_size: u32,
    /// The element type of what goes in, and of what comes out of pages that are not low-bit.
    pub dtype: DType,
    /// How pages keep K: in `dtype`, or low-bit; none: in `dtype`.
    pub key_format: Option<PageFormat>,
    /// How pages keep V: in `dtype`, or low-bit; none: in `dtype`.
    pub value_format: Option<PageFormat>,
    /// Rotates K by a Hadamard matrix before it is quantised.
    pub hadamard: bool,
    /// What the tokens mean: the model, its rope settings.
    pub namespace: String,
    /// Under which key prompts are found; none: a random one of this process.
    pub prefix_key: Option<[u8; 32]>,
    /// In which order blocks that nobody holds make room; none: the least recently used first, by priority.
    pub eviction: Option<Arc<dyn EvictionPolicy>>,
    /// Events that are kept for those who follow which blocks can be found; 0: none.
    pub events: u32,
    /// The devices of its layers, by the numbers that [`ModelDescription::split`] gave them: one where it was not split. See
    /// [`crate::device()`].
    pub devices: Vec<Device>,
    /// The most bytes it may keep on each device.
    pub memory_limit_bytes: Option<u64>,
    /// The budget that its memory is taken from, where that is of the same device; none: that of all the device's memory.
    pub budget: Option<Arc<Budget>>,
}

impl PagedModelOptions {
    /// A cache for this model, with defaults.
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

/// A device, and the budget of what a cache keeps there.
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
            let expected = format!("{needed}, one for each number that layers have");
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

/// How many blocks there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolRoom {
    /// So many for each group of layers, in the order of [`ModelDescription::groups`].
    Blocks(Vec<u32>),
    /// As many as fit in `bytes`, for at most so many sequences at once: a group that slides gets what its windows take in as
    /// many sequences, two blocks more for each, and what one call appends beside, but at most half of the bytes; groups that
    /// keep everything get the rest, the same number of tokens each.
    Memory {
        /// Bytes of all blocks.
        bytes: u64,
        /// Sequences at once.
        max_sequences: u32,
        /// Tokens that one call appends, of all its sequences: a window lets go of what it passes once they are all there.
        max_prefill_tokens: u32,
    },
}

impl PoolRoom {
    /// Tokens that one call appends where nothing was said.
    pub const PREFILL_TOKENS: u32 = 512;
}

impl PagedModelOptions {
    /// The pages of each group: without their number, and on no device of their own.
    pub(crate) fn page_options(&self) -> Result<Vec<PagedKvCacheOptions>> {
        let pages = |group: &LayerGroup| {
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

    /// What the cache of each group is made with.
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
                split(&made, groups, bytes, [max_sequences, max_prefill_tokens])?
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

/// Blocks of each group, as [`PoolRoom::Memory`] says.
fn split(
    caches: &[PagedKvCacheOptions],
    groups: &[LayerGroup],
    bytes: u64,
    [sequences, prefill]: [u32; 2],
) -> Result<Vec<u32>> {
    let block_bytes: Vec<u64> =
        caches.iter().map(|of| Ok(PagedShape::new(of)?.pages.block_bytes() as u64)).collect::<Result<_>>()?;
    let of_windows = |(of, group): (&PagedKvCacheOptions, &LayerGroup)| match group.kind {
        LayerKind::Sliding { window, sinks } => {
            let block = u64::from(of.block_size);
            let each = u64::from(window).div_ceil(block) + u64::from(sinks).div_ceil(block) + 2;
            each * u64::from(sequences.max(1)) + u64::from(prefill).div_ceil(block)
        }
        _ => 0,
    };
    let mut blocks: Vec<u64> = caches.iter().zip(groups).map(of_windows).collect();
    let bytes_of = |blocks: &[u64]| -> u128 {
        blocks.iter().zip(&block_bytes).map(|(count, each)| u128::from(*count) * u128::from(*each)).sum()
    };
    let all_slide = blocks.iter().all(|&count| count > 0);
    let most = if all_slide { bytes } else { bytes / 2 };
    let sliding = bytes_of(&blocks);
    if sliding > most.into() {
        let share = |count: &mut u64| *count = (u128::from(*count) * u128::from(most) / sliding) as u64;
        blocks.iter_mut().for_each(share);
    }
    let rest = u128::from(bytes).saturating_sub(bytes_of(&blocks)) as u64;
    let full: u64 = caches.iter().zip(&block_bytes).filter(|(of, _)| of.window.is_none()).map(|(_, each)| each).sum();
    for (_, count) in caches.iter().zip(&mut blocks).filter(|(of, _)| of.window.is_none()) {
        *count = rest.checked_div(full).unwrap_or(0);
    }
    Ok(blocks.into_iter().map(|count| count.min(COUNT_MAX.into()) as u32).collect())
}
