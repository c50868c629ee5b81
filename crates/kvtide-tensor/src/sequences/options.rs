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
    /// Rotates V by a Hadamard matrix before it is quantised.
    pub value_hadamard: bool,
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
            value_hadamard: false,
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

/// The form of keys and values, which a cache has even if no layer keeps any.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageForm {
    pub dtype: DType,
    pub formats: [PageFormat; 2],
    /// True for K, and for V, if it is rotated before it is quantised.
    pub rotated: [bool; 2],
}

impl PageForm {
    /// Parts without a format have that of the dtype.
    pub fn new(dtype: DType, formats: [Option<PageFormat>; 2], rotated: [bool; 2]) -> Self {
        let formats = formats.map(|format| format.unwrap_or(dtype.page_format()));
        PageForm { dtype, formats, rotated }
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
    ///
    /// Before that, a group of states gets [`PoolRoom::STEP_SLOTS`] slots for each sequence, and slots for checkpoints: one in
    /// [`PoolRoom::CHECKPOINT_PART`] of the bytes, at least [`PoolRoom::CHECKPOINTS_MIN`] slots for each sequence; but at
    /// most half of the bytes. If no group keeps all tokens, it gets everything that the windows leave.
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
    /// The slots of states that a sequence needs: a step writes one while the one from before it is held.
    pub const STEP_SLOTS: u64 = 2;
    /// Checkpoints of states get one in this many bytes.
    pub const CHECKPOINT_PART: u64 = 8;
    /// The fewest slots for checkpoints, for each sequence.
    pub const CHECKPOINTS_MIN: u64 = 2;
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
                value_hadamard: self.value_hadamard,
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
    sequences: u64,
    /// The bytes of a block of each group.
    block_bytes: Vec<u64>,
    /// The tokens that each group keeps.
    kept: Vec<Kept>,
}

/// The tokens that a group keeps, as far as its room depends on them.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    /// All of them.
    All,
    /// A window: this many blocks for the windows of all sequences and for one call's tokens.
    Window(u64),
    /// None: it keeps states.
    States,
}

impl Kept {
    /// The fewest blocks with which a sequence can be computed.
    fn least(self) -> u64 {
        if self == Kept::States { PoolRoom::STEP_SLOTS } else { 1 }
    }
}

impl Split {
    fn new(caches: &[PagedKvCacheOptions], groups: &[LayerGroup], [sequences, prefill]: [u32; 2]) -> Result<Self> {
        let block_size = caches.first().map_or(1, |of| of.block_size);
        let sequences = u64::from(sequences.max(1));
        let kept = |group: &LayerGroup| match group.kind {
            LayerKind::Sliding { window, sinks } => {
                let block = u64::from(block_size);
                let each = u64::from(window).div_ceil(block) + u64::from(sinks).div_ceil(block) + 2;
                Kept::Window(each * sequences + u64::from(prefill).div_ceil(block))
            }
            LayerKind::State => Kept::States,
            _ => Kept::All,
        };
        let bytes_of = |of| Ok(PagedShape::new(of)?.pages.block_bytes() as u64);
        let block_bytes = caches.iter().map(bytes_of).collect::<Result<_>>()?;
        Ok(Split { block_size, sequences, block_bytes, kept: groups.iter().map(kept).collect() })
    }

    /// The blocks of each group for this many bytes; fails if a group would get too few to compute a sequence.
    fn blocks_of(&self, bytes: u64) -> Result<Vec<u32>> {
        let blocks = self.split(bytes);
        if !self.suffices(&blocks) {
            let (least, tokens) = (self.least(), self.block_size);
            let slots = if self.kept.contains(&Kept::States) { " and two slots of states" } else { "" };
            let expected = format!("at least {least}, for a block of {tokens} tokens in each group of layers{slots}");
            return Err(Error::argument("memoryBytes", bytes, expected));
        }
        Ok(blocks.into_iter().map(|count| count.min(COUNT_MAX.into()) as u32).collect())
    }

    fn split(&self, bytes: u64) -> Vec<u64> {
        let [full, slot] = [Kept::All, Kept::States].map(|kept| self.row_bytes(kept));
        let slots = if full > 0 { self.slots(bytes, slot) } else { 0 };
        let left = bytes - (u128::from(slots) * slot) as u64;
        let most = if full + slot == 0 { left } else { left / 2 };
        let windows: Vec<u64> =
            self.kept.iter().map(|of| if let Kept::Window(count) = of { *count } else { 0 }).collect();
        let sliding = self.bytes_of(&windows);
        let share = |count: u64| match sliding > most.into() {
            true => (u128::from(count) * u128::from(most) / sliding) as u64,
            false => count,
        };
        let windows: Vec<u64> = windows.into_iter().map(share).collect();
        let rest = u128::from(left).saturating_sub(self.bytes_of(&windows));
        let all = |row: u128| rest.checked_div(row).unwrap_or(0) as u64;
        let count = |(kept, window): (&Kept, u64)| match kept {
            Kept::Window(_) => window,
            Kept::All => all(full),
            Kept::States if full > 0 => slots,
            Kept::States => all(slot),
        };
        self.kept.iter().zip(windows).map(count).collect()
    }

    /// The slots of each group of states beside groups that keep all tokens.
    fn slots(&self, bytes: u64, slot: u128) -> u64 {
        let slots_in = |bytes: u64| u128::from(bytes).checked_div(slot).unwrap_or(0) as u64;
        let checkpoints = slots_in(bytes / PoolRoom::CHECKPOINT_PART).max(PoolRoom::CHECKPOINTS_MIN * self.sequences);
        (PoolRoom::STEP_SLOTS * self.sequences + checkpoints).min(slots_in(bytes / 2))
    }

    /// The bytes of a block in each of the groups that keep this, together.
    fn row_bytes(&self, kept: Kept) -> u128 {
        self.block_bytes.iter().zip(&self.kept).filter(|(_, of)| **of == kept).map(|(each, _)| u128::from(*each)).sum()
    }

    fn bytes_of(&self, blocks: &[u64]) -> u128 {
        blocks.iter().zip(&self.block_bytes).map(|(count, each)| u128::from(*count) * u128::from(*each)).sum()
    }

    /// True if a sequence can be computed with these blocks.
    fn suffices(&self, blocks: &[u64]) -> bool {
        blocks.iter().zip(&self.kept).all(|(&count, kept)| count >= kept.least())
    }

    /// The fewest bytes with which a sequence can be computed. O(groups) for each bit of the result.
    fn least(&self) -> u64 {
        let (mut refused, mut enough) = (0, u64::MAX);
        while enough - refused > 1 {
            let middle = refused + (enough - refused) / 2;
            *(if self.suffices(&self.split(middle)) { &mut enough } else { &mut refused }) = middle;
        }
        enough
    }
}
