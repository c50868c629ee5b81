//! Sequences in tensors of their own: which there are, and which may be changed now.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_core::model::{LayerGroup, LayerPlace};
use kvtide_core::{Error as CoreError, TransactionId};

use super::contiguous_steps::Stepping;
use super::layer_cache::{LayerCache, LayerSnapshot};
use super::options::{ContiguousOptions, Place};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::transaction::BeginOptions;

/// All sequences.
#[derive(Debug)]
pub(super) struct ContiguousLayers {
    pub(super) groups: Vec<LayerGroup>,
    pub(super) options: ContiguousOptions,
    pub(super) dtype: DType,
    pub(super) places: Vec<Place>,
    pub(super) sequences: BTreeMap<u64, Sequence>,
    pub(super) next: u64,
    /// Steps that were dropped: the sequence, and the transaction in each layer.
    pub(super) dropped: Dropped,
}

pub(super) type Dropped = Arc<Mutex<Vec<(u64, TransactionId)>>>;

/// One sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Group by group, the layers of each in order.
    pub layers: Vec<LayerCache>,
    pub length: u32,
    /// The user's transactions, and their tokens before the first of them.
    pub open: Vec<(TransactionId, u32)>,
    /// The step that is open.
    pub step: Option<Stepping>,
    /// A change failed in one layer when others had made it.
    pub poisoned: bool,
}

impl Sequence {
    /// Refuses a change of all layers while someone reads one of them in the background.
    pub fn check_idle(&self) -> Result<()> {
        self.layers.iter().try_for_each(LayerCache::check_idle)
    }

    /// Opens a transaction in every layer, or in none; room that was taken for it before a layer had none stays.
    pub fn begin(&mut self, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId> {
        self.check_idle()?;
        self.layers.iter_mut().try_for_each(|layer| layer.prepare_begin(parent, options))?;
        let mut begun = None;
        // Behind this, only memory of a few bytes can be refused.
        self.change(|layer| {
            begun = Some(layer.begin(parent, options)?);
            Ok(())
        })?;
        begun.ok_or_else(|| Error::argument("layers", "none", "at least one"))
    }

    /// Makes a change in every layer. When the first one refuses it, nothing has changed; what only a later one refuses, since
    /// memory ran out, leaves the sequence undefined.
    pub fn change(&mut self, mut change: impl FnMut(&mut LayerCache) -> Result<()>) -> Result<()> {
        self.check_idle()?;
        for index in 0..self.layers.len() {
            if let Err(refusal) = change(&mut self.layers[index]) {
                self.poisoned |= index > 0;
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Gives every layer what a snapshot holds, or none.
    pub fn restore(&mut self, snapshots: &[LayerSnapshot], length: u32) -> Result<()> {
        self.check_idle()?;
        let before = self.layers.iter().map(LayerCache::snapshot).collect::<Result<Vec<_>>>()?;
        for (index, snapshot) in snapshots.iter().enumerate() {
            if let Err(refusal) = self.layers[index].restore(snapshot) {
                let restored = self.layers[..index].iter_mut().zip(&before);
                self.poisoned |= restored.map(|(layer, before)| layer.restore(before)).any(|done| done.is_err());
                return Err(refusal);
            }
        }
        self.length = length;
        Ok(())
    }
}

impl ContiguousLayers {
    pub fn new(groups: &[LayerGroup], options: ContiguousOptions, dtype: DType, places: Vec<Place>) -> Result<Self> {
        // What a layer refuses is refused now.
        for group in groups {
            LayerCache::new(
                group,
                &ContiguousOptions { initial_capacity: 0, ..options },
                dtype,
                &places[group.device as usize],
            )?;
        }
        Ok(ContiguousLayers {
            groups: groups.to_vec(),
            options,
            dtype,
            places,
            sequences: BTreeMap::new(),
            next: 0,
            dropped: Dropped::default(),
        })
    }

    /// Where a layer stands among those of a sequence.
    pub(super) fn index(&self, place: LayerPlace) -> usize {
        let before = &self.groups[..place.group as usize];
        before.iter().map(|group| group.layers.len()).sum::<usize>() + place.index as usize
    }

    /// Undoes steps that were dropped.
    pub(super) fn undo_dropped(&mut self) {
        for (sequence, step) in std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner)) {
            if let Some(of) = self.sequences.get_mut(&sequence).filter(|of| of.is_stepping(step)) {
                of.drop_step();
            }
        }
    }

    /// A sequence, once steps that were dropped are undone.
    pub(super) fn sequence(&mut self, id: u64) -> Result<&mut Sequence> {
        self.undo_dropped();
        match self.sequences.get_mut(&id) {
            Some(of) if of.poisoned => Err(Error::Poisoned),
            Some(of) => Ok(of),
            None => Err(CoreError::SequenceNotFound { sequence: id }.into()),
        }
    }

    /// A sequence without an open step.
    pub(super) fn resting(&mut self, id: u64) -> Result<&mut Sequence> {
        let of = self.sequence(id)?;
        if of.step.is_some() { Err(CoreError::StepOpen { object: "sequence" }.into()) } else { Ok(of) }
    }

    /// A sequence without an open step or transaction.
    pub(super) fn idle(&mut self, id: u64) -> Result<&mut Sequence> {
        let of = self.resting(id)?;
        if of.open.is_empty() { Ok(of) } else { Err(CoreError::TransactionOpen { object: "sequence" }.into()) }
    }

    /// A sequence whose innermost transaction is this one, and the tokens before it.
    pub(super) fn drafting(&mut self, id: u64, transaction: TransactionId) -> Result<(&mut Sequence, u32)> {
        let of = self.resting(id)?;
        match of.open.last() {
            Some(&(last, before)) if last == transaction => Ok((of, before)),
            _ if of.open.iter().any(|(open, _)| *open == transaction) => {
                Err(CoreError::TransactionOpen { object: "transaction" }.into())
            }
            _ => Err(CoreError::TransactionClosed.into()),
        }
    }

    pub(super) fn new_sequence(&self) -> Result<Sequence> {
        let mut layers = Vec::new();
        for group in &self.groups {
            for _ in &group.layers {
                layers.push(LayerCache::new(group, &self.options, self.dtype, &self.places[group.device as usize])?);
            }
        }
        Ok(Sequence { layers, length: 0, open: Vec::new(), step: None, poisoned: false })
    }

    pub(super) fn add(&mut self, sequence: Sequence) -> u64 {
        self.next += 1;
        self.sequences.insert(self.next - 1, sequence);
        self.next - 1
    }
}
