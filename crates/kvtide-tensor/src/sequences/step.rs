//! Steps: some tokens of all layers, written and attended to layer by layer, counted once for all of them.
//!
//! ```text
//! let mut step = cache.begin_step(..)?         slots of all layers are taken
//! cache.write_layer(&mut step, 0, k, v)?       the queries of layer 0 attend to cache.step_layer(&step, 0)?
//! cache.write_layer(&mut step, 1, k, v)?       ...
//! cache.commit_step(&mut step, ids)?           lengths move on; a step that is dropped leaves no trace
//! ```
//!
//! Of several groups, each plans the step before the first one opens it: refused before that, nothing has changed.
//!
//! ```text
//! plan, each group -> tables looked at -> open, each group -> tables written
//! ```
//!
//! Beginning costs O(blocks), a layer O(bytes of its tokens), the end O(runs). `run.rs` has the same for another thread.

use std::sync::Weak;

use kvtide_core::paged::{StepTableRows, StepTables};

use super::cache::PagedKvCache;
use super::layer_pages::{LayerPages, Rules, check_own};
use crate::attention::{AttendOptions, Attended};
use crate::base::error::{Error, Result};
use crate::base::life::RunPin;
use crate::paged::{GroupStep, PageRows, PlannedWrite, StepTokens, check_ids};
use crate::tensor::source::Source;

/// An open step of a [`PagedKvCache`]; dropped before it was committed, it is undone at the cache's next call.
#[derive(Debug)]
#[must_use = "a step that is dropped is undone"]
pub struct PagedStep {
    /// Of each group.
    pub(super) groups: Vec<GroupStep>,
    cache: u64,
    /// The last one that was made of it.
    pub(super) run: Weak<RunPin>,
}

impl PagedStep {
    /// The sequences that get tokens.
    #[must_use]
    pub fn sequences(&self) -> &[u64] {
        self.groups[0].sequences()
    }

    /// Tokens of all of them, while it is open.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.groups[0].tokens()
    }

    /// Whether it was neither committed nor undone.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.groups[0].is_open()
    }

    /// Refuses a step whose layers are computed elsewhere.
    fn check_home(&self) -> Result<()> {
        if self.run.strong_count() > 0 { Err(Error::Busy) } else { Ok(()) }
    }
}

impl PagedKvCache {
    /// Takes slots of all layers for the tokens of a step. Until it ends, its sequences refuse other changes.
    pub fn begin_step(&mut self, tokens: StepTokens<'_>) -> Result<PagedStep> {
        let planned = self.ask(|group| group.plan_step(tokens))?;
        self.open_step(planned, tokens)
    }

    /// The same with its tables in arrays of the caller's, for each group: they are looked at before anything is taken, so that
    /// where they are refused, nothing was evicted and nothing copied. `rows` are kept between steps: what has not changed since is
    /// not written again.
    pub fn prepare_step(
        &mut self,
        tokens: StepTokens<'_>,
        rows: &mut [StepTableRows],
        tables: Vec<StepTables<'_>>,
    ) -> Result<PagedStep> {
        self.check_tables(rows, &tables)?;
        let planned = self.ask(|group| group.plan_step(tokens))?;
        for ((group, planned), (rows, tables)) in self.groups.iter().zip(&planned).zip(rows.iter_mut().zip(&tables)) {
            group.prepare_tables(planned, rows, tables)?;
        }
        let step = self.open_step(planned, tokens)?;
        self.fill_tables(&step, rows, tables)?;
        Ok(step)
    }

    /// Writes down where the step's tokens go and what its sequences hold, as [`PagedKvCache::prepare_step`] does.
    pub fn fill_tables(&self, step: &PagedStep, rows: &mut [StepTableRows], tables: Vec<StepTables<'_>>) -> Result<()> {
        self.check_tables(rows, &tables)?;
        self.check_of(step)?;
        let arrays = rows.iter_mut().zip(tables);
        for ((group, step), (rows, tables)) in self.groups.iter().zip(&step.groups).zip(arrays) {
            group.fill_tables(step, rows, tables)?;
        }
        Ok(())
    }

    /// The position of each token of an open step: in a draft tree where its path leads to.
    pub fn step_positions(&self, step: &PagedStep) -> Result<Vec<i32>> {
        self.check_of(step)?;
        self.first().step_positions(&step.groups[0])
    }

