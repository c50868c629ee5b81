//! The cache of many sequences: what its groups of layers do together.
//!
//! Each group has a planner, a slab and numbers of its own. Sequences are created and dropped in all of them at once, so that they
//! have the same numbers and lengths everywhere. What one group refuses is refused before another has changed; of one group alone,
//! the group's own call is atomic already. O(groups), and what each of them takes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvtide_core::model::{LAYERS_MAX, LayerDescription, LayerKind, LayerPlace, ModelDescription};
use kvtide_core::paged::{
    BlockKey, Explanation, KeyOrValue, PageLayout, PagedPlanner, UnseenEvents, can_allocate_in_groups,
    explain_in_groups,
};

use super::layer_pages::{place, shared};
use super::options::PagedModelOptions;
use super::prefix_namer::{PrefixNamer, PromptOptions};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::paged::{PageGroup, PagedKvCacheOptions};

/// Keys and values of many sequences, all layers, in blocks that sequences share: one step, one transaction, one snapshot for all
/// layers.
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
/// Of a model, whose layers keep everything, slide, or read those of others:
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
    /// At least one.
    pub(super) groups: Vec<PageGroup>,
    pub(super) model: Arc<ModelDescription>,
    /// One for each device.
    budgets: Vec<Arc<Budget>>,
    pub(super) namer: PrefixNamer,
    pub(super) id: u64,
    /// Whether somebody takes its blocks.
    pub(super) has_below: bool,
}

impl PagedKvCache {
    /// An empty cache of layers that are alike: one group.
    pub fn new(options: PagedKvCacheOptions) -> Result<Self> {
        let PagedKvCacheOptions { num_layers, num_kv_heads, head_dim, value_head_dim, window, prefix_key, .. } =
            options;
        let namespace = options.namespace.clone();
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
        Ok(PagedKvCache { groups, model, budgets, namer, id: next_id(), has_below: false })
    }

    /// An empty cache of a model's layers, whose blocks have the same names in all groups.
    pub fn of_model(options: PagedModelOptions) -> Result<Self> {
        let devices = options.cache_devices()?;
        let budgets = devices.iter().map(|of| of.budget.clone()).collect();
        let groups = options.of_groups(&devices)?.into_iter().map(PageGroup::new).collect::<Result<Vec<_>>>()?;
        let namer = PrefixNamer::new(options.prefix_key, &options.namespace, groups.iter().map(PageGroup::shape))?;
        Ok(PagedKvCache { groups, model: Arc::new(options.model), budgets, namer, id: next_id(), has_below: false })
    }

    /// Its layers.
    #[must_use]
    pub fn model(&self) -> &ModelDescription {
        &self.model
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.namer.block_size()
    }

