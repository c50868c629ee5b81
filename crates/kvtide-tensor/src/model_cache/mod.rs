//! Keys and values of all layers of a model: one step, one transaction, one snapshot for all of them.
//!
//! ```text
//! description   layers: full, sliding, shared          options.rs: blocks or memory of each group
//! store         in blocks, group by group              paged.rs
//!               in tensors, layer by layer             contiguous.rs, layer_cache.rs
//! ```
//!
//! A layer that reads another's keys and values has none of its own: it is not written, and its queries attend to the other's.
//! What a layer's queries see, and how they are scaled, follows from the description.

mod appending;
mod capturing;
mod contiguous;
mod contiguous_drafts;
mod contiguous_steps;
mod drafting;
mod holding;
mod layer_cache;
mod layer_rows;
mod layer_sequences;
mod options;
mod paged;
mod paged_drafts;
mod paged_steps;
mod reading;
mod shapes;
mod step;
mod stepping;
mod store;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvtide_core::model::ModelDescription;
use kvtide_core::paged::{Explanation, Key, PoolStats, Unseen};

use crate::error::{Error, Result};
use crate::memory::Budget;
use crate::paged::PromptOptions;
use crate::stats::Stats;
use crate::view::Kv;
use contiguous::ContiguousLayers;
use paged::{PagedGroups, foreign};
use store::Store;

pub use appending::ModelTokens;
pub use holding::{ModelPrefix, ModelSnapshot};
pub use layer_rows::LayerRows;
pub(crate) use layer_rows::Rules;
pub use options::{ContiguousOptions, ModelCacheKind, ModelCacheOptions, PagedOptions, PoolRoom};
pub use step::ModelStep;

/// The cache of a model.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use kvtide_core::model::{LayerDescription, ModelDescription};
/// use kvtide_tensor::{ModelCache, ModelCacheKind, ModelCacheOptions, PagedOptions, PoolRoom, StepTokens};
///
/// let model = ModelDescription::new(vec![LayerDescription::full(2, 4); 3])?;
/// let kind = ModelCacheKind::Paged(PagedOptions { room: PoolRoom::Blocks(vec![8]), ..Default::default() });
/// let mut cache = ModelCache::new(ModelCacheOptions::new(model, kind))?;
/// let sequence = cache.create_sequence(Default::default())?;
/// let mut step = cache.begin_step(StepTokens { sequences: &[sequence], offsets: Some(&[0, 5]), ..Default::default() })?;
/// for layer in 0..3 {
///     let kv = Tensor::ones((2, 5, 4), DType::F32, &Device::Cpu)?;
///     cache.write_layer(&mut step, layer, &kv, &kv)?;
///     let q = Tensor::ones((5, 4, 4), DType::F32, &Device::Cpu)?;
///     let attended = cache.attend_layer(&step, layer, &q, &Default::default())?;
///     assert_eq!(attended.out.shape(), [5, 4, 4]);
/// }
/// cache.commit_step(&mut step, None)?;
/// assert_eq!(cache.sequence_length(sequence), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ModelCache {
    model: ModelDescription,
    store: Box<dyn Store>,
    /// One for each device.
    budgets: Vec<Arc<Budget>>,
    id: u64,
}

impl ModelCache {
    /// An empty cache.
    pub fn new(options: ModelCacheOptions) -> Result<Self> {
        static CACHES: AtomicU64 = AtomicU64::new(0);
        let places = options.places()?;
        let budgets = places.iter().map(|place| place.budget.clone()).collect();
        let store: Box<dyn Store> = match &options.kind {
            ModelCacheKind::Contiguous(kind) => {
                Box::new(ContiguousLayers::new(options.model.groups(), *kind, options.dtype, places)?)
            }
            ModelCacheKind::Paged(kind) => Box::new(PagedGroups::new(kind.of_groups(&options, &places)?, kind)?),
        };
        Ok(ModelCache { model: options.model, store, budgets, id: CACHES.fetch_add(1, Ordering::Relaxed) })
    }