    /// Writes the tokens of a layer with keys and values of its own: K and V `[kvHeads, tokens, headDim]`, or with a 1 before it, the
    /// tokens of all sequences one behind the other. A layer may be written again while the step is open.
    pub fn write_layer<'a>(
        &mut self,
        step: &mut PagedStep,
        layer: u32,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
    ) -> Result<()> {
        self.check_step(step)?;
        let place = self.place(layer)?;
        check_own(&self.model, layer)?;
        self.check_pages()?;
        let group = place.group as usize;
        self.groups[group].write_layer(&mut step.groups[group], place.index, [k.into(), v.into()])
    }

    /// Attends from a layer's queries to what it holds, the step's tokens included: `[tokens, heads, headDim]`, of one
    /// sequence also `[1, heads, tokens, headDim]`. Scale, soft cap, window and sinks are the model's, unless `options` say
    /// otherwise.
    pub fn attend_layer<'a>(
        &mut self,
        step: &PagedStep,
        layer: u32,
        q: impl Into<Source<'a>>,
        options: &AttendOptions<'_>,
    ) -> Result<Attended> {
        self.step_layer(step, layer)?.attend(q, options)
    }

    /// What a layer's queries see, the step's tokens included, once the layer is written; apart from the cache once it is pinned.
    pub fn step_layer(&mut self, step: &PagedStep, layer: u32) -> Result<LayerPages<'_>> {
        self.check_step(step)?;
        let place = self.place(layer)?;
        let rules = Rules::of(&self.model, layer);
        step.check_home()?;
        let of = &step.groups[place.group as usize];
        let offsets = of.offsets()?;
        self.align()?;
        let pages = self.groups[place.group as usize].step_pages(of, place.index)?;
        Ok(LayerPages { pages, offsets: Some(offsets), rules })
    }

    /// The pages of a layer that the step's queries attend to, its own tokens included: once it has written them.
    pub fn step_pages(&mut self, step: &PagedStep, layer: u32) -> Result<PageRows<'_>> {
        self.step_layer(step, layer).map(|of| of.pages)
    }

    /// Ends a step: its tokens count in all layers. `tokens` are their ids, where they are known: full blocks of known tokens can
    /// be found by others from then on. Refused with `STEP_INCOMPLETE` while a layer is not written; then the step stays open.
    pub fn commit_step(&mut self, step: &mut PagedStep, tokens: Option<&[u32]>) -> Result<()> {
        self.check_all(|_| Ok(()))?;
        self.check_commit(step, tokens)?;
        self.groups.iter_mut().zip(&mut step.groups).try_for_each(|(group, of)| group.commit_step(of, tokens))
    }

    /// Makes a step one of the first `tokens` tokens of each sequence, written in all layers.
    #[cfg(feature = "captured-steps")]
    pub(crate) fn shorten_step(&mut self, step: &mut PagedStep, tokens: u32) -> Result<()> {
        let mut groups = self.groups.iter_mut().zip(&mut step.groups);
        groups.try_for_each(|(group, of)| group.shorten_step(of, tokens))
    }

    /// Ends a step: its sequences are as if it had never been. Blocks that were evicted for it stay so, and where none was left to
    /// copy the block that it went on in, prompts no longer find what lay there.
    pub fn undo_step(&mut self, step: &mut PagedStep) -> Result<()> {
        self.check_of(step)?;
        self.check_change()?;
        self.groups.iter_mut().zip(&mut step.groups).try_for_each(|(group, of)| group.undo_step(of))
    }

    /// Ends a step as [`PagedKvCache::undo_step`] does, if it is open. Never refused, not even while someone reads in the background.
    pub fn release_step(&mut self, step: PagedStep) {
        drop(step);
        // Where there is no memory for it now, it is taken back at the next call.
        let _ = self.collect();
    }

    /// Refuses a step of another cache, one that has ended, and one of whose sequences was dropped.
    pub fn check_step(&self, step: &PagedStep) -> Result<()> {
        self.check_of(step)?;
        self.groups.iter().zip(&step.groups).try_for_each(|(group, of)| group.check_step(of))
    }

    /// Refuses a layer that a step has not written: what its queries would see of it is not there yet.
    pub fn check_written(&self, step: &PagedStep, layer: u32) -> Result<()> {
        self.check_step(step)?;
        let place = self.place(layer)?;
        self.group(place).check_written(&step.groups[place.group as usize], place.index)
    }

    /// Refuses a step of another cache.
    pub(crate) fn check_of(&self, step: &PagedStep) -> Result<()> {
        if step.cache == self.id {
            return Ok(());
        }
        Err(Error::argument("step", "of another cache", "a step of this cache"))
    }

    fn check_tables(&self, rows: &[StepTableRows], tables: &[StepTables<'_>]) -> Result<()> {
        let groups = self.groups.len();
        for (argument, length) in [("rows.length", rows.len()), ("tables.length", tables.len())] {
            if length != groups {
                return Err(Error::argument(argument, length, format!("{groups}, one for each group")));
            }
        }
        Ok(())
    }

    /// Refuses what ending a step would refuse.
    fn check_commit(&self, step: &PagedStep, tokens: Option<&[u32]>) -> Result<()> {
        self.check_step(step)?;
        check_ids(tokens, step.tokens())?;
        step.check_home()?;
        if step.tokens() > 0 && step.groups.iter().any(|of| !of.has_written_all()) {
            let is_missing = |layer: &u32| {
                let place = self.place(*layer).expect("a layer of the cache");
                !step.groups[place.group as usize].has_written(place.index)
            };
            let layers = self.own_layers().filter(is_missing).map(|layer| layer as usize).collect();
            return Err(Error::StepIncomplete { layers });
        }
        self.groups.iter().zip(&step.groups).try_for_each(|(group, of)| group.check_seals(of))
    }

    fn open_step(&mut self, planned: Vec<PlannedWrite>, tokens: StepTokens<'_>) -> Result<PagedStep> {
        let opened = self.groups.iter_mut().zip(planned).map(|(group, planned)| group.open_step(planned, tokens));
        Ok(PagedStep { groups: opened.collect::<Result<_>>()?, cache: self.id, run: Weak::new() })
    }
}