    /// The element type of what goes in, and of what comes out of pages that are not low-bit.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.first().shape().dtype
    }

    /// The type in which tokens of K or V come out: 32-bit floats where they are quantised, else the cache's dtype.
    #[must_use]
    pub fn read_dtype(&self, part: KeyOrValue) -> DType {
        self.first().shape().read_dtype(part)
    }

    /// Where everything lies in the slab of each group.
    pub fn layouts(&self) -> impl Iterator<Item = PageLayout> + '_ {
        self.groups.iter().map(|group| group.shape().pages)
    }

    /// Elements of one token's key, or value, in a layer.
    pub fn token_elements(&self, layer: u32, part: KeyOrValue) -> Result<usize> {
        let place = self.place(layer)?;
        Ok(self.group(place).shape().token_elements(part))
    }

    /// Bytes of pages that one token of all layers takes, its share of scales included.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        self.layouts().map(|layout| layout.bytes_per_token()).sum()
    }

    /// A new, empty sequence, of no salt. Ids count up from 0 and are never used again.
    pub fn create_sequence(&mut self) -> Result<u64> {
        self.create_sequence_of(PromptOptions::default())
    }

    /// A new, empty sequence whose tokens are those of `options`.
    pub fn create_sequence_of(&mut self, options: PromptOptions<'_>) -> Result<u64> {
        self.check_all(|_| Ok(()))?;
        let identity = self.namer.identity(options)?;
        self.each(|group| group.create_sequence(identity.clone()))
    }

    /// A new sequence with the tokens of another: O(1), all blocks are shared, and the first write into one copies it. What an
    /// open transaction holds counts as committed in the fork, and is found by no prompt, nor is what follows it there.
    pub fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.check(|group| Ok(group.planner().check_resting(sequence)?))?;
        self.each(|group| group.fork(sequence))
    }

    /// Ends a sequence and gives all its blocks back.
    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        self.check(|group| Ok(group.planner().gap(sequence).map(drop)?))?;
        self.each(|group| group.drop_sequence(sequence))
    }

    /// Ends a sequence if there is one of this number: at once, or, while someone reads in the background, at the next change.
    /// Never refused.
    pub fn release_sequence(&mut self, sequence: u64) {
        // In all groups at once, or in all of them at the next change. What refuses it now is told to whoever makes that one.
        self.groups.iter().for_each(|group| group.release_sequence(sequence));
        let _ = self.check_change().and_then(|()| self.collect());
    }

    /// Tokens of a sequence, those of open transactions included; 0 for an unknown one.
    #[must_use]
    pub fn sequence_length(&self, sequence: u64) -> u32 {
        self.first().planner().sequence_length(sequence)
    }

    /// Tokens of a sequence that no transaction can take back; 0 for an unknown one.
    #[must_use]
    pub fn committed_length(&self, sequence: u64) -> u32 {
        self.first().planner().committed_length(sequence)
    }

    /// Tokens of a sequence that are still there in all groups: all, but for those whose blocks left a window. 0 where it is unknown.
    #[must_use]
    pub fn retained_length(&mut self, sequence: u64) -> u32 {
        self.groups.iter_mut().map(|group| group.current().retained_length(sequence)).min().unwrap_or(0)
    }

    /// Slots of its blocks, in the group with the fewest; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_capacity(&mut self, sequence: u64) -> u64 {
        self.groups.iter_mut().map(|group| group.current().sequence_capacity(sequence)).min().unwrap_or(0)
    }

    /// True when there is such a sequence.
    #[must_use]
    pub fn has_sequence(&self, sequence: u64) -> bool {
        self.first().planner().gap(sequence).is_ok()
    }

    /// The ids of the sequences there are, ascending.
    #[must_use]
    pub fn sequence_ids(&self) -> Vec<u64> {
        self.first().planner().sequence_ids()
    }

    /// Refuses a sequence that is not there, or on which a transaction or a step is open.
    pub fn check_idle(&mut self, sequence: u64) -> Result<()> {
        self.check_all(|group| Ok(group.planner().check_idle(sequence)?))
    }

    /// Drops a sequence's tokens from `length` on, in all layers or in none.
    pub fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        self.check(|group| Ok(group.planner().check_truncate(sequence, length)?))?;
        self.each(|group| group.truncate(sequence, length))
    }

    /// Gives a sequence blocks for `tokens` tokens in total; takes all that are missing in every group, or none.
    pub fn ensure_capacity(&mut self, sequence: u64, tokens: u32) -> Result<()> {
        self.ensure_capacities(&[(sequence, tokens)])
    }

    /// Gives sequences blocks for so many tokens in total each; takes all that are missing in every group, or none.
    pub fn ensure_capacities(&mut self, wanted: &[(u64, u32)]) -> Result<()> {
        self.check_change()?;
        let missing = self.ask(|group| {
            group.change()?;
            group.missing_blocks(wanted)
        })?;
        self.groups.iter_mut().zip(&missing).for_each(|(group, missing)| group.take_missing(wanted, missing));
        Ok(())
    }

    /// Whether there is room for `tokens` tokens of a new sequence in every group, and for `watermark` blocks beside.
    pub fn can_allocate(&mut self, tokens: u32, watermark: u32) -> Result<bool> {
        self.collect()?;
        Ok(self.groups.iter().all(|group| group.planner().can_allocate(tokens, watermark)))
    }

    /// The same for a prompt, whose start may be there: blocks that others hold cost nothing, and a sliding group needs of what is
    /// there only what the next token sees.
    pub fn can_allocate_prompt(&mut self, tokens: &[u32], options: PromptOptions<'_>, watermark: u32) -> Result<bool> {
        self.collect()?;
        let identity = self.namer.identity(options)?;
        Ok(can_allocate_in_groups(&self.planners(), tokens, &identity, watermark)?)
    }

    /// Says which blocks make room first, once nobody holds them: those of some tokens of a sequence get a priority from 0 to 100,
    /// 50 where none was given; until a time of [`PagedKvCache::advance_clock`], or for good. What follows from it says
    /// [`PagedPlanner::retain`](kvtide_core::paged::PagedPlanner::retain).
    pub fn retain(&mut self, sequence: u64, tokens: Range<u32>, priority: u8, until: Option<u64>) -> Result<()> {
        self.check(|group| Ok(group.planner().gap(sequence).map(drop)?))?;
        self.each(|group| group.retain(sequence, tokens.clone(), priority, until))
    }

    /// Tells the time, in whatever unit: priorities that were given until then are over.
    pub fn advance_clock(&mut self, now: u64) -> Result<()> {
        self.check(|_| Ok(()))?;
        self.each(|group| group.advance_clock(now))
    }

    /// How far a prompt is found in all groups, and why no further. For whoever runs the cache: it tells of other tenants' prompts.
    pub fn explain(&mut self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Explanation> {
        self.collect()?;
        let identity = self.namer.identity(options)?;
        Ok(explain_in_groups(&self.planners(), tokens, &identity)?)
    }

    /// Nothing that is there is found any more.
    pub fn forget_prefixes(&mut self) -> Result<()> {
        self.check(|_| Ok(()))?;
        self.each(PageGroup::forget_prefixes)
    }

    /// What happened to the blocks that can be found, from a number on: to those of the first group that keeps everything, which is
    /// what a prompt needs most of, or of the first group where all slide.
    #[must_use]
    pub fn events(&self, since: u64) -> UnseenEvents<'_> {
        self.followed().events(since)
    }

    /// The names of the whole blocks of a prompt, whether they are there or not; the same in all groups. What they depend on, and
    /// how to have them without a cache, is said at [`PrefixNamer`](crate::PrefixNamer).
    pub fn keys(&self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Vec<BlockKey>> {
        self.namer.keys(tokens, options)
    }

    /// The names of all blocks that can be found in the group that [`PagedKvCache::events`] are of, in no order. O(blocks).
    pub fn indexed_keys(&self) -> Result<Vec<BlockKey>> {
        Ok(self.followed().indexed_keys()?)
    }

    /// What it costs.
    #[must_use]
    pub fn stats(&self) -> Stats {
        // What views and snapshots keep of groups is no group's any more, but still the cache's.
        let sum = |of: fn(&Budget) -> u64| self.budgets.iter().map(|budget| of(budget)).sum();
        let stats = self.groups.iter().map(PageGroup::stats).fold(Stats::default(), Stats::plus);
        Stats {
            used_bytes: sum(Budget::used),
            held_bytes: sum(Budget::held),
            limit_bytes: self.budgets.iter().map(|budget| budget.limit()).max().unwrap_or(u64::MAX),
            ..stats
        }
    }

    /// Checks what must hold between calls.
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

    /// Its groups of layers.
    #[cfg(feature = "captured-steps")]
    pub(crate) fn groups(&self) -> &[PageGroup] {
        &self.groups
    }

    pub(super) fn first(&self) -> &PageGroup {
        &self.groups[0]
    }

    /// Where a layer's keys and values lie; refused where there is no such layer.
    pub(crate) fn place(&self, layer: u32) -> Result<LayerPlace> {
        place(&self.model, layer)
    }

    /// The layer whose keys and values one reads that has none of its own.
    pub(crate) fn shared(&self, layer: u32) -> Option<u32> {
        shared(&self.model, layer)
    }

    /// The layers with keys and values of their own.
    pub(crate) fn own_layers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.model.layers().len() as u32).filter(|&layer| self.shared(layer).is_none())
    }

    pub(super) fn group(&self, place: LayerPlace) -> &PageGroup {
        &self.groups[place.group as usize]
    }

    /// The group of a layer, and the layer's place in it.
    pub(super) fn group_of(&mut self, layer: u32) -> Result<(&mut PageGroup, u32)> {
        let place = self.place(layer)?;
        Ok((&mut self.groups[place.group as usize], place.index))
    }

    /// The only group: refused where layers differ, and one tensor cannot be that of all of them.
    pub(super) fn one_group(&mut self, argument: &'static str) -> Result<&mut PageGroup> {
        let groups = self.groups.len();
        match &mut self.groups[..] {
            [group] => Ok(group),
            _ => Err(Error::argument(
                argument,
                "all layers alike",
                format!("layer by layer: they are of {groups} groups"),
            )),
        }
    }

    /// The group whose blocks decide most of what is found.
    fn followed(&self) -> &PagedPlanner {
        self.groups[self.followed_group()].planner()
    }

    /// The group that [`PagedKvCache::events`] are of.
    #[must_use]
    pub fn followed_group(&self) -> usize {
        self.groups.iter().position(|group| group.planner().window().is_none()).unwrap_or(0)
    }

    fn planners(&self) -> Vec<&PagedPlanner> {
        self.groups.iter().map(PageGroup::planner).collect()
    }

    /// Calls each group, the same answer from all.
    pub(super) fn each<T>(&mut self, mut call: impl FnMut(&mut PageGroup) -> Result<T>) -> Result<T> {
        let (first, others) = self.groups.split_first_mut().expect("a group");
        let answer = call(first)?;
        for group in others {
            call(group)?;
        }
        Ok(answer)
    }

    /// Refuses a change of any group while someone reads one of them in the background.
    pub(crate) fn check_change(&self) -> Result<()> {
        self.groups.iter().try_for_each(PageGroup::check_change)
    }

    /// The same for a change that touches pages, which none does while a step is computed elsewhere.
    pub(crate) fn check_pages(&self) -> Result<()> {
        self.groups.iter().try_for_each(PageGroup::check_pages)
    }

    /// Refuses a change that one of several groups would refuse; one alone refuses it by itself. Memory that runs out later poisons
    /// the groups that are behind.
    pub(super) fn check(&mut self, check: impl FnMut(&mut PageGroup) -> Result<()>) -> Result<()> {
        if self.groups.len() == 1 { Ok(()) } else { self.check_all(check) }
    }

    /// The same, also of one group.
    pub(super) fn check_all(&mut self, mut check: impl FnMut(&mut PageGroup) -> Result<()>) -> Result<()> {
        self.check_change()?;
        self.ask(|group| {
            group.change()?;
            check(group)
        })?;
        Ok(())
    }

    /// Asks each group before the first one changes. A refusal says of which group it is, where there are several.
    pub(super) fn ask<T>(&mut self, mut ask: impl FnMut(&mut PageGroup) -> Result<T>) -> Result<Vec<T>> {
        let is_one = self.groups.len() == 1;
        let answers = self.groups.iter_mut().enumerate();
        let answers =
            answers.map(|(at, group)| ask(group).map_err(|error| if is_one { error } else { error.in_group(at) }));
        answers.collect()
    }

    /// Takes back what was dropped, in all groups, so that they stay alike: before a read as before a change.
    pub(super) fn collect(&mut self) -> Result<()> {
        self.groups.iter_mut().try_for_each(PageGroup::collect)
    }

    /// The same where there are several groups, before a call of one of them; one alone does so in its own calls.
    pub(super) fn align(&mut self) -> Result<()> {
        if self.groups.len() == 1 { Ok(()) } else { self.collect() }
    }

    /// Refuses what another cache holds.
    pub(super) fn check_held(&self, cache: u64) -> Result<()> {
        if cache == self.id {
            return Ok(());
        }
        Err(kvtide_core::Error::SnapshotInvalid { reason: "it is of another cache" }.into())
    }
}

/// A number of a cache of its own, by which it knows what it made.
fn next_id() -> u64 {
    static CACHES: AtomicU64 = AtomicU64::new(0);
    CACHES.fetch_add(1, Ordering::Relaxed)
}
