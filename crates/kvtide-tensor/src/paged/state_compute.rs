//! One state of all sequences of a step run, computed where it is kept.
//!
//! ```text
//! slot 4   | conv | ssm | ..    before the step     source: is read; none for a sequence without tokens
//! slot 9   | conv | ssm | ..    the step's own      target: is written, and zeros behind it up to the next state
//! slot 7   | conv | ssm | ..    a draft's           the state after each token but the last, if the step keeps them
//! ```
//!
//! On the CPU, a short step reads and writes the slots in place, under the lock of the pages. A long one has memory of its
//! own, so that readers of other slots need not wait for it: the copies cost little beside its work. So have states of 16
//! bits, which are converted, and states on other devices. O(bytes of the state for each sequence), besides the work.
//!
//! A slot counts as written once all of its states are.

use std::collections::HashMap;

use kvtide_core::paged::SlotRun;

use super::run::GroupRun;
use super::slabs::Slab;
use crate::base::dtype::{DType, from_f32, to_f32};
use crate::base::error::{Error, Result};
use crate::base::life::ElsewhereWrite;
use crate::base::zeroed::zeroed_bytes;
use crate::device::form::Form;
use crate::states::StepState;
use crate::states::zeros;

/// The most tokens of a step that computes in place.
const IN_PLACE_MAX: usize = 64;

/// A state, and its place in the slots of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatePlace {
    /// Its index among the states of the group, and their number.
    pub index: usize,
    pub count: usize,
    /// Its first byte in a slot, and the first byte of the next state, or the end of all states.
    pub start: usize,
    pub end: usize,
    pub dtype: DType,
    /// The number of elements.
    pub elements: usize,
}

/// The slots of a sequence in a step.
struct Slots {
    /// The slot from before the step.
    source: Option<u32>,
    /// The slot after the step.
    target: u32,
    /// The slots after each token but the last, if the step keeps them.
    drafted: Vec<u32>,
}

/// The slots of a step.
struct StepSlots {
    /// Those of each sequence with tokens.
    sequences: Vec<Slots>,
    /// The first token of each of these sequences, and the number of tokens.
    offsets: Vec<usize>,
}

