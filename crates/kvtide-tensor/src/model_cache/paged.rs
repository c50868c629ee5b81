//! All groups of layers in blocks, each group in a cache of its own. Sequences are created and dropped in all of them at once,
//! so that they have the same numbers everywhere.
//!
//! Steps and the ends of drafts are planned in all groups, and their memory taken, before one of them changes: all of a call, or
//! nothing.

use std::ops::Range;

use kvtide_core::TransactionId;
use kvtide_core::model::LayerPlace;
use kvtide_core::paged::{
    Explanation, Keep, PagedPlanner, PoolStats, StepRows, can_allocate_in_groups, explain_in_groups, find_in_groups,
};

use super::layer_rows::Rows;
use super::options::PagedOptions;
use super::store::{Held, StepState, Store, Tables};
use crate::error::{Error, Result};
use crate::options::PagedKvCacheOptions;
use crate::paged::{PagedPrefix, PrefixKeys, PromptOptions, Returned, StepTokens};
use crate::paged_kv_cache::PagedKvCache;
use crate::source::Source;
use crate::stats::Stats;
use crate::view::Kv;

/// One cache for each group.
#[derive(Debug)]
pub(super) struct PagedGroups(pub(super) Vec<PagedKvCache>);

impl PagedGroups {
    /// Empty caches, whose blocks have the same names in all of them.
    pub fn new(groups: Vec<PagedKvCacheOptions>, kind: &PagedOptions) -> Result<Self> {
        let mut caches = groups.into_iter().map(PagedKvCache::new).collect::<Result<Vec<_>>>()?;
        let keys = PrefixKeys::new(kind.prefix_key, &kind.namespace, caches.iter().map(|group| &group.shape))?;
        caches.iter_mut().for_each(|group| group.keys = keys.clone());
        if caches.is_empty() { Err(no_layers()) } else { Ok(PagedGroups(caches)) }
    }

    /// Calls each group, the same answer from all.
    pub(super) fn each<T>(&mut self, call: impl FnMut(&mut PagedKvCache) -> Result<T>) -> Result<T> {
        let answers: Vec<T> = self.0.iter_mut().map(call).collect::<Result<_>>()?;
        answers.into_iter().next().ok_or_else(no_layers)
    }

    /// Ends a draft in all groups, or in none.
    pub(super) fn end(&mut self, sequence: u64, id: TransactionId, keep: Keep<'_>) -> Result<()> {
        let groups = self.0.iter_mut().enumerate();
        let planned = groups.map(|(at, group)| group.plan_end(sequence, id, keep).map_err(|error| error.in_group(at)));
        let planned = planned.collect::<Result<Vec<_>>>()?;
        self.0.iter_mut().zip(planned).try_for_each(|(group, planned)| group.carry_out_end(planned))
    }

    pub(super) fn first(&self) -> &PagedKvCache {
        &self.0[0]
    }

    /// Refuses a change of any group while someone reads one of them in the background.
    pub(super) fn check_change(&self) -> Result<()> {
        self.0.iter().try_for_each(PagedKvCache::check_change)
    }

    /// Refuses a change that one of the groups would refuse; memory that runs out later poisons those that are behind.
    pub(super) fn check(&mut self, mut check: impl FnMut(&mut PagedKvCache) -> Result<()>) -> Result<()> {
        self.check_change()?;
        self.0.iter_mut().enumerate().try_for_each(|(at, group)| {
            group.change()?;
            check(group).map_err(|error| error.in_group(at))
        })
    }
}

fn no_layers() -> Error {
    Error::argument("layers", "none", "at least one")
}

impl Store for PagedGroups {
    fn create(&mut self, options: PromptOptions<'_>) -> Result<u64> {
        self.check(|_| Ok(()))?;
        self.each(|group| group.create_sequence_of(options))
    }

    fn create_from(&mut self, prefix: Vec<PagedPrefix>) -> Result<u64> {
        self.check(|_| Ok(()))?;
        let mut id = Err(no_layers());
        for (group, prefix) in self.0.iter_mut().zip(prefix) {
            id = Ok(group.create_sequence_from(prefix)?);
        }
        id
    }

