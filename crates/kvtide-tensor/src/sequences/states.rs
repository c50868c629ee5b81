//! The states of sequences: all tensors that layers keep for a sequence besides keys and values, as bytes.
//!
//! ```text
//! | layer 0 conv | layer 0 ssm | layer 2 conv | layer 2 ssm |     in the order and at the offsets of `StateLayout`
//!
//! cache.read_states(&step, 0)?               the states from before the step
//! cache.write_states(&mut step, 0, &bytes)?  those after its tokens
//! cache.commit_step(&mut step, ids)?         fails until each sequence with tokens has its states
//! ```
//!
//! A model has one group of states on each device. O(bytes of a sequence's states).

use std::ops::Range;
use std::sync::Arc;

use kvtide_core::model::{LayerKind, ModelDescription, StateDType, StateTensor};
use kvtide_core::paged::{PromptStates, prompt_states};

use super::cache::PagedKvCache;
use super::prefix_namer::PromptOptions;
use super::run::StepRun;
use super::step::PagedStep;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::zeroed::zeroed_bytes;
use crate::paged::{PageGroup, StatePlace};
use crate::states::StepState;

impl PagedKvCache {
    /// The states of a prompt: how many of its tokens are found, and how many would be found with a state at each block;
    /// [`None`] if no layer keeps a state. For operators, like [`explain`](Self::explain).
    pub fn prompt_states(&mut self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Option<PromptStates>> {
        self.collect()?;
        if !self.keeps_states() {
            return Ok(None);
        }
        let identity = self.namer.identity(options)?;
        Ok(Some(prompt_states(&self.planners(), tokens, &identity)?))
    }

    /// True if some layer keeps a state.
    #[must_use]
    pub fn keeps_states(&self) -> bool {
        self.groups.iter().any(PageGroup::keeps_states)
    }

    /// The bytes of all states of a sequence; 0 if no layer keeps one.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        self.model().state_layout().bytes
    }

    /// Keeps the states after each token of a draft's step from now on, or not. Then
    /// [`commit`](Self::commit) can keep some of the tokens of the draft's last step, if
    /// [`StepRun::compute_state`] computed the states, a sequence's states have at most 1 MiB, and there are slots for them.
    /// By default, a draft is committed as a whole.
    pub fn keep_drafted_states(&mut self, each: bool) {
        self.groups.iter_mut().for_each(|group| group.keep_drafted_states(each));
    }

    /// Writes the states of a step's sequence, by its index among [`PagedStep::sequences`], after the step's tokens: all
    /// tensors, at the offsets of [`ModelDescription::state_layout`]. Only sequences that get tokens have new states. They
    /// may be written again while the step is open.
    pub fn write_states(&mut self, step: &mut PagedStep, index: usize, bytes: &[u8]) -> Result<()> {
        self.check_step(step)?;
        let slots = slots(self.model(), bytes.len())?;
        self.check_pages()?;
        let groups = self.groups.iter_mut().zip(&mut step.groups).filter(|(group, _)| group.keeps_states());
        for ((group, of), slot) in groups.zip(slots) {
            group.write_states(of, index, &bytes[slot])?;
        }
        Ok(())
    }

    /// A copy of the states that a step's sequence had before the step; zeros for a sequence without tokens.
    pub fn read_states(&self, step: &PagedStep, index: usize) -> Result<Vec<u8>> {
        with_room(self.model(), |out| self.read_states_into(step, index, out))
    }

    /// Like [`PagedKvCache::read_states`], into the caller's memory.
    pub fn read_states_into(&self, step: &PagedStep, index: usize, out: &mut [u8]) -> Result<()> {
        self.check_step(step)?;
        let slots = slots(self.model(), out.len())?;
        let groups = self.groups.iter().zip(&step.groups).filter(|(group, _)| group.keeps_states());
        groups.zip(slots).try_for_each(|((group, of), slot)| group.read_states(of, index, &mut out[slot]))
    }

    /// A copy of the states of a sequence after its tokens, without those of an open step; zeros for an empty sequence.
    pub fn states_of(&mut self, sequence: u64) -> Result<Vec<u8>> {
        let model = self.model.clone();
        with_room(&model, |out| self.states_of_into(sequence, out))
    }

    /// Like [`PagedKvCache::states_of`], into the caller's memory.
    pub fn states_of_into(&mut self, sequence: u64, out: &mut [u8]) -> Result<()> {
        self.collect()?;
        let slots = slots(self.model(), out.len())?;
        let groups = self.groups.iter().filter(|group| group.keeps_states());
        groups.zip(slots).try_for_each(|(group, slot)| group.states_of(sequence, &mut out[slot]))
    }

    /// The longest prefix of a sequence, of at most `length` tokens, to which all its states can go back; `length` if no
    /// layer keeps a state.
    pub(super) fn state_below(&self, sequence: u64, mut length: u32) -> Result<u32> {
        loop {
            let mut below = length;
            for group in &self.groups {
                below = group.state_below(sequence, below)?;
            }
            if below == length {
                return Ok(length);
            }
            length = below;
        }
    }

