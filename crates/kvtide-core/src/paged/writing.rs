//! Writes: which slots tokens go to, what that takes, and what it leaves behind.
//!
//! ```text
//! plan = planner.plan_append(sequences, offsets)?    refused: nothing has changed
//! planner.reserve(&plan)?                            memory of the bookkeeping: as before
//! copies of blocks that others see as well, first    see copying.rs
//! executor moves the bytes
//! planner.commit(&plan, tokens)?                     blocks taken, slots marked, lengths moved on, blocks found by their keys
//! ```
//!
//! Low-bit pages: rows go to a staging page until all slots of the page are written; a run that covers a page is quantised
//! as it comes, and a run into a page that was quantised takes the page back to staging for the length of the call. What a
//! draft may take back is staged whole.
//!
//! A plan costs O(blocks and runs), for low-bit pages times the layers for at most two runs a sequence; a commit O(runs *
//! layers).

use std::ops::Range;

use super::chunks::Table;
use super::copying::{CopyPlan, Target};
use super::sequence::Content;
use super::sequences::PagedPlanner;
use super::staging::Page;
use super::targets::{Append, reserve};
use super::write_plan::{Before, PageWrite, Share, SlotRun, WritePlan};
use crate::error::{Error, Result};

impl PagedPlanner {
    /// Where tokens of one layer would be written, and what that takes; changes nothing. Slots may be written again.
    pub fn plan_tokens(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<WritePlan> {
        let target = self.tokens_target(sequence, layer, position, tokens)?;
        let mut shares = Vec::new();
        reserve(&mut shares, 1)?;
        shares.push(self.share(self.slot(sequence)?, &target));
        self.plan(shares, layer..layer + 1)
    }

    /// Where tokens of all layers would be appended to sequences, and what that takes; changes nothing.
    pub fn plan_append(&self, append: &Append<'_>) -> Result<WritePlan> {
        let mut shares = Vec::new();
        reserve(&mut shares, append.sequences.len())?;
        self.each_target(append, |slot, target| shares.push(self.share(slot, &target)))?;
        let mut plan = self.plan(shares, 0..self.store.num_layers)?;
        if let Some(parents) = append.parents {
            let mut copy = Vec::new();
            reserve(&mut copy, parents.len())?;
            copy.extend_from_slice(parents);
            plan.parents = Some(copy);
        }
        Ok(plan)
    }

    fn plan(&self, shares: Vec<Share>, layers: Range<u32>) -> Result<WritePlan> {
        let mut plan = WritePlan {
            layers,
            tokens: 0,
            new_blocks: 0,
            shares: Vec::new(),
            runs: Vec::new(),
            pages: Vec::new(),
            new_staged: 0,
            staging_pages: 0,
            parents: None,
            revision: self.revision,
        };
        let needed = shares.iter().map(|share| u64::from(share.new_blocks)).sum();
        self.check_available(needed)?;
        plan.new_blocks = needed as u32;
        let blocks = |share: &Share| share.tokens.div_ceil(self.store.block_size) as usize + 1;
        reserve(&mut plan.runs, shares.iter().map(blocks).sum())?;
        plan.shares = shares;
        self.fill(&mut plan)?;
        Ok(plan)
    }

    /// Writes down where the tokens of a plan's shares go. Once done, it can be done again without memory.
    pub(super) fn fill(&self, plan: &mut WritePlan) -> Result<()> {
        let mut upcoming = self.store.blocks.upcoming().map(|next| next.block);
        let mut shares = std::mem::take(&mut plan.shares);
        plan.tokens = 0;
        plan.runs.clear();
        for share in &mut shares {
            self.add_runs(plan, share, &mut upcoming);
            share.runs_end = plan.runs.len() as u32;
            plan.tokens += share.tokens;
        }
        plan.shares = shares;
        if self.low_bit { self.add_pages(plan) } else { Ok(()) }
    }

    /// Takes the memory that the commit will need for its bookkeeping. A plan that would no longer come out the same, because
    /// the cache has changed since, is refused.
    pub fn reserve(&mut self, plan: &WritePlan) -> Result<()> {
        self.check_revision(plan.revision)?;
        self.reserve_drafts(plan)?;
        self.take_room(plan.room())
    }

    /// The same for a plan and the copies that it needs first, of which it knows nothing yet; answers the staging pages that
    /// there must be for both. Once it was granted, [`PagedPlanner::commit_copies_before`] and what follows it are not refused.
    pub fn reserve_after(&mut self, copies: &CopyPlan, plan: &WritePlan) -> Result<u32> {
        self.check_revision(plan.revision)?;
        self.check_revision(copies.revision())?;
        self.reserve_drafts(plan)?;
        let room = copies.room() + plan.room() + self.bare_room(copies);
        self.take_room(room)?;
        Ok(self.staging_pages_of(room))
    }

    fn reserve_drafts(&mut self, plan: &WritePlan) -> Result<()> {
        for share in plan.shares.iter().filter(|share| share.drafted) {
            let of = self.at_mut(share.slot);
            of.drafts.reserve(share.tokens)?;
            if plan.parents.is_some() {
                of.step_parents.clear();
                reserve(&mut of.step_parents, share.tokens as usize)?;
            }
        }
        Ok(())
    }

    /// Carries out a plan in the bookkeeping: all of it, or nothing. `tokens` are the ids of the plan's tokens, where they are
    /// known. It is refused as [`PagedPlanner::reserve`] refuses it, and never after that.
    pub fn commit(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
        check_tokens(plan, tokens)?;
        self.reserve(plan)?;
        self.occupy(plan);
        self.mark(plan, plan.layers());
        self.advance(plan, tokens);
        self.changed();
        Ok(())
    }

    /// Takes a plan's blocks and staging pages, and makes what it writes over the writers' alone.
    pub(super) fn occupy(&mut self, plan: &WritePlan) {
        for (share, runs) in plan.shares() {
            for run in runs {
                // Where there was no block to copy it to: nobody else holds it, and nobody finds it any more.
                self.store.index.remove(run.block);
            }
            let Content { table, length, .. } = &self.at(share.slot).content;
            let (place, kept) = (length / self.store.block_size, length % self.store.block_size);
            if share.end > *length && kept > 0 {
                let appended = runs.first().filter(|_| share.position == *length);
                if let Some(block) = appended.map(|run| run.block).or_else(|| self.chunks.get(table, place)) {
                    self.forget_tail(block, kept);
                }
            }
            self.add_blocks(share.slot, share.new_blocks);
        }
        for write in plan.pages.iter().filter(|write| write.before != Before::Rows) {
            let staged = self.store.staging.take(write.page);
            assert_eq!(staged, write.staged, "staging pages are handed out as announced");
        }
    }

    /// Forgets what the last block of a sequence holds behind its tokens: it was cut off while others held it too.
    fn forget_tail(&mut self, block: u32, kept: u32) {
        self.store.index.remove(block);
        self.store.unmark(block, kept);
    }

    /// Marks the slots of a plan in some layers.
    pub(super) fn mark(&mut self, plan: &WritePlan, layers: Range<u32>) {
        for run in &plan.runs {
            self.store.marks.set_layers(run.block, layers.clone(), run.slot..run.slot + run.len);
            if run.len == self.store.block_size && !run.staged && !self.store.staging.is_empty() {
                for layer in layers.clone() {
                    self.store.staging.give_back(Page { block: run.block, layer });
                }
            }
        }
    }

    /// Moves lengths on, and gives up the staging pages of what is quantised.
    pub(super) fn advance(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) {
        for write in plan.pages.iter().filter(|write| write.fills) {
            self.store.staging.give_back(write.page);
        }
        let mut done = 0;
        for (share, runs) in plan.shares() {
            if let Some(ids) = tokens {
                for run in runs {
                    let ids = &ids[run.token as usize..(run.token + run.len) as usize];
                    self.store.index.set_tokens(run.block, run.slot, ids);
                }
            }
            if share.tokens > 0 {
                self.cut_chain(share.slot, share.position);
            }
            let of = self.at_mut(share.slot);
            if tokens.is_some() && of.content.chain.known == share.position {
                of.content.chain.known += share.tokens;
            }
            of.content.length = of.content.length.max(share.end);
            let parents = plan.parents.as_ref().map(|all| &all[done as usize..(done + share.tokens) as usize]);
            of.drafts.append(share.tokens, parents);
            done += share.tokens;
            self.settle(share.slot);
        }
    }

    /// What one sequence gets, without its runs.
    fn share(&self, slot: u32, target: &Target) -> Share {
        let &Target { sequence, position, tokens } = target;
        let of = self.at(slot);
        let end = if tokens == 0 { 0 } else { position + tokens };
        let new_blocks = end.div_ceil(self.store.block_size).saturating_sub(of.content.table.len());
        let drafted = of.drafts.depth() > 0;
        Share { sequence, slot, position, tokens, new_blocks, end, drafted, runs_end: 0 }
    }

    /// Adds the runs of one sequence; `upcoming` are the blocks that it would get.
    fn add_runs(&self, plan: &mut WritePlan, share: &Share, upcoming: &mut impl Iterator<Item = u32>) {
        if share.tokens == 0 {
            return;
        }
        let block_size = self.store.block_size;
        let held: &Table = &self.at(share.slot).content.table;
        let (first, end) = (share.position / block_size, share.end.div_ceil(block_size));
        if end == first + 1
            && let Some(block) = self.chunks.get(held, first)
        {
            // Most often a token or a few, into a block that is there.
            let (slot, len) = (share.position % block_size, share.tokens);
            let staged = self.low_bit && (share.drafted || len < block_size);
            plan.runs.push(SlotRun { block, slot, len, token: plan.tokens, staged });
            return;
        }
        let skipped = first.saturating_sub(held.len()) as usize;
        let new = upcoming.by_ref().take(share.new_blocks as usize).skip(skipped);
        let there = self.chunks.iter(held, first).map(|block| block.expect("a block that was not cleared"));
        let mut done = 0;
        for block in there.chain(new).take((end - first) as usize) {
            let slot = (share.position + done) % block_size;
            let len = (block_size - slot).min(share.tokens - done);
            let staged = self.low_bit && (share.drafted || len < block_size);
            plan.runs.push(SlotRun { block, slot, len, token: plan.tokens + done, staged });
            done += len;
        }
        assert_eq!(done, share.tokens, "each token has a slot");
    }

    /// Adds the low-bit pages that are written in floats.
    fn add_pages(&self, plan: &mut WritePlan) -> Result<()> {
        let store = &self.store;
        let mut upcoming = store.staging.upcoming();
        let mut next = || upcoming.next().expect("an endless number of staging pages");
        let (mut new_staged, mut staging_pages, mut place) = (0, 0, 0);
        let mut pages = std::mem::take(&mut plan.pages);
        pages.clear();
        for (share, runs) in plan.shares() {
            let length = self.at(share.slot).content.length;
            let mut position = share.position;
            for run in runs {
                // Slots that hold tokens of the sequence; what others left behind them does not count.
                let kept = length.saturating_sub(position - run.slot).min(store.block_size);
                position += run.len;
                place += 1;
                for layer in plan.layers.clone().filter(|_| run.staged) {
                    let (block, end) = (run.block, run.slot + run.len);
                    let page = Page { block, layer };
                    let (staged, before) = match store.staging.get(page) {
                        Some(staged) => (staged, Before::Rows),
                        None => {
                            let staged = next();
                            new_staged += 1;
                            staging_pages = staging_pages.max(staged + 1);
                            let sealed = store.marks.has_any(block, layer, 0..kept);
                            let other = if staged < store.staging.used() { Before::Other } else { Before::Zeros };
                            (staged, if sealed { Before::Sealed } else { other })
                        }
                    };
                    let fills = !share.drafted
                        && run.slot <= kept
                        && store.marks.has_all(block, layer, 0..run.slot)
                        && (end == store.block_size
                            || kept == store.block_size && store.marks.has_all(block, layer, end..kept));
                    reserve(&mut pages, 1)?;
                    pages.push(PageWrite { run: place - 1, page, staged, before, fills });
                }
            }
        }
        (plan.pages, plan.new_staged, plan.staging_pages) = (pages, new_staged, staging_pages);
        Ok(())
    }
}

/// Refuses ids that are not one for each token.
pub(super) fn check_tokens(plan: &WritePlan, tokens: Option<&[u32]>) -> Result<()> {
    match tokens {
        Some(tokens) if tokens.len() != plan.tokens as usize => {
            let expected = format!("{}, one for each token", plan.tokens);
            Err(Error::argument("tokens.length", tokens.len(), expected))
        }
        _ => Ok(()),
    }
}
