//! A group's part in a step run, a step that another thread computes: writes and reads its layers without access to the
//! group.
//!
//! ```text
//! let mut run = group.run_step(&step)?     lists the pages; their unwritten slots become zeros
//! run.write_layer(0, [k, v])?              on any thread
//! run.layer(0)?                            the pages of the layer
//! group.end_run(&mut step, run)?           its layers count as written
//! ```
//!
//! Its pages stay those of the step for as long as it lives: its sequences do not change, and only it writes to pages
//! (`group.rs` lists the calls that fail meanwhile). If one of its sequences is dropped, or the step is rolled back, it
//! writes to slots that are zeroed before they are read again.
//!
//! The start costs O(pages), plus O(pages * layers) of those that are not written in all layers; a layer costs O(bytes of
//! its tokens).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kvtide_core::paged::{Page, PageRead, WritePlan};

use super::group::PageGroup;
use super::page_rows::{PageRows, StagedAt};
use super::slabs::Slabs;
use super::step::{GroupStep, not_written};
use crate::base::error::{Error, Result};
use crate::base::life::{ElsewhereWrite, Life};
use crate::base::memory::Budget;
use crate::tensor::source::Source;

/// The layers of a group in a step that another thread computes.
#[derive(Debug)]
pub(crate) struct GroupRun {
    pub(super) life: Arc<Life>,
    pub(super) slabs: Slabs,
    pub(super) budget: Arc<Budget>,
    pub(super) plan: Arc<WritePlan>,
    pub(super) written: Box<[bool]>,
    pub(super) computed: Box<[bool]>,
    /// In a group of states, for each sequence with tokens and each state, true if the run has computed it; empty before
    /// the first one.
    pub(super) states_written: Vec<bool>,
    /// In a group of states, the slot that each sequence had before the step.
    pub(super) slots: Vec<Option<u32>>,
    /// The pages of any layer, with none of them staged.
    pages: PageRows<'static>,
    /// The staged pages, ordered by layer and index.
    staged: Vec<StagedAt>,
    /// The number of tokens in each page before the step.
    before: Vec<u32>,
}

impl PageGroup {
    /// Makes the part of a step that writes its layers and attends to them without access to the group.
    pub fn run_step(&mut self, step: &GroupStep) -> Result<GroupRun> {
        self.change_pages()?;
        self.check_step(step)?;
        let plan = step.plan()?.clone();
        let slots = self.slots_before(step)?;
        let mut pages = self.no_pages(0);
        // The tokens of each page before the step.
        let mut before = Vec::new();
        for &sequence in step.sequences.iter().filter(|_| !self.keeps_states()) {
            let (gap, tree) = (self.planner.gap(sequence)?, self.planner.tree(sequence)?);
            let mut left = self.planner.sequence_length(sequence) - gap.len() as u32;
            let listed = self.planner.pages(sequence, 0)?.map(|page| {
                let tokens = left.min(page.tokens);
                left -= tokens;
                before.push(PageRead { tokens, ..page });
                PageRead { staged: None, is_sealed: false, ..page }
            });
            pages.add(listed, gap, tree)?;
        }
        self.zero_before(&before)?;
        let staged = self.staged(&before, &plan);
        self.planner.lend_step(&plan)?;
        self.lent = Some(plan.clone());
        let before = before.iter().map(|page| page.tokens).collect();
        let (life, slabs) = (self.life.clone(), self.slabs.clone());
        let (written, computed) = (step.written.clone(), step.computed.clone());
        Ok(GroupRun {
            life,
            slabs,
            budget: self.budget.clone(),
            plan,
            written,
            computed,
            states_written: Vec::new(),
            slots,
            pages,
            staged,
            before,
        })
    }

    /// Marks the layers that a run has written.
    pub fn end_run(&mut self, step: &mut GroupStep, run: &GroupRun) -> Result<()> {
        self.check()?;
        if self.keeps_states() {
            // They are marked at the commit.
            step.written.copy_from_slice(&run.written);
            step.computed.copy_from_slice(&run.computed);
            return Ok(());
        }
        let plan = step.plan()?.clone();
        self.planner.reserve_marks(&plan)?;
        for layer in (0..self.planner.num_layers()).filter(|&layer| run.written[layer as usize]) {
            if !step.written[layer as usize] {
                self.planner.mark_layer(&plan, layer)?;
                step.written[layer as usize] = true;
            }
        }
        Ok(())
    }

