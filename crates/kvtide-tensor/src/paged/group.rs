//! A group of layers that are alike: K and V of many sequences, in one slab of blocks.
//!
//! A write or a read of one token is O(1), of many tokens O(their bytes). A slot can only be read by the sequence that wrote it.
//! What was dropped is taken back at the next call, be it a change or a read.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use kvtide_core::paged::{HeldContent, PagedPlanner};

use crate::base::error::{Error, Result};
use crate::base::life::Life;
use crate::base::memory::Budget;
use crate::base::stats::Stats;
use crate::device::check_kernels;
use crate::device::form::Form;

use super::options::PagedKvCacheOptions;
use super::prefix_keys::PrefixKeys;
use super::returns::{Returned, Returns};
use super::shape::PagedShape;
use super::slab::Slab;

/// A pool of blocks for layers that are alike, and the sequences that write in them.
#[derive(Debug)]
pub(crate) struct PageGroup {
    pub(crate) planner: PagedPlanner,
    pub(crate) shape: PagedShape,
    pub(crate) slab: Arc<Slab>,
    /// Low-bit pages that are not full; without those it has no pages.
    pub(crate) staging: Arc<Slab>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) growths: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) poisoned: bool,
    /// Who reads its pages in the background.
    pub(crate) life: Arc<Life>,
    /// Under which keys blocks are found.
    pub(crate) keys: PrefixKeys,
    /// What snapshots and prefixes hold, by their numbers.
    pub(crate) held: HashMap<u64, HeldContent>,
    pub(crate) next_held: u64,
    /// What was dropped since the last change.
    pub(crate) returns: Returns,
}

impl PageGroup {
    /// An empty cache, its slab reserved.
    pub fn new(options: PagedKvCacheOptions) -> Result<Self> {
        check_kernels(&options.device)?;
        let shape = PagedShape::new(&options)?;
        match Form::of(&options.device)? {
            Form::Launched(_) => shape.check_launched()?,
            Form::Portable if !options.device.is_cpu() => shape.check_portable(&options.device)?,
            Form::Bytes | Form::Portable => {}
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
            shape,
            slab: Arc::new(Slab::new(shape.pages, options.capacity, &budget)?),
            staging: Arc::new(Slab::new(shape.staged, 0, &budget)?),
            budget,
            growths: 0,
            copied_bytes: 0,
            poisoned: false,
            life: Arc::default(),
            keys: PrefixKeys::new(options.prefix_key, &options.namespace, [&shape])?,
            held: HashMap::new(),
            next_held: 0,
            returns: Returns::default(),
        })
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> u32 {
        self.planner.block_size()
    }

    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        self.change()?;
        Ok(self.planner.drop_sequence(sequence)?)
    }

    /// Blocks that are free.
    pub fn free_count(&mut self) -> u32 {
        self.current().free_count()
    }

    /// Highest written position + 1; 0 for an unknown sequence.
    pub fn sequence_length(&self, sequence: u64) -> u32 {
        self.planner.sequence_length(sequence)
    }

    /// Slots of its blocks; 0 for an unknown sequence.
    pub fn sequence_capacity(&mut self, sequence: u64) -> u64 {
        self.current().sequence_capacity(sequence)
    }

    /// The ids of the sequences there are, ascending.
    pub fn sequence_ids(&self) -> Vec<u64> {
        self.planner.sequence_ids()
    }

    /// What it costs.
    pub fn stats(&self) -> Stats {
        Stats {
            buffer_bytes: self.slab.bytes() + self.staging.bytes(),
            used_bytes: self.budget.used(),
            held_bytes: self.budget.held(),
            limit_bytes: self.budget.limit(),
            growths: self.growths,
            copies_on_write: self.planner.pool_stats().counters.copies,
            copied_bytes: self.copied_bytes,
            ..Stats::default()
        }
    }

    /// Low-bit pages that lie in floats because they are not full.
    pub fn staged_count(&mut self) -> u32 {
        self.current().staged_count()
    }

    /// Checks what must hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        self.planner.check_invariants(&self.held.values().collect::<Vec<_>>())?;
        let (staged, room) = (self.planner.staged_count(), self.staging.blocks);
        if staged > room { Err(format!("{staged} pages are staged, there is room for {room}")) } else { Ok(()) }
    }

    /// Refuses a change when the cache cannot be used, or while someone reads it in the background.
    pub fn check_change(&self) -> Result<()> {
        self.check()?;
        self.life.check_idle()
    }

    pub fn check(&self) -> Result<()> {
        if self.poisoned { Err(Error::Poisoned) } else { Ok(()) }
    }

    pub fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.change()?;
        Ok(self.planner.fork(sequence)?)
    }

    pub fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        self.change()?;
        Ok(self.planner.truncate(sequence, length)?)
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
        Ok(())
    }

    /// Tokens of a sequence that no transaction can take back; 0 for an unknown one.
    pub fn committed_length(&self, sequence: u64) -> u32 {
        self.planner.committed_length(sequence)
    }

    /// Refuses a change when there can be none now; else takes back what was dropped since the last one.
    pub fn change(&mut self) -> Result<()> {
        self.check_change()?;
        self.collect()
    }

    /// Takes back what was dropped since the last call. Reads do so too: what is shown is never of a step that is gone.
    pub fn collect(&mut self) -> Result<()> {
        self.check()?;
        let mut returned = self.returns.take().into_iter();
        let done = returned.by_ref().try_for_each(|of| self.take_back(of));
        // What comes behind a failure is taken back another time.
        returned.for_each(|of| self.returns.add(of));
        done
    }

    /// The bookkeeping, once what was dropped is taken back: where there is no memory for that, as it was before.
    pub fn current(&mut self) -> &PagedPlanner {
        let _ = self.collect();
        &self.planner
    }

    fn take_back(&mut self, returned: Returned) -> Result<()> {
        match returned {
            Returned::Held(id) => {
                if let Some(held) = self.held.remove(&id) {
                    self.planner.release(held);
                }
            }
            Returned::Sequence(sequence) => match self.planner.drop_sequence(sequence) {
                // It was dropped before.
                Ok(()) | Err(kvtide_core::Error::SequenceNotFound { .. }) => {}
                Err(refusal) => {
                    self.returns.add(Returned::Sequence(sequence));
                    return Err(refusal.into());
                }
            },
            Returned::Step(plan) => {
                if let Err(refusal) = self.planner.undo_step(&plan) {
                    self.returns.add(Returned::Step(plan));
                    return Err(refusal.into());
                }
            }
        }
        Ok(())
    }
}
