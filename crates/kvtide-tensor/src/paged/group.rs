//! A group of layers with the same sizes: K and V of many sequences, in one slab of blocks.
//!
//! Its fields are visible to this folder only. Other code can read its planner; every change is a call of the group. Each
//! call, reading or changing, first reclaims handles that were dropped since the last one.
//!
//! Calls that fail with `BUSY`:
//!
//! | calls | while a background call reads | while another thread computes a step |
//! | --- | --- | --- |
//! | copies of tokens: `gather`, `read_kv` | | |
//! | pages in place | if slots have to be zeroed first | if slots have to be zeroed first, as for those that the step writes |
//! | rollbacks and drops | | |
//! | [`PageGroup::change`]: sequences, prefixes, snapshots, transactions, capacity, priorities | fails | |
//! | the end of a transaction | fails | if rows are copied, moved or quantised |
//! | the end of another step | fails | |
//! | [`PageGroup::change_pages`]: appends, writes, new steps, layers and states of a step | fails | fails |
//!
//! So while another thread computes a step, only that step writes to pages. The blocks of a dropped sequence may go to
//! another sequence meanwhile: their old content is never read, because slots are zeroed first. New blocks for restored
//! and loaded content are not zeroed: they fail with `BUSY` while a run writes for a step that is gone.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use kvtide_core::paged::{EvictionPolicy, HeldContent, Identity, LeastUseful, PagedPlanner, WritePlan};
use kvtide_cuda::KeptWords;

use super::below::BelowGroup;
use super::dropped::{Dropped, DroppedList};
use super::options::PagedKvCacheOptions;
use super::slabs::{PagedShape, Slab, Slabs};
use crate::base::error::{Error, Result};
use crate::base::life::Life;
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::device::check_kernels;
use crate::device::form::Form;

/// A pool of blocks for layers with the same sizes, and the sequences that write to them.
#[derive(Debug)]
pub(crate) struct PageGroup {
    pub(super) planner: PagedPlanner,
    pub(super) slabs: Slabs,
    /// The block tables that were last uploaded to a device.
    pub(crate) tables: Arc<KeptWords>,
    pub(super) budget: Arc<Budget>,
    growths: u64,
    pub(super) copied_bytes: u64,
    pub(super) poisoned: bool,
    /// Tracks background readers of its pages.
    pub(super) life: Arc<Life>,
    /// The plan of the last step that another thread computed.
    pub(super) lent: Option<Arc<WritePlan>>,
    /// The blocks of snapshots and prefixes, by number.
    pub(super) held: HashMap<u64, HeldContent>,
    pub(super) next_held: u64,
    /// Handles that were dropped since the last call.
    pub(super) dropped: DroppedList,
    /// The tiers that take offloaded blocks.
    pub(super) below: Option<BelowGroup>,
}

impl PageGroup {
    /// An empty group with its slab allocated.
    pub fn new(options: PagedKvCacheOptions) -> Result<Self> {
        check_kernels(&options.device)?;
        let shape = PagedShape::new(&options)?;
        if let Form::Launched(_) = Form::of(&options.device)? {
            shape.check_launched()?;
        }
        let planner = PagedPlanner::new(options.capacity, options.block_size, options.num_layers)?;
        let mut planner = if shape.pages.is_low_bit() { planner.staging_pages() } else { planner };
        if let Some(window) = options.window {
            planner = planner.sliding(window);
        }
        let policy = options.eviction.map(|policy| Box::new(policy) as Box<dyn EvictionPolicy>);
        if options.states {
            let useful = policy.map_or_else(LeastUseful::default, LeastUseful::ranked_by);
            planner = planner.keeping_states().evicting(Box::new(useful));
        } else if let Some(policy) = policy {
            planner = planner.evicting(policy);
        }
        planner.keep_events(options.events);
        let budget = Budget::within(&options.device, options.budget.as_ref(), options.memory_limit_bytes);
        Ok(PageGroup {
            planner,
            slabs: Slabs::new(shape, options.capacity, &budget)?,
            tables: Arc::default(),
            budget,
            growths: 0,
            copied_bytes: 0,
            poisoned: false,
            life: Arc::default(),
            lent: None,
            held: HashMap::new(),
            next_held: 0,
            dropped: DroppedList::default(),
            below: None,
        })
    }

    /// The bookkeeping, without reclaiming dropped handles first.
    pub fn planner(&self) -> &PagedPlanner {
        &self.planner
    }

    /// Numbers its events together with those of another group.
    pub fn join_events(&mut self, other: &PagedPlanner) {
        self.planner.join_events(other);
    }

    /// The bookkeeping after dropped handles were reclaimed; unchanged if there is no memory for that.
    pub fn current(&mut self) -> &PagedPlanner {
        let _ = self.collect();
        &self.planner
    }

    /// The layouts of its pages.
    pub fn shape(&self) -> &PagedShape {
        &self.slabs.shape
    }

    /// Its blocks.
    pub fn slab(&self) -> &Arc<Slab> {
        &self.slabs.slab
    }