    /// Its layers.
    #[must_use]
    pub fn model(&self) -> &ModelDescription {
        &self.model
    }

    /// A new, empty sequence. Ids count up from 0 and are never used again.
    pub fn create_sequence(&mut self, options: PromptOptions<'_>) -> Result<u64> {
        self.store.create(options)
    }

    /// Refuses a prefix of another cache.
    pub fn check_prefix(&self, prefix: &ModelPrefix) -> Result<()> {
        self.check_held(prefix.cache)
    }

    /// A new sequence that starts with a prefix.
    pub fn create_sequence_from(&mut self, prefix: ModelPrefix) -> Result<u64> {
        self.check_prefix(&prefix)?;
        self.store.create_from(prefix.groups)
    }

    /// The longest prefix of a prompt that is there, at most all tokens but the last; in tensors of their own, nothing is.
    pub fn find_prefix(&mut self, tokens: &[u32], options: PromptOptions<'_>, partial: bool) -> Result<ModelPrefix> {
        Ok(ModelPrefix { groups: self.store.find(tokens, options, partial)?, cache: self.id })
    }

    /// A new sequence with the tokens of another: O(1) in blocks, a copy in tensors.
    pub fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.store.fork(sequence)
    }

    /// Ends a sequence.
    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        self.store.drop_sequence(sequence)
    }

    /// Ends a sequence if there is one of this number: at once, or, while someone reads in the background, at the next change.
    /// Never refused.
    pub fn release_sequence(&mut self, sequence: u64) {
        self.store.release_sequence(sequence);
    }

    /// Tokens of a sequence, those of open transactions included; 0 for an unknown one.
    #[must_use]
    pub fn sequence_length(&self, sequence: u64) -> u32 {
        self.store.length(sequence)
    }

    /// Tokens of a sequence that no transaction can take back; 0 for an unknown one.
    #[must_use]
    pub fn committed_length(&self, sequence: u64) -> u32 {
        self.store.committed(sequence)
    }

    /// True when there is such a sequence.
    #[must_use]
    pub fn has_sequence(&self, sequence: u64) -> bool {
        self.store.has(sequence)
    }

    /// The ids of the sequences there are, ascending.
    #[must_use]
    pub fn sequence_ids(&self) -> Vec<u64> {
        self.store.ids()
    }

    /// Refuses a sequence that is not there, or on which a transaction or a step is open.
    pub fn check_idle(&mut self, sequence: u64) -> Result<()> {
        self.store.check_idle(sequence)
    }

    /// Drops a sequence's tokens from `length` on, in all layers or in none.
    pub fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        self.store.truncate(sequence, length)
    }

    /// What a sequence holds now.
    pub fn snapshot(&mut self, sequence: u64) -> Result<ModelSnapshot> {
        Ok(ModelSnapshot { held: self.store.snapshot(sequence)?, cache: self.id })
    }

    /// Gives a sequence what a snapshot holds; any sequence of the cache, in blocks one with the same salt and extras.
    pub fn restore(&mut self, sequence: u64, snapshot: &ModelSnapshot) -> Result<()> {
        self.check_held(snapshot.cache)?;
        self.store.restore(sequence, &snapshot.held)
    }

    /// How far a prompt is found in all groups, and why no further. For whoever runs the cache: it tells of other tenants'
    /// prompts.
    pub fn explain(&mut self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Explanation> {
        self.store.explain(tokens, options)
    }

    /// Nothing that is there is found any more.
    pub fn forget_prefixes(&mut self) -> Result<()> {
        self.store.forget_prefixes()
    }

    /// Says which blocks make room first, once nobody holds them: those of some tokens of a sequence get a priority from 0 to 100,
    /// 50 where none was given; until a time of [`ModelCache::advance_clock`], or for good. What follows from it says
    /// [`PagedPlanner::retain`](kvtide_core::paged::PagedPlanner::retain).
    pub fn retain(&mut self, sequence: u64, tokens: Range<u32>, priority: u8, until: Option<u64>) -> Result<()> {
        self.store.retain(sequence, tokens, priority, until)
    }

    /// Tells the time, in whatever unit.
    pub fn advance_clock(&mut self, now: u64) -> Result<()> {
        self.store.advance_clock(now)
    }

    /// What happened to the blocks that can be found, from a number on: to those of the first group that keeps everything, or of
    /// the first one where all slide. Refused in tensors, as are the names of blocks.
    pub fn events(&self, since: u64) -> Result<Unseen<'_>> {
        Ok(self.store.told()?.events(since))
    }

    /// The names of the whole blocks of a prompt, whether they are there or not; the same in all groups. What they depend on, and
    /// how to have them without a cache, is said at [`PrefixNamer`](crate::PrefixNamer).
    pub fn keys(&self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Vec<Key>> {
        self.store.told()?.keys(tokens, options)
    }

    /// The names of all blocks that can be found in the group that [`ModelCache::events`] are of, in no order. O(blocks).
    pub fn indexed_keys(&self) -> Result<Vec<Key>> {
        self.store.told()?.indexed_keys()
    }

    /// Gives sequences room for so many tokens in total each: in blocks all that are missing in every group, or none; in tensors
    /// the layers that keep everything grow. Refused while a step is open on one of them.
    pub fn ensure_capacities(&mut self, wanted: &[(u64, u32)]) -> Result<()> {
        self.store.ensure_capacities(wanted)
    }

    /// Whether there is room for `tokens` tokens of a new sequence in every group, and for `watermark` blocks beside.
    pub fn can_allocate(&mut self, tokens: u32, watermark: u32) -> Result<bool> {
        self.store.can_allocate(tokens, watermark)
    }

    /// The same for a prompt, whose start may be there: blocks that others hold cost nothing, and a sliding group needs of what is
    /// there only what the next token sees.
    pub fn can_allocate_prompt(&mut self, tokens: &[u32], options: PromptOptions<'_>, watermark: u32) -> Result<bool> {
        self.store.can_allocate_prompt(tokens, options, watermark)
    }

    /// What a layer of a sequence holds: `[batch, kvHeads, tokens, headDim]`, in blocks a copy of it.
    pub fn kv(&mut self, sequence: u64, layer: u32) -> Result<Option<Kv>> {
        self.check_number(layer)?;
        self.store.kv(sequence, self.model.place(layer))
    }

    /// What it costs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        // What views and snapshots keep of sequences that were dropped is no layer's any more, but still the cache's.
        let sum = |of: fn(&Budget) -> u64| self.budgets.iter().map(|budget| of(budget)).sum();
        Stats {
            used_bytes: sum(Budget::used),
            held_bytes: sum(Budget::held),
            limit_bytes: self.budgets.iter().map(|budget| budget.limit()).max().unwrap_or(u64::MAX),
            ..self.store.stats()
        }
    }

    /// What the pool of each group holds; nothing in tensors.
    pub fn pool_stats(&mut self) -> Result<Vec<PoolStats>> {
        self.store.pool_stats()
    }

    /// Checks what must hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        self.store.check_invariants()
    }

    fn check_number(&self, layer: u32) -> Result<()> {
        let layers = self.model.layers().len();
        if (layer as usize) < layers { Ok(()) } else { Err(Error::argument("layer", layer, format!("below {layers}"))) }
    }

    /// Refuses what another cache holds.
    fn check_held(&self, cache: u64) -> Result<()> {
        if cache == self.id {
            return Ok(());
        }
        Err(kvtide_core::Error::SnapshotInvalid { reason: "it is of another cache" }.into())
    }

    fn check_own(&self, cache: u64) -> Result<()> {
        if cache == self.id { Ok(()) } else { Err(foreign()) }
    }
}
