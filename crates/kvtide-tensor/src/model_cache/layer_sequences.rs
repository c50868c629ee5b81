//! Sequences in tensors of their own: which there are, and which may be changed now.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_core::model::{LayerGroup, LayerPlace};
use kvtide_core::{Error as CoreError, TransactionId};

use super::layer_cache::LayerCache;
use super::options::ContiguousOptions;
use crate::dtype::DType;
use crate::error::Result;
use crate::memory::Budget;

/// All sequences.
#[derive(Debug)]
pub(super) struct ContiguousLayers {
    pub(super) groups: Vec<LayerGroup>,
    pub(super) options: ContiguousOptions,
    pub(super) dtype: DType,
    pub(super) budget: Arc<Budget>,
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
    pub step: Option<TransactionId>,
}

impl ContiguousLayers {
    pub fn new(groups: &[LayerGroup], options: ContiguousOptions, dtype: DType, budget: Arc<Budget>) -> Result<Self> {
        // What a layer refuses is refused now.
        for group in groups {
            LayerCache::new(group, &ContiguousOptions { initial_capacity: 0, ..options }, dtype, &budget)?;
        }
        Ok(ContiguousLayers {
            groups: groups.to_vec(),
            options,
            dtype,
            budget,
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

    /// A sequence, once steps of it that were dropped are undone.
    pub(super) fn sequence(&mut self, id: u64) -> Result<&mut Sequence> {
        for (sequence, step) in std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner)) {
            if let Some(of) = self.sequences.get_mut(&sequence).filter(|of| of.step == Some(step)) {
                of.layers.iter_mut().for_each(|layer| layer.drop_draft(step));
                of.step = None;
            }
        }
        self.sequences.get_mut(&id).ok_or_else(|| CoreError::SequenceNotFound { sequence: id }.into())
    }

    /// A sequence without an open step.
    pub(super) fn resting(&mut self, id: u64) -> Result<&mut Sequence> {
        let of = self.sequence(id)?;
        if of.step.is_some() { Err(CoreError::TransactionOpen { object: "sequence" }.into()) } else { Ok(of) }
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
                layers.push(LayerCache::new(group, &self.options, self.dtype, &self.budget)?);
            }
        }
        Ok(Sequence { layers, length: 0, open: Vec::new(), step: None })
    }

    pub(super) fn add(&mut self, sequence: Sequence) -> u64 {
        self.next += 1;
        self.sequences.insert(self.next - 1, sequence);
        self.next - 1
    }
}