    /// The budget of its memory.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Its costs.
    pub fn stats(&self) -> Stats {
        Stats {
            buffer_bytes: self.slabs.slab.bytes() + self.slabs.staging.bytes(),
            used_bytes: self.budget.used(),
            held_bytes: self.budget.held(),
            limit_bytes: self.budget.limit(),
            growths: self.growths,
            copies_on_write: self.planner.pool_stats().counters.copies,
            copied_bytes: self.copied_bytes,
            ..Stats::default()
        }
    }

    /// Checks the invariants that hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        self.planner.check_invariants(&self.held.values().collect::<Vec<_>>())?;
        let (staged, room) = (self.planner.staged_count(), self.slabs.staging.blocks);
        if staged > room { Err(format!("{staged} pages are staged, there is room for {room}")) } else { Ok(()) }
    }

    /// Fails if a copy has failed half-way.
    pub fn check(&self) -> Result<()> {
        if self.poisoned || self.life.is_torn() { Err(Error::Poisoned) } else { Ok(()) }
    }

    /// Fails if the group cannot be used, or while a background call reads it.
    pub fn check_change(&self) -> Result<()> {
        self.check()?;
        self.life.check_idle()
    }

    /// Prepares a change: fails if none is possible now, else reclaims dropped handles.
    pub fn change(&mut self) -> Result<()> {
        self.check_change()?;
        self.collect()
    }

    /// Like [`PageGroup::change`], for changes to pages, which also fail while another thread computes a step.
    pub fn change_pages(&mut self) -> Result<()> {
        self.check_pages()?;
        self.collect()
    }

    /// Checks what [`PageGroup::change_pages`] checks.
    pub fn check_pages(&self) -> Result<()> {
        self.check_change()?;
        self.life.check_no_run()
    }

    /// Reclaims handles that were dropped since the last call. Reads do so too, so that they never show a step that is gone.
    pub fn collect(&mut self) -> Result<()> {
        self.check()?;
        let mut dropped = self.dropped.take().into_iter();
        let done = dropped.by_ref().try_for_each(|of| self.take_back(of));
        // If one fails, the handles after it are reclaimed at a later call.
        dropped.for_each(|of| self.dropped.add(of));
        done
    }

    fn take_back(&mut self, dropped: Dropped) -> Result<()> {
        let done = match &dropped {
            Dropped::Hold(id) => {
                if let Some(held) = self.held.remove(id) {
                    self.planner.release(held);
                }
                return Ok(());
            }
            Dropped::Sequence(sequence) => match self.planner.drop_sequence(*sequence) {
                // It was already dropped.
                Err(kvtide_core::Error::SequenceNotFound { .. }) => Ok(()),
                done => done,
            },
            Dropped::Step(plan) => self.planner.undo_step(plan),
        };
        done.map_err(|refusal| {
            self.dropped.add(dropped);
            refusal.into()
        })
    }

    /// Creates an empty sequence with this identity.
    pub fn create_sequence(&mut self, identity: Identity) -> Result<u64> {
        self.change()?;
        Ok(self.planner.create_sequence_of(identity)?)
    }

    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        self.change()?;
        Ok(self.planner.drop_sequence(sequence)?)
    }

    /// Drops a sequence at the next call.
    pub fn release_sequence(&self, sequence: u64) {
        self.dropped.add(Dropped::Sequence(sequence));
    }

    pub fn identify(&mut self, sequence: u64, tokens: &[u32]) -> Result<u32> {
        self.change()?;
        Ok(self.planner.identify(sequence, tokens)?)
    }

    pub fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.change()?;
        Ok(self.planner.fork(sequence)?)
    }

    pub fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        self.change()?;
        Ok(self.planner.truncate(sequence, length)?)
    }

    /// The number of blocks that sequences lack, as in [`PagedPlanner::missing_blocks`].
    pub fn missing_blocks(&mut self, wanted: &[(u64, u32)]) -> Result<Vec<u32>> {
        let missing = self.planner.missing_blocks(wanted)?;
        self.hand_down_evicted();
        Ok(missing)
    }

    /// Takes the blocks that [`PageGroup::missing_blocks`] has just counted.
    pub fn take_missing(&mut self, wanted: &[(u64, u32)], missing: &[u32]) {
        self.planner.take_missing(wanted, missing);
    }

    pub fn retain(&mut self, sequence: u64, tokens: Range<u32>, priority: u8, until: Option<u64>) -> Result<()> {
        self.change()?;
        Ok(self.planner.retain(sequence, tokens, priority, until)?)
    }

    pub fn advance_clock(&mut self, now: u64) -> Result<()> {
        self.change()?;
        self.planner.advance_clock(now);
        Ok(())
    }

    pub fn forget_prefixes(&mut self) -> Result<()> {
        self.change()?;
        self.planner.forget_prefixes();
        self.forget_below();
        Ok(())
    }

    /// Grows the staging slab to at least this many pages.
    pub(super) fn reserve_staging(&mut self, pages: u32) -> Result<()> {
        if pages <= self.slabs.staging.blocks {
            return Ok(());
        }
        let copied = self.slabs.grow_staging(pages, &self.budget)?;
        self.growths += u64::from(copied > 0);
        self.copied_bytes += copied;
        Ok(())
    }
}