    /// The state that a run shares with its group.
    pub fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// Zeroes unwritten slots among these tokens, in all layers.
    fn zero_before(&mut self, pages: &[PageRead]) -> Result<()> {
        let exposed = |page: &&PageRead| page.tokens > 0 && self.planner.exposes_block(page.block);
        let exposed: Vec<PageRead> = pages.iter().filter(exposed).copied().collect();
        for layer in (0..self.planner.num_layers()).filter(|_| !exposed.is_empty()) {
            let of_layer = |page: &PageRead| PageRead { staged: self.planner.staged(page.block, layer), ..*page };
            let of_layer: Vec<_> = exposed.iter().map(of_layer).collect();
            self.zero_unwritten(&of_layer, layer)?;
        }
        Ok(())
    }

    /// The pages that are staged in some layer, in their state after the step has written them.
    fn staged(&self, pages: &[PageRead], plan: &WritePlan) -> Vec<StagedAt> {
        let written: HashMap<Page, bool> = plan.pages().iter().map(|write| (write.page, write.completes)).collect();
        let blocks: HashSet<u32> = self.planner.staged_pages().map(|page| page.block).collect();
        let places = pages.iter().enumerate().filter(|(_, page)| !blocks.is_empty() && blocks.contains(&page.block));
        let mut staged: Vec<_> = places
            .flat_map(|(place, page)| {
                let layers = 0..self.planner.num_layers();
                let written = &written;
                layers.filter_map(move |layer| {
                    let staged = self.planner.staged(page.block, layer)?;
                    let completes = written.get(&Page { block: page.block, layer }).copied();
                    let is_sealed = completes.unwrap_or_else(|| self.planner.is_sealed_copy(page.block, layer));
                    Some(StagedAt { layer, place, staged, is_sealed })
                })
            })
            .collect();
        staged.sort_unstable();
        staged
    }
}

impl GroupRun {
    /// The number of tokens of all sequences.
    pub fn tokens(&self) -> u32 {
        self.plan.tokens()
    }

    /// The index of the first token of each sequence, followed by the number of tokens.
    pub fn offsets(&self) -> Vec<i32> {
        self.plan.offsets().map(|offset| offset as i32).collect()
    }

    /// Like [`PageGroup::write_layer`].
    pub fn write_layer(&mut self, layer: u32, sources: [Source<'_>; 2]) -> Result<()> {
        self.check()?;
        let (rows, scratch) = self.slabs.step_rows(&self.plan, sources)?;
        // If the group's own call would poison the group on failure, this one does so too.
        let is_hazard = self.slabs.shape.pages.is_low_bit() || self.written[layer as usize];
        let write = is_hazard.then(|| self.life.begin_write());
        self.slabs.write(&self.plan, layer..layer + 1, &rows, &scratch)?;
        write.into_iter().for_each(ElsewhereWrite::end);
        self.written[layer as usize] = true;
        Ok(())
    }

    /// The pages of a layer, including the step's tokens; fails until they are written.
    pub fn layer(&self, layer: u32) -> Result<PageRows<'static>> {
        self.check()?;
        if !self.written[layer as usize] {
            return Err(not_written());
        }
        Ok(self.pages_in(layer))
    }

    fn pages_in(&self, layer: u32) -> PageRows<'static> {
        let first = self.staged.partition_point(|staged| staged.layer < layer);
        self.pages.in_layer(layer, self.staged[first..].iter().take_while(|staged| staged.layer == layer))
    }

    /// The pages of a sequence in a layer, with the tokens that they had before the step.
    pub(super) fn pages_before(&self, layer: u32, sequence: usize) -> Result<Vec<PageRead>> {
        let pages = self.pages_in(layer);
        let (listed, of_sequence) = pages.listed(sequence).ok_or_else(|| {
            Error::argument(
                "sequence",
                sequence,
                format!("below {}, the number of sequences of the step", pages.count()),
            )
        })?;
        let before = listed.iter().zip(&self.before[of_sequence]).map(|(page, &tokens)| PageRead { tokens, ..*page });
        Ok(before.filter(|page| page.tokens > 0).collect())
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.life.is_torn() { Err(Error::Poisoned) } else { Ok(()) }
    }
}
