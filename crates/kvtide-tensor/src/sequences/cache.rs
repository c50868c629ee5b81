//! The paged cache of many sequences: the operations that its groups of layers carry out together.
//!
//! Each group has its own planner, slab and counters. Sequences are created and dropped in all groups at once, so that they
//! have the same numbers and lengths everywhere. A call is checked in all groups before the first one changes; with a single
//! group, the group's own call is already atomic. O(groups), plus the cost of each group.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvtide_core::model::{LAYERS_MAX, LayerDescription, LayerKind, LayerPlace, ModelDescription};
use kvtide_core::paged::{
    BlockKey, Explanation, GrowthRequest, KeyOrValue, PageLayout, PagedPlanner, Shortage, can_allocate_in_groups,
    explain_in_groups, shortage_in_groups,
};

use super::events::join_events;
use super::layer_place::{place, shared};
use super::options::{PageForm, PagedModelOptions};
use super::prefix_namer::{PrefixNamer, PromptOptions};
use super::states::state_places;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::paged::{PageGroup, PagedKvCacheOptions, StatePlace};

/// Keys and values of many sequences, all layers, in blocks that sequences share. A step, a transaction and a snapshot cover
/// all layers.
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
///
/// For a model whose layers are full, slide, or read those of other layers:
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use kvtide_core::model::{LayerDescription, ModelDescription};
/// use kvtide_tensor::{PagedModelOptions, PagedKvCache, PoolRoom, StepTokens};
///
/// let model = ModelDescription::new(vec![LayerDescription::full(2, 4); 3])?;
/// let mut cache = PagedKvCache::of_model(PagedModelOptions::new(model, PoolRoom::Blocks(vec![8])))?;
/// let sequence = cache.create_sequence()?;
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
pub struct PagedKvCache {
    /// The groups, at least one.
    pub(super) groups: Vec<PageGroup>,
    pub(super) model: Arc<ModelDescription>,
    /// For each state, its group, and its place there.
    pub(super) state_places: Arc<[(usize, StatePlace)]>,
    /// One budget per device.
    budgets: Vec<Arc<Budget>>,
    pub(super) form: PageForm,
    pub(super) namer: PrefixNamer,
    pub(super) id: u64,
    /// True if tiers take its blocks.
    pub(super) has_below: bool,
}

impl PagedKvCache {
    /// An empty cache whose layers all have the same sizes: one group.
    pub fn new(options: PagedKvCacheOptions) -> Result<Self> {
        let PagedKvCacheOptions { num_layers, num_kv_heads, head_dim, value_head_dim, window, prefix_key, .. } =
            options;
        if options.states {
            return Err(Error::argument("states", "true", "false: states are those of a model's layers"));
        }
        let namespace = options.namespace.clone();
        let rotated = [options.hadamard, options.value_hadamard];
        let form = PageForm::new(options.dtype, [options.key_format, options.value_format], rotated);
        let groups = vec![PageGroup::new(options)?];
        let namer = PrefixNamer::new(prefix_key, &namespace, [groups[0].shape()])?;
        if num_layers > LAYERS_MAX {
            return Err(Error::argument("numLayers", num_layers, format!("1 to {LAYERS_MAX}")));
        }
        let kind = window.map_or(LayerKind::Full, |of| LayerKind::Sliding { window: of.tokens(), sinks: of.sinks() });
        let layer =
            LayerDescription { kind, num_kv_heads, head_dim, value_head_dim: value_head_dim.unwrap_or(head_dim) };
        let (model, budgets) =
            (Arc::new(ModelDescription::new(vec![layer; num_layers as usize])?), vec![groups[0].budget().clone()]);
        Ok(Self::of_groups(groups, model, budgets, form, namer))
    }

