//! A group of layers that are alike: K and V of many sequences, in one slab of blocks.
//!
//! Its fields are open to the files of this folder alone. Outside, its planner can be read, and every change is a call of the group.
//! Each call takes back first what was dropped since the last one, be it a change or a read.
//!
//! What is refused with `BUSY`, and when:
//!
//! | calls | someone reads in the background | a step is computed elsewhere |
//! | --- | --- | --- |
//! | copies of tokens: `gather`, `read_kv` | | |
//! | pages in place | where slots are zeroed for it | where slots are zeroed for it: so those that the step writes |
//! | what ends without a trace, or is dropped | | |
//! | [`PageGroup::change`]: sequences, prefixes, snapshots, transactions, capacity, priorities | refused | |
//! | the end of a transaction, or of another step | refused | where rows are copied, moved or quantised |
//! | [`PageGroup::change_pages`]: appends, writes, new steps, layers of a step | refused | refused |
//!
//! So nobody but the step writes to pages while it is computed elsewhere, whoever gets the blocks of a sequence that is dropped: what
//! they hold is looked at only once it is zeroed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use kvtide_core::paged::{HeldContent, Identity, PagedPlanner};
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

/// A pool of blocks for layers that are alike, and the sequences that write in them.
#[derive(Debug)]
pub(crate) struct PageGroup {
    pub(super) planner: PagedPlanner,
    pub(super) slabs: Slabs,
    /// The tables that a device was handed last.
    pub(crate) tables: Arc<KeptWords>,
    pub(super) budget: Arc<Budget>,
    growths: u64,
    pub(super) copied_bytes: u64,
    pub(super) poisoned: bool,
    /// Who reads its pages in the background.
    pub(super) life: Arc<Life>,
    /// What snapshots and prefixes hold, by their numbers.
    pub(super) held: HashMap<u64, HeldContent>,
    pub(super) next_held: u64,
    /// What was dropped since the last call.
    pub(super) dropped: DroppedList,
    /// What takes blocks that leave.
    pub(super) below: Option<BelowGroup>,
}

impl PageGroup {
    /// An empty group, its slab reserved.
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
        if let Some(policy) = options.eviction {
            planner = planner.evicting(Box::new(policy));
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
            held: HashMap::new(),
            next_held: 0,
            dropped: DroppedList::default(),
            below: None,
        })
    }

    /// The bookkeeping as it is, whatever was dropped since the last call.
    pub fn planner(&self) -> &PagedPlanner {
        &self.planner
    }

    /// The bookkeeping, once what was dropped is taken back: where there is no memory for that, as it was before.
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

    /// What its memory is taken from.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// What it costs.
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

    /// Checks what must hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        self.planner.check_invariants(&self.held.values().collect::<Vec<_>>())?;
        let (staged, room) = (self.planner.staged_count(), self.slabs.staging.blocks);
        if staged > room { Err(format!("{staged} pages are staged, there is room for {room}")) } else { Ok(()) }
    }

    /// Refuses every call once a copy has failed half-way.
    pub fn check(&self) -> Result<()> {
        if self.poisoned || self.life.is_torn() { Err(Error::Poisoned) } else { Ok(()) }
    }

    /// Refuses a change when the group cannot be used, or while someone reads it in the background.
    pub fn check_change(&self) -> Result<()> {
        self.check()?;
        self.life.check_idle()
    }

    /// Refuses a change when there can be none now; else takes back what was dropped since the last call.
    pub fn change(&mut self) -> Result<()> {
        self.check_change()?;
        self.collect()
    }

    /// The same for a change that touches pages, which none does while a step is computed elsewhere.
    pub fn change_pages(&mut self) -> Result<()> {
        self.check_pages()?;
        self.collect()
    }

    /// Refuses a change that touches pages, as [`PageGroup::change_pages`] does.
    pub fn check_pages(&self) -> Result<()> {
        self.check_change()?;
        self.life.check_no_run()
    }

    /// Takes back what was dropped since the last call. Reads do so too: what is shown is never of a step that is gone.
    pub fn collect(&mut self) -> Result<()> {
        self.check()?;
        let mut dropped = self.dropped.take().into_iter();
        let done = dropped.by_ref().try_for_each(|of| self.take_back(of));
        // What comes after a failure is taken back another time.
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
                // It was dropped before.
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

    /// A new, empty sequence of this identity.
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

    /// How many blocks sequences are short of, as [`PagedPlanner::missing_blocks`] says.
    pub fn missing_blocks(&mut self, wanted: &[(u64, u32)]) -> Result<Vec<u32>> {
        let missing = self.planner.missing_blocks(wanted)?;
        self.hand_down_evicted();
        Ok(missing)
    }

    /// Takes blocks that [`PageGroup::missing_blocks`] has counted just before.
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

    /// Makes room for so many staging pages.
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
