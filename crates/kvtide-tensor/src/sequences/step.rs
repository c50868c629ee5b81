//! Steps: some tokens of all layers, written and attended to layer by layer, and counted once for all layers.
//!
//! ```text
//! let mut step = cache.begin_step(..)?         slots of all layers are taken
//! cache.write_layer(&mut step, 0, k, v)?       the queries of layer 0 attend to cache.step_layer(&step, 0)?
//! cache.write_layer(&mut step, 1, k, v)?       ...
//! cache.commit_step(&mut step, ids)?           lengths advance; a step that is dropped leaves no trace
//! ```
//!
//! If there are several groups, each plans the step before the first one opens it: a call that fails before that has changed
//! nothing.
//!
//! ```text
//! plan, each group -> check tables -> open, each group -> fill tables
//! ```
//!
//! The start costs O(blocks), a layer O(bytes of its tokens), the end O(runs). `run.rs` computes a step on another thread.

use std::sync::Weak;

use kvtide_core::model::LayerKind;
use kvtide_core::paged::{StepTableRows, StepTables};

use super::cache::PagedKvCache;
use super::layer_pages::{LayerPages, Rules};
use super::layer_place::check_own;
use crate::attention::{AttendOptions, Attended};
use crate::base::error::{Error, Result};
use crate::base::life::RunPin;
use crate::paged::{GroupStep, PageRows, PlannedWrite, StepTokens, check_ids};
use crate::tensor::source::Source;

/// An open step of a [`PagedKvCache`]. If it is dropped before it was committed, the cache's next call rolls it back.
#[derive(Debug)]
#[must_use = "a step that is dropped is rolled back"]
pub struct PagedStep {
    /// The part of each group.
    pub(super) groups: Vec<GroupStep>,
    cache: u64,
    /// Its last run.
    pub(super) run: Weak<RunPin>,
}

impl PagedStep {
    /// The sequences that get tokens.
    #[must_use]
    pub fn sequences(&self) -> &[u64] {
        self.groups[0].sequences()
    }

    /// The number of their tokens, while the step is open.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.groups[0].tokens()
    }

    /// True if it was neither committed nor rolled back.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.groups[0].is_open()
    }

    /// Fails while another thread computes its layers.
    fn check_home(&self) -> Result<()> {
        if self.run.strong_count() > 0 { Err(Error::Busy) } else { Ok(()) }
    }
}

impl PagedKvCache {
    /// Takes slots in all layers for the tokens of a step. Until it ends, its sequences refuse other changes.
    pub fn begin_step(&mut self, tokens: StepTokens<'_>) -> Result<PagedStep> {
        let planned = self.ask(|group| group.plan_step(tokens))?;
        self.open_step(planned, tokens)
    }

    /// Like [`begin_step`](Self::begin_step), with the step's tables in arrays of the caller, for each group with keys and
    /// values. The tables are checked before anything is taken: if they do not fit, nothing was evicted and nothing copied. `rows` are kept between
    /// steps: unchanged rows are not written again.
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

    /// Fills the tables with the slots of the step's tokens and the blocks of its sequences, like
    /// [`PagedKvCache::prepare_step`].
    pub fn fill_tables(&self, step: &PagedStep, rows: &mut [StepTableRows], tables: Vec<StepTables<'_>>) -> Result<()> {
        self.check_tables(rows, &tables)?;
        self.check_of(step)?;
        let arrays = rows.iter_mut().zip(tables);
        for ((group, step), (rows, tables)) in self.groups.iter().zip(&step.groups).zip(arrays) {
            group.fill_tables(step, rows, tables)?;
        }
        Ok(())
    }

    /// The position of each token of an open step; in a draft tree, the position at the end of its path.
    pub fn step_positions(&self, step: &PagedStep) -> Result<Vec<i32>> {
        self.check_of(step)?;
        self.first().step_positions(&step.groups[0])
    }

    /// Writes the tokens of a layer that stores its own keys and values: K and V `[kvHeads, tokens, headDim]`, or with a 1
    /// in front, the tokens of all sequences one after the other. A layer may be written again while the step is open.
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

    /// Attends from a layer's queries to its tokens, including those of the step: `[tokens, heads, headDim]`, for a single
    /// sequence also `[1, heads, tokens, headDim]`. Scale, softcap, window and sinks are the model's, unless `options` say
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

    /// A layer to attend to, including the step's tokens, once it is written. Pin it to use it without a borrow of the
    /// cache.
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