    /// Fails if layers keep states, which a call that takes keys and values alone cannot write.
    pub(super) fn check_stateless(&self, argument: &'static str) -> Result<()> {
        match self.model().states() {
            [] => Ok(()),
            [first, ..] => Err(Error::argument(
                argument,
                "keys and values alone",
                format!("a step, because layer {} keeps a state", first.layer),
            )),
        }
    }
}

impl StepRun {
    /// Like [`PagedKvCache::write_states`].
    pub fn write_states(&mut self, index: usize, bytes: &[u8]) -> Result<()> {
        let slots = slots(&self.model, bytes.len())?;
        let groups = self.groups.iter_mut().zip(self.model.groups()).filter(|(_, of)| of.kind == LayerKind::State);
        groups.zip(slots).try_for_each(|((group, _), slot)| group.write_states(index, &bytes[slot]))
    }

    /// Computes one state of all sequences that get tokens, by its index among [`ModelDescription::states`].
    ///
    /// `work` is called with the first token of each of these sequences, followed by the number of tokens, and with their
    /// states: before the step, and memory for those after it, which it writes whole. If it fails, the state counts as not
    /// written. A sequence's states count as written once all of them are; the step cannot be committed before that.
    ///
    /// Short steps on the CPU compute 32-bit floats in place. While they do, other threads wait that read states of the cache.
    pub fn compute_state<E: From<Error>>(
        &mut self,
        state: u32,
        work: impl FnOnce(&[usize], &mut [StepState<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let expected = || format!("below {}, the number of states of the model", self.state_places.len());
        let found = self.state_places.get(state as usize);
        let &(group, place) = found.ok_or_else(|| Error::argument("state", state, expected()))?;
        self.groups[group].compute_state(place, work)
    }

    /// Like [`PagedKvCache::read_states`].
    pub fn read_states(&self, index: usize) -> Result<Vec<u8>> {
        with_room(&self.model, |out| self.read_states_into(index, out))
    }

    /// Like [`PagedKvCache::read_states_into`].
    pub fn read_states_into(&self, index: usize, out: &mut [u8]) -> Result<()> {
        let slots = slots(&self.model, out.len())?;
        let groups = self.groups.iter().zip(self.model.groups()).filter(|(_, of)| of.kind == LayerKind::State);
        groups.zip(slots).try_for_each(|((group, _), slot)| group.read_states(index, &mut out[slot]))
    }
}

/// For each state, its group, and its place in the slots of that group. O(states²), once for a cache.
pub(super) fn state_places(model: &ModelDescription) -> Arc<[(usize, StatePlace)]> {
    let layout = model.state_layout();
    let groups = model.groups().iter().enumerate().filter(|(_, group)| group.kind == LayerKind::State);
    let groups: Vec<usize> = groups.map(|(place, _)| place).collect();
    let place = |(state, &first): (&StateTensor, &u64)| {
        let slot = layout.slots.iter().position(|slot| slot.contains(&first)).expect("a slot that has the state");
        let of_slot = || layout.offsets.iter().copied().filter(|offset| layout.slots[slot].contains(offset));
        let next = of_slot().filter(|&offset| offset > first).min().unwrap_or(layout.slots[slot].end);
        let begin = layout.slots[slot].start;
        let dtype = match state.dtype {
            StateDType::F32 => DType::F32,
            StateDType::F16 => DType::F16,
            StateDType::BF16 => DType::BF16,
        };
        let place = StatePlace {
            index: of_slot().filter(|&offset| offset < first).count(),
            count: of_slot().count(),
            start: (first - begin) as usize,
            end: (next - begin) as usize,
            dtype,
            elements: state.bytes() as usize / dtype.bytes(),
        };
        (groups[slot], place)
    };
    model.states().iter().zip(&layout.offsets).map(place).collect()
}

/// The bytes of each group of states; fails if `bytes` are not those of all states, or if no layer keeps one.
fn slots(model: &ModelDescription, bytes: usize) -> Result<Vec<Range<usize>>> {
    let layout = model.state_layout();
    if layout.slots.is_empty() {
        return Err(Error::argument("model", "layers without states", "a layer that keeps a state"));
    }
    if bytes as u64 != layout.bytes {
        let expected = format!("{}, the bytes of all states of a sequence", layout.bytes);
        return Err(Error::ShapeMismatch { argument: "bytes", value: vec![bytes], expected });
    }
    Ok(layout.slots.iter().map(|slot| slot.start as usize..slot.end as usize).collect())
}

fn with_room(model: &ModelDescription, read: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Vec<u8>> {
    let mut out = zeroed_bytes(model.state_layout().bytes as usize)?;
    read(&mut out)?;
    Ok(out)
}
