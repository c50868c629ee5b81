//! States of a group: whole pages of bytes, one slot for each sequence.
//!
//! ```text
//! before   sequence 7: slot 4       read_states    the slot from before the step, zeros without one
//! step     sequence 7: slot 9       write_states   a new slot
//! commit   slot 9 replaces slot 4, which stays for the forks, snapshots and prompts that hold it
//! ```
//!
//! No slot is written again once its step was committed. The bytes behind the states of a slot are zeros, so that equal states
//! have equal pages. O(bytes).

use kvtide_core::paged::{SlotRun, WritePlan};

use super::group::PageGroup;
use super::run::GroupRun;
use super::slabs::Slabs;
use super::step::GroupStep;
use crate::base::error::{Error, Result};
use crate::base::life::ElsewhereWrite;
use crate::base::zeroed::zeroed_bytes;

/// The most bytes of the states that are kept for each token of a draft.
const DRAFTED_BYTES_MAX: usize = 1 << 20;

impl PageGroup {
    /// True if its blocks are slots of states instead of keys and values.
    pub fn keeps_states(&self) -> bool {
        self.planner.keeps_states()
    }

    /// Keeps the state after each token of a draft's step from now on, or not: see [`PagedPlanner::keep_drafted_states`].
    /// Larger states than [`DRAFTED_BYTES_MAX`] are not kept.
    pub fn keep_drafted_states(&mut self, each: bool) {
        let is_small = self.slabs.slab.layout.page_bytes() <= DRAFTED_BYTES_MAX;
        self.planner.keep_drafted_states(each && is_small);
    }

    /// Writes the states of a step's sequence after the step's tokens. They may be written again while the step is open.
    pub fn write_states(&mut self, step: &mut GroupStep, sequence: usize, bytes: &[u8]) -> Result<()> {
        self.change_pages()?;
        self.check_step(step)?;
        let (at, run) = slot_of(step.plan()?, sequence)?;
        // A new slot is not visible: if writing it fails, the step can still be rolled back.
        self.poisoned = step.written[at];
        self.slabs.write_slot(&run, bytes)?;
        self.poisoned = false;
        (step.written[at], step.computed[at]) = (true, false);
        Ok(())
    }

    /// Copies the states that a step's sequence had before the step; zeros if it had none.
    pub fn read_states(&self, step: &GroupStep, sequence: usize, out: &mut [u8]) -> Result<()> {
        self.check()?;
        self.check_step(step)?;
        let id = *step.sequences.get(sequence).ok_or_else(|| no_sequence(sequence, step.sequences.len()))?;
        self.slabs.read_slot(self.planner.state_slot(id)?, out)
    }

    /// Copies the states of a sequence; zeros if it has none.
    pub fn states_of(&self, sequence: u64, out: &mut [u8]) -> Result<()> {
        self.check()?;
        self.slabs.read_slot(self.planner.state_slot(sequence)?, out)
    }

    /// The longest prefix of a sequence, of at most `length` tokens, to which its states can go back; in a group without
    /// states `length`.
    pub fn state_below(&self, sequence: u64, length: u32) -> Result<u32> {
        if self.keeps_states() { Ok(self.planner.state_below(sequence, length)?) } else { Ok(length) }
    }

    /// The slots of a step's sequences before the step; none in a group without states.
    pub(super) fn slots_before(&self, step: &GroupStep) -> Result<Vec<Option<u32>>> {
        if !self.keeps_states() {
            return Ok(Vec::new());
        }
        let slot = |&sequence: &u64| Ok(self.planner.state_slot(sequence)?);
        step.sequences.iter().map(slot).collect()
    }

    /// Marks the slots of a step whose states were all written.
    pub(super) fn mark_states(&mut self, step: &GroupStep) -> Result<()> {
        let plan = step.plan()?;
        self.planner.reserve_marks(plan)?;
        Ok(self.planner.mark_layer(plan, 0)?)
    }

    /// Releases the slots of a draft's tokens if the caller has written the state after the last one alone.
    pub(super) fn forget_drafted_states(&mut self, step: &GroupStep) -> Result<()> {
        let runs = step.plan()?.runs_of_sequences();
        let of_sequences = step.sequences.iter().zip(runs).filter(|(_, runs)| !runs.is_empty());
        for ((&sequence, runs), computed) in of_sequences.zip(&step.computed) {
            if runs.len() > 1 && !computed {
                self.planner.forget_drafted_states(sequence)?;
            }
        }
        Ok(())
    }
}

impl GroupRun {
    /// Like [`PageGroup::write_states`].
    pub fn write_states(&mut self, sequence: usize, bytes: &[u8]) -> Result<()> {
        self.check()?;
        let (at, run) = slot_of(&self.plan, sequence)?;
        let write = self.written[at].then(|| self.life.begin_write());
        self.slabs.write_slot(&run, bytes)?;
        write.into_iter().for_each(ElsewhereWrite::end);
        (self.written[at], self.computed[at]) = (true, false);
        Ok(())
    }

    /// Like [`PageGroup::read_states`].
    pub fn read_states(&self, sequence: usize, out: &mut [u8]) -> Result<()> {
        self.check()?;
        let slot = *self.slots.get(sequence).ok_or_else(|| no_sequence(sequence, self.slots.len()))?;
        self.slabs.read_slot(slot, out)
    }
}

impl Slabs {
    /// Overwrites a whole slot with states, and with zeros behind them.
    fn write_slot(&self, run: &SlotRun, bytes: &[u8]) -> Result<()> {
        let layout = &self.slab.layout;
        let start = layout.page_offset(run.block, 0);
        // Fewer than 68 bytes for each token of a block.
        let behind = zeroed_bytes(layout.page_bytes() - bytes.len())?;
        self.slab.store_bytes(start, bytes)?;
        self.slab.store_bytes(start + bytes.len(), &behind)
    }

    fn read_slot(&self, slot: Option<u32>, out: &mut [u8]) -> Result<()> {
        match slot {
            Some(slot) => self.slab.fetch_bytes(self.slab.layout.page_offset(slot, 0), out),
            None => {
                out.fill(0);
                Ok(())
            }
        }
    }
}

/// The slot of a step's sequence after its tokens, and its index among those with tokens: the others get none.
fn slot_of(plan: &WritePlan, sequence: usize) -> Result<(usize, SlotRun)> {
    let all = || plan.runs_of_sequences();
    let Some(runs) = all().nth(sequence) else {
        return Err(no_sequence(sequence, all().count()));
    };
    let expected = "a sequence that gets tokens in this step";
    let run = runs.last().ok_or_else(|| Error::argument("index", sequence, expected))?;
    let at = all().take(sequence).filter(|runs| !runs.is_empty()).count();
    Ok((at, *run))
}

fn no_sequence(sequence: usize, sequences: usize) -> Error {
    Error::argument("index", sequence, format!("below {sequences}, the number of sequences of the step"))
}
