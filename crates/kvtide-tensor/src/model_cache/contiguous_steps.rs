//! Steps of a sequence in tensors: a transaction in every layer.

use std::sync::PoisonError;

use kvtide_core::{Error as CoreError, TransactionId, Tree, counted};

use super::layer_cache::LayerCache;
use super::layer_sequences::{ContiguousLayers, Dropped, Sequence};
use super::shapes::Shaped;
use crate::error::{Error, Result};
use crate::kv_pair::SEQUENCE;
use crate::paged::{StepTokens, not_written};
use crate::source::Source;
use crate::view::Kv;

/// An open step of one sequence.
#[derive(Debug)]
pub(super) struct LayersStep {
    sequence: u64,
    id: Option<TransactionId>,
    tokens: u32,
    parents: Option<Vec<i32>>,
    dropped: Dropped,
}

/// What a sequence knows of the step that is open on it: what was written so far goes with the sequence, whoever holds the step.
#[derive(Debug)]
pub(super) struct Stepping {
    id: TransactionId,
    /// What each layer shows, once it is written.
    shown: Vec<Option<Kv>>,
}

impl Drop for LayersStep {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push((self.sequence, id));
        }
    }
}

impl Sequence {
    /// Whether this step is the one that is open.
    pub(super) fn is_stepping(&self, id: TransactionId) -> bool {
        self.step.as_ref().is_some_and(|open| open.id == id)
    }

    /// Ends the step that is open, if one is, as if it had never been.
    pub(super) fn drop_step(&mut self) {
        if let Some(open) = self.step.take() {
            self.layers.iter_mut().for_each(|layer| layer.drop_draft(open.id));
        }
    }
}

impl ContiguousLayers {
    /// Opens a transaction in every layer of one sequence.
    pub(super) fn begin_layers(&mut self, tokens: StepTokens<'_>) -> Result<LayersStep> {
        let &[sequence] = tokens.sequences else {
            let expected = "1: in tensors, each sequence has steps of its own";
            return Err(Error::argument("sequences.length", tokens.sequences.len(), expected));
        };
        let count = match tokens.offsets {
            None => 1,
            Some(&[0, count]) => count,
            Some(offsets) => {
                return Err(Error::argument("offsets", format!("{offsets:?}"), "0, and the number of tokens"));
            }
        };
        let dropped = self.dropped.clone();
        let of = self.resting(sequence)?;
        let is_tree = tokens.parents.is_some_and(|parents| !parents.is_empty());
        if is_tree && of.open.is_empty() {
            return Err(Error::argument("parents", "a tree", "none where no transaction is open"));
        }
        let parent = of.open.last().map(|(id, _)| *id);
        let id = of.begin(parent, Default::default())?;
        // Its nodes are those of the transaction that it is in.
        of.layers.iter_mut().filter(|_| parent.is_some()).for_each(LayerCache::count_from_below);
        of.step = Some(Stepping { id, shown: vec![None; of.layers.len()] });
        let parents = tokens.parents.map(<[i32]>::to_vec);
        Ok(LayersStep { sequence, id: Some(id), tokens: count, parents, dropped })
    }

    /// The sequence of an open step, and its transaction. One that was dropped, or whose transaction was, took the step along.
    pub(super) fn stepping(&mut self, step: &LayersStep) -> Result<(&mut Sequence, TransactionId)> {
        let id = step.id.ok_or(CoreError::TransactionClosed)?;
        match self.sequence(step.sequence) {
            Ok(of) if of.is_stepping(id) => Ok((of, id)),
            Err(Error::Poisoned) => Err(Error::Poisoned),
            _ => Err(CoreError::StaleStep { sequence: step.sequence }.into()),
        }
    }

    /// Writes the tokens of a layer.
    pub(super) fn write_rows(
        &mut self,
        step: &mut LayersStep,
        index: usize,
        k: Source<'_>,
        v: Source<'_>,
    ) -> Result<()> {
        let (of, id) = self.stepping(step)?;
        of.check_idle()?;
        if of.step.as_ref().is_some_and(|open| open.shown[index].is_some()) {
            return Err(Error::argument("layer", "written already", "each layer once a step"));
        }
        let (k, v) = (Shaped::batched(k)?, Shaped::batched(v)?);
        let tokens = k.source().resolve("k", SEQUENCE)?.tokens();
        if tokens != step.tokens {
            let expected = format!("{}, as the step has", counted(step.tokens.into(), "token"));
            return Err(Error::argument("k", counted(tokens.into(), "token"), expected));
        }
        let shown = of.layers[index].append(id, k.source(), v.source(), step.parents.as_deref())?;
        of.step.iter_mut().for_each(|open| open.shown[index] = Some(shown.clone()));
        Ok(())
    }

    /// Its tokens count now, in every layer.
    pub(super) fn commit_layers(&mut self, step: &mut LayersStep) -> Result<()> {
        let (of, id) = self.stepping(step)?;
        of.change(|layer| layer.commit(id, None))?;
        (of.step, of.length, step.id) = (None, of.length + step.tokens, None);
        Ok(())
    }

    /// As if it had never been.
    pub(super) fn undo_layers(&mut self, step: &mut LayersStep) -> Result<()> {
        if let Some(id) = step.id
            && let Ok(of) = self.sequence(step.sequence)
            && of.is_stepping(id)
        {
            of.check_idle()?;
            of.drop_step();
        }
        step.id = None;
        Ok(())
    }

    /// What it has written in a layer, behind what was there, and the tree that the last of it is.
    pub(super) fn shown(&mut self, step: &LayersStep, index: usize) -> Result<(Kv, Option<Tree>)> {
        let (of, _) = self.stepping(step)?;
        let shown = of.step.as_ref().and_then(|open| open.shown[index].clone());
        let kv = shown.ok_or_else(not_written)?;
        Ok((kv, of.layers[index].tree()?))
    }
}