impl GroupRun {
    /// Calls `work` with the first token of each sequence that has some, and its state before and after the step.
    pub fn compute_state<E: From<Error>>(
        &mut self,
        place: StatePlace,
        work: impl FnOnce(&[usize], &mut [StepState<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check()?;
        let slots = self.step_slots();
        let StatePlace { index, count, .. } = place;
        self.states_written.resize(slots.sequences.len() * count, false);
        let marks = self.states_written.iter_mut().skip(index).step_by(count);
        marks.for_each(|mark| *mark = false);
        let life = self.life.clone();
        let write = self.written.contains(&true).then(|| life.begin_write());
        let slab = &self.slabs.slab;
        let is_seen = place.dtype == DType::F32 && matches!(slab.form()?, Form::Bytes(_));
        if slots.sequences.is_empty() {
            work(&slots.offsets, &mut [])?;
        } else if is_seen && self.plan.tokens() as usize <= IN_PLACE_MAX {
            slab.compute_in_place(place.within(slab), &slots, work)?;
        } else {
            slab.compute_apart(place.within(slab), &slots, work)?;
        }
        write.into_iter().for_each(ElsewhereWrite::end);
        let of_sequences = self.written.iter_mut().zip(&mut self.computed);
        for (marks, (written, computed)) in self.states_written.chunks_exact_mut(count).zip(of_sequences) {
            marks[index] = true;
            *computed = marks.iter().all(|&mark| mark);
            *written |= *computed;
        }
        Ok(())
    }

    fn step_slots(&self) -> StepSlots {
        let offsets: Vec<usize> = self.plan.offsets().map(|offset| offset as usize).collect();
        let slots = self.slots.iter().zip(self.plan.runs_of_sequences());
        let of_sequence = |(&source, runs): (&Option<u32>, &[SlotRun])| {
            let (last, drafted) = runs.split_last()?;
            Some(Slots { source, target: last.block, drafted: drafted.iter().map(|run| run.block).collect() })
        };
        let sequences = slots.filter_map(of_sequence).collect();
        // Sequences without tokens begin where the next one begins.
        let mut distinct = offsets;
        distinct.dedup();
        StepSlots { sequences, offsets: distinct }
    }
}

impl Slots {
    /// The slots that the step writes, in the order of its tokens.
    fn written(&self) -> impl Iterator<Item = &u32> {
        self.drafted.iter().chain([&self.target])
    }
}

impl StatePlace {
    /// The same place, up to the end of a page if it is the last state: the bytes behind the states are zeros too.
    fn within(self, slab: &Slab) -> Self {
        if self.index + 1 < self.count { self } else { StatePlace { end: slab.layout.page_bytes(), ..self } }
    }

    fn bytes(&self) -> usize {
        self.elements * self.dtype.bytes()
    }
}

impl Slab {
    /// The first byte of a state in a slot.
    fn state_start(&self, place: &StatePlace, slot: u32) -> usize {
        self.layout.page_offset(slot, 0) + place.start
    }

    /// Computes states of 32-bit floats in the pages.
    fn compute_in_place<E: From<Error>>(
        &self,
        place: StatePlace,
        slots: &StepSlots,
        work: impl FnOnce(&[usize], &mut [StepState<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = |slot: u32| self.state_start(&place, slot);
        // A source may be that of several sequences, the others are those of one.
        let all = slots.sequences.iter().flat_map(|of| of.source.iter().chain(of.written()));
        let mut starts: Vec<usize> = all.map(|&slot| start(slot)).collect();
        starts.sort_unstable();
        starts.dedup();
        self.edit_once(|pages| {
            let mut places = cut(pages, &starts, place.end - place.start);
            let mut take = |slot: &u32| {
                let (state, behind) =
                    places.remove(&start(*slot)).expect("a slot of its own").split_at_mut(place.bytes());
                behind.fill(0);
                bytemuck::cast_slice_mut(state)
            };
            let own: Vec<Vec<&mut [f32]>> =
                slots.sequences.iter().map(|of| of.written().map(&mut take).collect()).collect();
            let before: HashMap<usize, &[u8]> = places.into_iter().map(|(start, bytes)| (start, &*bytes)).collect();
            let mut states = Vec::with_capacity(own.len());
            for (of, mut drafted) in slots.sequences.iter().zip(own) {
                let source = of.source.map(|slot| &before[&start(slot)][..place.bytes()]);
                let target = drafted.pop().expect("the slot after the step");
                states.push(StepState { source: source.map(bytemuck::cast_slice), target, drafted });
            }
            work(&slots.offsets, &mut states)
        })?
    }

    /// Computes states in memory of their own.
    fn compute_apart<E: From<Error>>(
        &self,
        place: StatePlace,
        slots: &StepSlots,
        work: impl FnOnce(&[usize], &mut [StepState<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let elements = place.elements;
        // States begin at multiples of 64 bytes, so whole elements of any page are moved.
        let mut bytes = zeroed_bytes(place.end - place.start)?;
        let found = slots.sequences.iter().filter_map(|of| of.source);
        let mut before = zeros(found.clone().count() * elements)?;
        for (slot, state) in found.zip(before.chunks_exact_mut(elements)) {
            self.fetch_bytes(self.state_start(&place, slot), &mut bytes)?;
            to_f32(place.dtype, &bytes[..place.bytes()], state);
        }
        let written = || slots.sequences.iter().flat_map(Slots::written);
        let mut after = zeros(written().count() * elements)?;
        let (mut sources, mut targets) = (before.chunks_exact(elements), after.chunks_exact_mut(elements));
        let mut state = |of: &Slots| {
            let drafted = targets.by_ref().take(of.drafted.len()).collect();
            let target = targets.next().expect("memory for each slot");
            StepState { source: of.source.and_then(|_| sources.next()), target, drafted }
        };
        let mut states: Vec<_> = slots.sequences.iter().map(&mut state).collect();
        work(&slots.offsets, &mut states)?;
        bytes.fill(0);
        for (&slot, state) in written().zip(after.chunks_exact(elements)) {
            from_f32(place.dtype, state, &mut bytes[..place.bytes()]);
            self.store_bytes(self.state_start(&place, slot), &bytes)?;
        }
        Ok(())
    }
}

/// Cuts pieces of so many bytes out of pages, at these ascending places.
fn cut<'a>(pages: &'a mut [u8], starts: &[usize], bytes: usize) -> HashMap<usize, &'a mut [u8]> {
    let (mut rest, mut at) = (pages, 0);
    let mut pieces = HashMap::with_capacity(starts.len());
    for &start in starts {
        let piece;
        (_, rest) = rest.split_at_mut(start - at);
        (piece, rest) = rest.split_at_mut(bytes);
        pieces.insert(start, piece);
        at = start + bytes;
    }
    pieces
}