    /// An empty cache for a model's layers, whose blocks have the same keys in all groups.
    pub fn of_model(options: PagedModelOptions) -> Result<Self> {
        let devices = options.cache_devices()?;
        let budgets = devices.iter().map(|of| of.budget.clone()).collect();
        let mut groups = options.of_groups(&devices)?.into_iter().map(PageGroup::new).collect::<Result<Vec<_>>>()?;
        join_events(&mut groups);
        let namer = PrefixNamer::new(options.prefix_key, &options.namespace, groups.iter().map(PageGroup::shape))?;
        let rotated = [options.hadamard, options.value_hadamard];
        let form = PageForm::new(options.dtype, [options.key_format, options.value_format], rotated);
        let model = Arc::new(options.model);
        Ok(Self::of_groups(groups, model, budgets, form, namer))
    }

    fn of_groups(
        groups: Vec<PageGroup>,
        model: Arc<ModelDescription>,
        budgets: Vec<Arc<Budget>>,
        form: PageForm,
        namer: PrefixNamer,
    ) -> Self {
        let state_places = state_places(&model);
        PagedKvCache { groups, state_places, model, budgets, form, namer, id: next_id(), has_below: false }
    }

    /// Its layers.
    #[must_use]
    pub fn model(&self) -> &ModelDescription {
        &self.model
    }