    fn find(&mut self, tokens: &[u32], options: PromptOptions<'_>, partial: bool) -> Result<Vec<PagedPrefix>> {
        self.check(|_| Ok(()))?;
        let identity = self.first().identity(options)?;
        let mut planners: Vec<&mut PagedPlanner> = self.0.iter_mut().map(|group| &mut group.planner).collect();
        let held = find_in_groups(&mut planners, tokens, &identity, partial)?;
        let mut kept = Vec::with_capacity(held.len());
        for (group, held) in self.0.iter_mut().zip(held) {
            kept.push(group.keep_prefix(held));
        }
        kept.into_iter().collect()
    }

    fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.check(|group| group.planner.check_resting(sequence).map_err(Into::into))?;
        self.each(|group| group.fork(sequence))
    }

    fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        self.check(|group| group.planner.gap(sequence).map(drop).map_err(Into::into))?;
        self.each(|group| group.drop_sequence(sequence))
    }

    fn release_sequence(&mut self, sequence: u64) {
        // In all groups at once, or in all of them at the next change.
        self.0.iter().for_each(|group| group.returns.add(Returned::Sequence(sequence)));
        let _ = self.check(|_| Ok(()));
    }

    fn length(&self, sequence: u64) -> u32 {
        self.first().sequence_length(sequence)
    }

    fn committed(&self, sequence: u64) -> u32 {
        self.first().committed_length(sequence)
    }

    fn has(&self, sequence: u64) -> bool {
        self.first().planner.gap(sequence).is_ok()
    }

    fn ids(&self) -> Vec<u64> {
        self.first().sequence_ids()
    }

    fn check_idle(&mut self, sequence: u64) -> Result<()> {
        self.check(|group| group.planner.check_idle(sequence).map_err(Into::into))
    }

    fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        self.check(|group| Ok(group.planner.check_truncate(sequence, length)?))?;
        self.each(|group| group.truncate(sequence, length))
    }

    fn snapshot(&mut self, sequence: u64) -> Result<Held> {
        let held = self.0.iter_mut().map(|group| group.snapshot(sequence));
        Ok(Held::Paged(held.collect::<Result<_>>()?))
    }

    fn restore(&mut self, sequence: u64, held: &Held) -> Result<()> {
        let Held::Paged(held) = held else { return Err(foreign()) };
        if held.len() != self.0.len() {
            return Err(foreign());
        }
        self.check_change()?;
        for (group, held) in self.0.iter_mut().zip(held) {
            group.check_restore(sequence, held)?;
        }
        self.0.iter_mut().zip(held).try_for_each(|(group, held)| group.restore(sequence, held))
    }

    fn explain(&mut self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Explanation> {
        self.collect()?;
        let identity = self.first().identity(options)?;
        Ok(explain_in_groups(&self.0.iter().map(|group| &group.planner).collect::<Vec<_>>(), tokens, &identity)?)
    }

    fn forget_prefixes(&mut self) -> Result<()> {
        self.check(|_| Ok(()))?;
        self.each(PagedKvCache::forget_prefixes)
    }

    fn retain(&mut self, sequence: u64, tokens: Range<u32>, priority: u8, until: Option<u64>) -> Result<()> {
        self.check(|group| group.planner.gap(sequence).map(drop).map_err(Into::into))?;
        self.each(|group| group.retain(sequence, tokens.clone(), priority, until))
    }

    fn advance_clock(&mut self, now: u64) -> Result<()> {
        self.check(|_| Ok(()))?;
        self.each(|group| group.advance_clock(now))
    }

    fn told(&self) -> Result<&PagedKvCache> {
        let mut groups = self.0.iter();
        Ok(groups.find(|group| group.planner.window().is_none()).unwrap_or(self.first()))
    }

    fn ensure_capacities(&mut self, wanted: &[(u64, u32)]) -> Result<()> {
        let mut missing = Vec::with_capacity(self.0.len());
        self.check(|group| {
            wanted.iter().try_for_each(|&(sequence, _)| group.planner.check_resting(sequence))?;
            missing.push(group.planner.missing_blocks(wanted)?);
            Ok(())
        })?;
        self.0.iter_mut().zip(&missing).for_each(|(group, missing)| group.planner.take_missing(wanted, missing));
        Ok(())
    }

    fn can_allocate(&mut self, tokens: u32, watermark: u32) -> Result<bool> {
        self.collect()?;
        self.0.iter_mut().try_fold(true, |all, group| Ok(all & group.can_allocate(tokens, watermark)?))
    }

    fn can_allocate_prompt(&mut self, tokens: &[u32], options: PromptOptions<'_>, watermark: u32) -> Result<bool> {
        self.collect()?;
        let identity = self.first().identity(options)?;
        let planners: Vec<_> = self.0.iter().map(|group| &group.planner).collect();
        Ok(can_allocate_in_groups(&planners, tokens, &identity, watermark)?)
    }

    fn begin_step(&mut self, tokens: StepTokens<'_>) -> Result<StepState> {
        self.begin_steps(tokens).map(StepState::Paged)
    }

    fn prepare_step(&mut self, of: StepTokens<'_>, rows: &mut [StepRows], tables: Tables<'_>) -> Result<StepState> {
        self.prepare_steps(of, rows, tables).map(StepState::Paged)
    }

    fn check_rows(&self, place: LayerPlace, sources: [&Source<'_>; 2], tokens: u32) -> Result<()> {
        self.0[place.group as usize].check_rows(sources, tokens)
    }

    fn check_step(&mut self, step: &StepState) -> Result<()> {
        let StepState::Paged(steps) = step else { return Err(foreign()) };
        self.check_steps(steps)
    }

    fn write(&mut self, step: &mut StepState, place: LayerPlace, k: Source<'_>, v: Source<'_>) -> Result<()> {
        let StepState::Paged(steps) = step else { return Err(foreign()) };
        self.check_change()?;
        let group = place.group as usize;
        self.0[group].write_layer(&mut steps[group], place.index, k, v)
    }

    fn rows(&mut self, step: &StepState, place: LayerPlace) -> Result<Rows<'_>> {
        let StepState::Paged(steps) = step else { return Err(foreign()) };
        self.collect()?;
        let group = place.group as usize;
        let offsets = steps[group].offsets()?;
        Ok(Rows::Pages(self.0[group].step_pages(&steps[group], place.index)?, Some(offsets)))
    }

    fn commit_step(&mut self, step: &mut StepState, tokens: Option<&[u32]>) -> Result<()> {
        let StepState::Paged(steps) = step else { return Err(foreign()) };
        self.commit_steps(steps, tokens)
    }

    fn undo_step(&mut self, step: &mut StepState) -> Result<()> {
        let StepState::Paged(steps) = step else { return Err(foreign()) };
        self.undo_steps(steps)
    }

    fn collect(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(PagedKvCache::collect)
    }

    fn groups(&mut self) -> Result<&mut [PagedKvCache]> {
        Ok(&mut self.0)
    }

    fn group(&mut self, group: u32) -> Result<&mut PagedKvCache> {
        self.collect()?;
        Ok(&mut self.0[group as usize])
    }

    fn kv(&mut self, sequence: u64, place: LayerPlace) -> Result<Option<Kv>> {
        self.collect()?;
        self.first().planner.gap(sequence)?;
        if self.length(sequence) == 0 {
            return Ok(None);
        }
        Ok(Some(self.0[place.group as usize].gather_batched(sequence, place.index)?))
    }

    fn stats(&self) -> Stats {
        self.0.iter().map(PagedKvCache::stats).fold(Stats::default(), Stats::plus)
    }

    fn pool_stats(&mut self) -> Result<Vec<PoolStats>> {
        self.collect()?;
        self.0.iter_mut().map(PagedKvCache::pool_stats).collect()
    }

    fn check_invariants(&self) -> std::result::Result<(), String> {
        for group in &self.0 {
            group.check_invariants()?;
            if group.sequence_ids() != self.ids() {
                return Err("groups have other sequences".to_owned());
            }
            let differs = |&id: &u64| group.sequence_length(id) != self.length(id);
            if let Some(id) = self.ids().into_iter().find(differs) {
                return Err(format!("groups have other lengths of sequence {id}"));
            }
        }
        Ok(())
    }
}

pub(super) fn foreign() -> Error {
    Error::argument("object", "of another cache", "one of this cache")
}
