//! Writes: which slots tokens go to, what that takes, and what it leaves behind.
//!
//! ```text
//! plan = planner.plan_append(sequences, offsets)?     refused: nothing has changed
//! planner.reserve(&plan)?                             memory of the bookkeeping: as before
//! executor moves the bytes
//! planner.commit(&plan)?                              blocks taken, slots marked, lengths moved on
//! ```
//!
//! Low-bit pages: rows go to a staging page until all slots of the page are written; a run that covers a page is quantised
//! as it comes, and a run into a page that was quantised takes the page back to staging for the length of the call.
//!
//! A plan costs O(blocks and runs), for low-bit pages times the layers for at most two runs a sequence; a commit O(runs *
//! layers).

use std::ops::Range;

use super::sequences::PagedPlanner;
use super::staging::Page;
use super::write_plan::{Before, PageWrite, Share, SlotRun, WritePlan};
use crate::count::COUNT_MAX;
use crate::error::{Error, Result};

impl PagedPlanner {
    /// Where tokens of one layer would be written, and what that takes; changes nothing. Slots may be written again.
    pub fn plan_tokens(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<WritePlan> {
        self.check_layer(layer)?;
        if position >= COUNT_MAX {
            return Err(Error::argument("pos", position, format!("below {COUNT_MAX}")));
        }
        let mut plan = self.empty_plan(layer..layer + 1);
        self.check_share(&mut plan, sequence, position, tokens)?;
        self.fill(&mut plan)?;
        Ok(plan)
    }

    /// Where tokens of all layers would be appended to sequences: sequence i gets the tokens `offsets[i]..offsets[i + 1]`,
    /// without offsets one each. Changes nothing.
    pub fn plan_append(&self, sequences: &[u64], offsets: Option<&[u32]>) -> Result<WritePlan> {
        check_offsets(sequences.len(), offsets)?;
        check_once(sequences)?;
        let mut plan = self.empty_plan(0..self.num_layers);
        plan.shares.reserve_exact(sequences.len());
        for (place, &sequence) in sequences.iter().enumerate() {
            let tokens = offsets.map_or(1, |offsets| offsets[place + 1] - offsets[place]);
            self.check_share(&mut plan, sequence, self.sequence(sequence)?.length, tokens)?;
        }
        self.fill(&mut plan)?;
        Ok(plan)
    }

    /// Takes the memory that the commit will need for its bookkeeping. A plan that would no longer come out the same, because
    /// the cache has changed since, is refused.
    pub fn reserve(&mut self, plan: &WritePlan) -> Result<()> {
        if plan.revision != self.revision {
            return Err(Error::argument("plan", "one made before the last change", "a plan made after it"));
        }
        if let Some(highest) = plan.runs.iter().map(|run| run.block).max() {
            self.marks.reserve(highest)?;
            self.dirty.reserve(highest)?;
        }
        for share in &plan.shares {
            if let Some(held) = self.sequences.get_mut(&share.sequence) {
                let count = held.blocks.len() as u64 + u64::from(share.new_blocks);
                let out_of_memory = |_| Error::OutOfMemory { count, what: "blocks" };
                held.blocks.try_reserve(share.new_blocks as usize).map_err(out_of_memory)?;
            }
        }
        self.staging.reserve(plan.new_staged as usize)
    }

    /// Carries out a plan in the bookkeeping: all of it, or nothing. It is refused as [`PagedPlanner::reserve`] refuses it,
    /// and never after that.
    pub fn commit(&mut self, plan: &WritePlan) -> Result<()> {
        self.reserve(plan)?;
        for share in &plan.shares {
            let held = self.sequences.get_mut(&share.sequence).expect("a sequence of a plan that is up to date");
            self.pool.allocate_into(&mut held.blocks, share.new_blocks).expect("blocks that were counted free");
            held.length = held.length.max(share.end);
        }
        for write in plan.pages.iter().filter(|write| write.before != Before::Rows) {
            let staged = self.staging.take(write.page);
            assert_eq!(staged, write.staged, "staging pages are handed out as announced");
        }
        for (run, layer) in plan.runs.iter().flat_map(|run| plan.layers.clone().map(move |layer| (run, layer))) {
            self.marks.set(run.block, layer, run.slot..run.slot + run.len);
            if run.len == self.block_size {
                self.staging.give_back(Page { block: run.block, layer });
            }
        }
        for write in plan.pages.iter().filter(|write| write.fills) {
            self.staging.give_back(write.page);
        }
        self.changed();
        Ok(())
    }

    fn empty_plan(&self, layers: Range<u32>) -> WritePlan {
        WritePlan {
            layers,
            tokens: 0,
            new_blocks: 0,
            shares: Vec::new(),
            runs: Vec::new(),
            pages: Vec::new(),
            new_staged: 0,
            staging_pages: 0,
            revision: self.revision,
        }
    }

    /// Adds what one sequence gets, without its runs.
    fn check_share(&self, plan: &mut WritePlan, sequence: u64, position: u32, tokens: u32) -> Result<()> {
        let held = self.sequence(sequence)?;
        let most = COUNT_MAX - position;
        if tokens > most {
            return Err(Error::argument("tokens", tokens, format!("at most {most} from position {position} on")));
        }
        let end = if tokens == 0 { 0 } else { position + tokens };
        let new_blocks = end.div_ceil(self.block_size).saturating_sub(held.blocks.len() as u32);
        plan.shares.push(Share { sequence, position, tokens, new_blocks, end });
        Ok(())
    }

    /// Adds the runs of all shares, if there are blocks for them.
    fn fill(&self, plan: &mut WritePlan) -> Result<()> {
        let needed: u64 = plan.shares.iter().map(|share| u64::from(share.new_blocks)).sum();
        if needed > self.pool.free_count().into() {
            return Err(self.pool.out_of_blocks(needed));
        }
        plan.new_blocks = needed as u32;
        let mut upcoming = self.pool.upcoming();
        for share in std::mem::take(&mut plan.shares) {
            self.add_runs(plan, &share, &mut upcoming)?;
            plan.tokens += share.tokens;
            plan.shares.push(share);
        }
        if self.is_staged() {
            self.add_pages(plan);
        }
        Ok(())
    }

    /// Adds the runs of one sequence; `upcoming` are the blocks that it would get.
    fn add_runs(&self, plan: &mut WritePlan, share: &Share, upcoming: &mut impl Iterator<Item = u32>) -> Result<()> {
        if share.tokens == 0 {
            return Ok(());
        }
        let held = &self.sequence(share.sequence)?.blocks;
        let (first, end) = (share.position / self.block_size, share.end.div_ceil(self.block_size));
        let skipped = first.saturating_sub(held.len() as u32) as usize;
        let new = upcoming.by_ref().take(share.new_blocks as usize).skip(skipped);
        let blocks = held.iter().skip(first as usize).map(|handle| handle.index()).chain(new);
        let mut done = 0;
        for block in blocks.take((end - first) as usize) {
            let slot = (share.position + done) % self.block_size;
            let len = (self.block_size - slot).min(share.tokens - done);
            plan.runs.push(SlotRun { block, slot, len, token: plan.tokens + done });
            done += len;
        }
        assert_eq!(done, share.tokens, "each token has a slot");
        Ok(())
    }

    /// Adds the low-bit pages that are written in part.
    fn add_pages(&self, plan: &mut WritePlan) {
        let mut upcoming = self.staging.upcoming();
        let mut next = || upcoming.next().expect("an endless number of staging pages");
        for (place, run) in plan.runs.iter().enumerate().filter(|(_, run)| run.len < self.block_size) {
            let (block, slots) = (run.block, run.slot..run.slot + run.len);
            for layer in plan.layers.clone() {
                let page = Page { block, layer };
                let (staged, before) = match self.staging.get(page) {
                    Some(staged) => (staged, Before::Rows),
                    None => {
                        let staged = next();
                        plan.new_staged += 1;
                        plan.staging_pages = plan.staging_pages.max(staged + 1);
                        let sealed = self.marks.has_any(block, layer, 0..self.block_size);
                        let other = if staged < self.staging.used() { Before::Other } else { Before::Zeros };
                        (staged, if sealed { Before::Sealed } else { other })
                    }
                };
                let fills = self.marks.has_all(block, layer, 0..slots.start)
                    && self.marks.has_all(block, layer, slots.end..self.block_size);
                plan.pages.push(PageWrite { run: place as u32, page, staged, before, fills });
            }
        }
    }
}

/// Refuses offsets that do not cut the tokens in one piece for each sequence.
fn check_offsets(sequences: usize, offsets: Option<&[u32]>) -> Result<()> {
    let Some(offsets) = offsets else { return Ok(()) };
    if offsets.len() != sequences + 1 {
        let expected = format!("{}, one more than sequences", sequences + 1);
        return Err(Error::argument("offsets.length", offsets.len(), expected));
    }
    if offsets[0] != 0 {
        return Err(Error::argument("offsets", offsets[0], "0 at place 0"));
    }
    match offsets.windows(2).enumerate().find(|(_, pair)| pair[0] > pair[1]) {
        Some((place, pair)) => {
            Err(Error::argument("offsets", pair[1], format!("at least {} at place {}", pair[0], place + 1)))
        }
        None => Ok(()),
    }
}

/// Refuses a sequence that is named twice.
fn check_once(sequences: &[u64]) -> Result<()> {
    let mut sorted = sequences.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::argument("sequences", pair[0], "each sequence once")),
        None => Ok(()),
    }
}