    /// The number of tokens in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.namer.block_size()
    }

    /// The element type of inputs, and of outputs from pages that are not low-bit.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.form.dtype
    }

    /// The layout of each group's slab.
    pub fn layouts(&self) -> impl Iterator<Item = PageLayout> + '_ {
        self.groups.iter().map(|group| group.shape().pages)
    }

    /// The number of elements of one token's K or V in a layer.
    pub fn token_elements(&self, layer: u32, part: KeyOrValue) -> Result<usize> {
        let place = self.place(layer)?;
        Ok(self.group(place).shape().token_elements(part))
    }

    /// The bytes of pages for one token in all layers, including its share of scales; states do not count.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        self.groups_of_tokens().map(|group| group.shape().pages.bytes_per_token()).sum()
    }

    /// Creates an empty sequence without a salt. Ids count up from 0 and are never reused.
    pub fn create_sequence(&mut self) -> Result<u64> {
        self.create_sequence_of(PromptOptions::default())
    }

    /// Creates an empty sequence with the salt and extras of `options`.
    pub fn create_sequence_of(&mut self, options: PromptOptions<'_>) -> Result<u64> {
        self.check_all(|_| Ok(()))?;
        let identity = self.namer.identity(options)?;
        self.each(|group| group.create_sequence(identity.clone()))
    }

    /// Creates a sequence with the tokens of another one: O(1); all blocks are shared, and copied on the first write. The
    /// tokens of an open transaction count as committed in the fork; prompts hit neither them nor later tokens of the fork.
    /// Tokens of an open step are not included.
    pub fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.check(|group| Ok(group.planner().gap(sequence).map(drop)?))?;
        self.each(|group| group.fork(sequence))
    }

    /// Drops a sequence and releases all its blocks.
    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        self.check(|group| Ok(group.planner().gap(sequence).map(drop)?))?;
        self.each(|group| group.drop_sequence(sequence))
    }

    /// Drops a sequence, if there is one with this number: at once, or, while a background call reads the cache, at the next
    /// change. Always succeeds.
    pub fn release_sequence(&mut self, sequence: u64) {
        // In all groups at once, or in all of them at the next change, which then reports the reason.
        self.groups.iter().for_each(|group| group.release_sequence(sequence));
        let _ = self.check_change().and_then(|()| self.collect());
    }

    /// The number of tokens of a sequence, including those of open transactions; 0 for an unknown one.
    #[must_use]
    pub fn sequence_length(&self, sequence: u64) -> u32 {
        self.first().planner().sequence_length(sequence)
    }

    /// The number of tokens of a sequence that no transaction can roll back; 0 for an unknown one.
    #[must_use]
    pub fn committed_length(&self, sequence: u64) -> u32 {
        self.first().planner().committed_length(sequence)
    }

    /// The number of tokens of a sequence that are still in the cache in all groups: all except those in blocks outside a
    /// window. 0 for an unknown one.
    #[must_use]
    pub fn retained_length(&mut self, sequence: u64) -> u32 {
        let _ = self.collect();
        let length = self.sequence_length(sequence);
        self.groups_of_tokens().map(|group| group.planner().retained_length(sequence)).fold(length, u32::min)
    }

    /// The number of slots in its blocks, in the group with the fewest; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_capacity(&mut self, sequence: u64) -> u64 {
        let _ = self.collect();
        let capacity = |group: &PageGroup| group.planner().sequence_capacity(sequence);
        // A slot of states has room for any number of tokens.
        self.groups_of_tokens().map(capacity).min().unwrap_or_else(|| self.sequence_length(sequence).into())
    }

    /// True if there is such a sequence.
    #[must_use]
    pub fn has_sequence(&self, sequence: u64) -> bool {
        self.first().planner().gap(sequence).is_ok()
    }

    /// The ids of all sequences, ascending.
    #[must_use]
    pub fn sequence_ids(&self) -> Vec<u64> {
        self.first().planner().sequence_ids()
    }

    /// Fails if there is no such sequence, or a transaction or a step is open on it.
    pub fn check_idle(&mut self, sequence: u64) -> Result<()> {
        self.check_all(|group| Ok(group.planner().check_idle(sequence)?))
    }

    /// Drops a sequence's tokens from `length` on, in all layers or, if it fails, in none.
    pub fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        self.check(|group| Ok(group.planner().check_truncate(sequence, length)?))?;
        self.each(|group| group.truncate(sequence, length))
    }

    /// Allocates blocks for `tokens` tokens of a sequence in total; takes all missing blocks in every group, or none.
    pub fn ensure_capacity(&mut self, sequence: u64, tokens: u32) -> Result<()> {
        self.ensure_capacities(&[(sequence, tokens)])
    }

    /// Allocates blocks for sequences, up to a total number of tokens each; takes all missing blocks in every group, or
    /// none.
    pub fn ensure_capacities(&mut self, wanted: &[(u64, u32)]) -> Result<()> {
        self.check_change()?;
        let missing = self.ask(|group| {
            group.change()?;
            group.missing_blocks(wanted)
        })?;
        self.groups.iter_mut().zip(&missing).for_each(|(group, missing)| group.take_missing(wanted, missing));
        Ok(())
    }

    /// True if every group has free blocks for `tokens` tokens of a new sequence, plus `watermark` blocks.
    pub fn can_allocate(&mut self, tokens: u32, watermark: u32) -> Result<bool> {
        self.collect()?;
        Ok(self.groups.iter().all(|group| group.planner().can_allocate(tokens, watermark)))
    }

    /// Like [`can_allocate`](Self::can_allocate), for a prompt whose prefix may be cached: held blocks need no room, and a
    /// sliding group needs only the cached blocks in the next token's window.
    pub fn can_allocate_prompt(&mut self, tokens: &[u32], options: PromptOptions<'_>, watermark: u32) -> Result<bool> {
        self.collect()?;
        let identity = self.namer.identity(options)?;
        Ok(can_allocate_in_groups(&self.planners(), tokens, &identity, watermark)?)
    }

    /// Fails with `OUT_OF_BLOCKS` if some group has too few blocks for the growth of sequences. `prompt` is a prompt whose
    /// cached prefix the last sequence takes over first, if that is longer than the sequence.
    pub fn check_growth(
        &mut self,
        asked: GrowthRequest<'_>,
        prompt: Option<(&[u32], PromptOptions<'_>)>,
    ) -> Result<()> {
        self.collect()?;
        let prompt = match prompt {
            Some((tokens, options)) => Some((tokens, self.namer.identity(options)?)),
            None => None,
        };
        let prompt = prompt.as_ref().map(|(tokens, identity)| (*tokens, identity));
        match shortage_in_groups(&self.planners(), GrowthRequest { prompt, ..asked })? {
            Some(Shortage { group, needed, free, holders }) => {
                Err(Error::OutOfBlocks { group, needed, free, holders: Some(holders) })
            }
            None => Ok(()),
        }
    }

    /// Sets the priority, from 0 to 100 and 50 by default, that decides the order of eviction for the blocks of some tokens
    /// of a sequence; until a time of [`PagedKvCache::advance_clock`], or for good. For details see
    /// [`PagedPlanner::retain`](kvtide_core::paged::PagedPlanner::retain).
    pub fn retain(&mut self, sequence: u64, tokens: Range<u32>, priority: u8, until: Option<u64>) -> Result<()> {
        self.check(|group| Ok(group.planner().gap(sequence).map(drop)?))?;
        self.each(|group| group.retain(sequence, tokens.clone(), priority, until))
    }

    /// Advances the clock, in any unit: priorities that were given until then end.
    pub fn advance_clock(&mut self, now: u64) -> Result<()> {
        self.check(|_| Ok(()))?;
        self.each(|group| group.advance_clock(now))
    }

    /// Explains how much of a prompt is cached in all groups, and why not more. For operators of the cache only: the answer
    /// reveals other tenants' prompts.
    pub fn explain(&mut self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Explanation> {
        self.collect()?;
        let identity = self.namer.identity(options)?;
        Ok(explain_in_groups(&self.planners(), tokens, &identity)?)
    }

    /// Empties the prefix cache: prompts hit nothing that is cached now, nor blocks that are being restored from tiers or
    /// files, which get no key when they arrive.
    pub fn forget_prefixes(&mut self) -> Result<()> {
        self.check(|_| Ok(()))?;
        self.each(PageGroup::forget_prefixes)
    }

    /// The number of times the prefix cache was emptied.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.first().planner().forgotten()
    }

    /// The keys of a prompt's full blocks, whether they are cached or not; the same in all groups.
    /// [`PrefixNamer`](crate::PrefixNamer) says what keys depend on, and computes them without a cache.
    pub fn keys(&self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Vec<BlockKey>> {
        self.namer.keys(tokens, options)
    }

    /// The cache's costs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        // Memory of groups that only views and snapshots still keep belongs to no group, but to the cache.
        let sum = |of: fn(&Budget) -> u64| self.budgets.iter().map(|budget| of(budget)).sum();
        let stats = self.groups.iter().map(PageGroup::stats).fold(Stats::default(), Stats::plus);
        Stats {
            used_bytes: sum(Budget::used),
            held_bytes: sum(Budget::held),
            limit_bytes: self.budgets.iter().map(|budget| budget.limit()).max().unwrap_or(u64::MAX),
            ..stats
        }
    }

    /// Checks the invariants that hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        for group in &self.groups {
            group.check_invariants()?;
            if group.planner().sequence_ids() != self.sequence_ids() {
                return Err("groups have other sequences".to_owned());
            }
            let differs = |&id: &u64| group.planner().sequence_length(id) != self.sequence_length(id);
            if let Some(id) = self.sequence_ids().into_iter().find(differs) {
                return Err(format!("groups have other lengths of sequence {id}"));
            }
        }
        Ok(())
    }

    pub(super) fn first(&self) -> &PageGroup {
        &self.groups[0]
    }

    /// The groups with keys and values of tokens, which come before those with states.
    pub(super) fn groups_of_tokens(&self) -> impl Iterator<Item = &PageGroup> {
        self.groups.iter().take_while(|group| !group.keeps_states())
    }

    /// The group of a layer's keys and values, and the index there; fails if there is no such layer, or if it has none.
    pub fn place(&self, layer: u32) -> Result<LayerPlace> {
        place(&self.model, layer)
    }

    /// The layer whose keys and values this layer reads, if it stores none.
    pub(crate) fn shared(&self, layer: u32) -> Option<u32> {
        shared(&self.model, layer)
    }

    /// The layers that store their own keys and values.
    pub(crate) fn own_layers(&self) -> impl Iterator<Item = u32> + '_ {
        let has_own = |&layer: &u32| self.model.place(layer).is_some() && self.shared(layer).is_none();
        (0..self.model.layers().len() as u32).filter(has_own)
    }

    pub(super) fn group(&self, place: LayerPlace) -> &PageGroup {
        &self.groups[place.group as usize]
    }

    /// The group of a layer, and the layer's index in it.
    pub(super) fn group_of(&mut self, layer: u32) -> Result<(&mut PageGroup, u32)> {
        let place = self.place(layer)?;
        Ok((&mut self.groups[place.group as usize], place.index))
    }

    /// The only group; fails if there are several, because one tensor cannot have all layers then.
    pub(super) fn one_group(&mut self, argument: &'static str) -> Result<&mut PageGroup> {
        self.check_stateless(argument)?;
        let groups = self.groups.len();
        match &mut self.groups[..] {
            [group] => Ok(group),
            _ => Err(Error::argument(
                argument,
                "for layers of one group",
                format!("layer by layer, because the layers form {groups} groups"),
            )),
        }
    }

    pub(super) fn planners(&self) -> Vec<&PagedPlanner> {
        self.groups.iter().map(PageGroup::planner).collect()
    }

    /// Calls each group; all give the same answer.
    pub(super) fn each<T>(&mut self, mut call: impl FnMut(&mut PageGroup) -> Result<T>) -> Result<T> {
        let (first, others) = self.groups.split_first_mut().expect("a group");
        let answer = call(first)?;
        for group in others {
            call(group)?;
        }
        Ok(answer)
    }

    /// Fails while a background call reads one of the groups.
    pub(crate) fn check_change(&self) -> Result<()> {
        self.groups.iter().try_for_each(PageGroup::check_change)
    }

    /// Like [`PagedKvCache::check_change`], for changes to pages, which also fail while another thread computes a step.
    pub(crate) fn check_pages(&self) -> Result<()> {
        self.groups.iter().try_for_each(PageGroup::check_pages)
    }

    /// Checks a change in all groups, if there are several; a single group checks it by itself. If memory runs out later,
    /// the remaining groups are poisoned.
    pub(super) fn check(&mut self, check: impl FnMut(&mut PageGroup) -> Result<()>) -> Result<()> {
        if self.groups.len() == 1 { Ok(()) } else { self.check_all(check) }
    }

    /// Like [`PagedKvCache::check`], also for a single group.
    pub(super) fn check_all(&mut self, mut check: impl FnMut(&mut PageGroup) -> Result<()>) -> Result<()> {
        self.check_change()?;
        self.ask(|group| {
            group.change()?;
            check(group)
        })?;
        Ok(())
    }

    /// Asks each group before the first one changes. With several groups, an error names its group.
    pub(super) fn ask<T>(&mut self, mut ask: impl FnMut(&mut PageGroup) -> Result<T>) -> Result<Vec<T>> {
        let is_one = self.groups.len() == 1;
        let answers = self.groups.iter_mut().enumerate();
        let answers =
            answers.map(|(at, group)| ask(group).map_err(|error| if is_one { error } else { error.in_group(at) }));
        answers.collect()
    }

    /// Reclaims dropped handles in all groups, so that they stay equal: before reads and before changes.
    pub(super) fn collect(&mut self) -> Result<()> {
        self.groups.iter_mut().try_for_each(PageGroup::collect)
    }

    /// Like [`PagedKvCache::collect`], if there are several groups, before a call of one of them; a single group does it in
    /// its own calls.
    pub(super) fn align(&mut self) -> Result<()> {
        if self.groups.len() == 1 { Ok(()) } else { self.collect() }
    }

    /// Fails for objects of another cache.
    pub(super) fn check_held(&self, cache: u64) -> Result<()> {
        if cache == self.id {
            return Ok(());
        }
        Err(kvtide_core::Error::SnapshotInvalid { reason: "it belongs to another cache" }.into())
    }
}

/// A unique number, by which a cache recognises its own objects.
fn next_id() -> u64 {
    static CACHES: AtomicU64 = AtomicU64::new(0);
    CACHES.fetch_add(1, Ordering::Relaxed)
}