    /// The pages of a layer that the step's queries attend to, including its own tokens; fails until they are written.
    pub fn step_pages(&mut self, step: &PagedStep, layer: u32) -> Result<PageRows<'_>> {
        self.step_layer(step, layer).map(|of| of.pages)
    }

    /// Commits a step: its tokens count in all layers. `tokens` are their ids, if known: prompts can hit full blocks of them
    /// from then on. Fails with `STEP_INCOMPLETE` while a layer, or the state of a sequence with tokens, is not written; the
    /// step then stays open.
    pub fn commit_step(&mut self, step: &mut PagedStep, tokens: Option<&[u32]>) -> Result<()> {
        self.check_all(|_| Ok(()))?;
        self.check_commit(step, tokens)?;
        self.groups.iter_mut().zip(&mut step.groups).try_for_each(|(group, of)| group.commit_step(of, tokens))
    }

    /// Rolls a step back: its sequences are as if it had never been. Blocks that were evicted for it stay evicted. If there
    /// was no free block to copy the block in which it continued, prompts can no longer hit the old content of that block.
    pub fn undo_step(&mut self, step: &mut PagedStep) -> Result<()> {
        self.check_of(step)?;
        self.check_change()?;
        self.groups.iter_mut().zip(&mut step.groups).try_for_each(|(group, of)| group.undo_step(of))
    }

    /// Rolls a step back like [`PagedKvCache::undo_step`], if it is open. Always succeeds, even while a background call
    /// reads the cache.
    pub fn release_step(&mut self, step: PagedStep) {
        drop(step);
        // If there is no memory for it now, the next call does it.
        let _ = self.collect();
    }

    /// Fails for a step of another cache, one that has ended, and one with a dropped sequence.
    pub fn check_step(&self, step: &PagedStep) -> Result<()> {
        self.check_of(step)?;
        self.groups.iter().zip(&step.groups).try_for_each(|(group, of)| group.check_step(of))
    }

    /// Fails for a layer that the step has not written, because its queries would attend to missing tokens.
    pub fn check_written(&self, step: &PagedStep, layer: u32) -> Result<()> {
        self.check_step(step)?;
        let place = self.place(layer)?;
        self.group(place).check_written(&step.groups[place.group as usize], place.index)
    }

    /// Fails for a step of another cache.
    fn check_of(&self, step: &PagedStep) -> Result<()> {
        if step.cache == self.id {
            return Ok(());
        }
        Err(Error::argument("step", "of another cache", "a step of this cache"))
    }

    fn check_tables(&self, rows: &[StepTableRows], tables: &[StepTables<'_>]) -> Result<()> {
        let groups = self.groups_of_tokens().count();
        for (argument, length) in [("rows.length", rows.len()), ("tables.length", tables.len())] {
            if length != groups {
                return Err(Error::argument(
                    argument,
                    length,
                    format!("{groups}, one for each group with keys and values"),
                ));
            }
        }
        Ok(())
    }

    /// Checks everything that committing a step checks.
    fn check_commit(&self, step: &PagedStep, tokens: Option<&[u32]>) -> Result<()> {
        self.check_step(step)?;
        check_ids(tokens, step.tokens())?;
        step.check_home()?;
        if step.tokens() > 0 && step.groups.iter().any(|of| !of.has_written_all()) {
            let is_missing = |layer: &u32| {
                let place = self.place(*layer).expect("a layer of the cache");
                !step.groups[place.group as usize].has_written(place.index)
            };
            let mut layers: Vec<usize> = self.own_layers().filter(is_missing).map(|layer| layer as usize).collect();
            let groups =
                self.model.groups().iter().zip(&step.groups).filter(|(group, _)| group.kind == LayerKind::State);
            let missing = groups.filter(|(_, of)| !of.has_written_all()).flat_map(|(group, _)| &group.layers);
            layers.extend(missing.map(|&layer| layer as usize));
            layers.sort_unstable();
            layers.dedup();
            return Err(Error::StepIncomplete { layers });
        }
        Ok(())
    }

    fn open_step(&mut self, planned: Vec<PlannedWrite>, tokens: StepTokens<'_>) -> Result<PagedStep> {
        let opened = self.groups.iter_mut().zip(planned).map(|(group, planned)| group.open_step(planned, tokens));
        Ok(PagedStep { groups: opened.collect::<Result<_>>()?, cache: self.id, run: Weak::new() })
    }
}
