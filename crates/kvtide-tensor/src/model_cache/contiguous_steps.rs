//! Steps of a sequence in tensors: a transaction in every layer.

use std::sync::PoisonError;

use kvtide_core::{Error as CoreError, TransactionId};

use super::contiguous::{ContiguousLayers, Dropped, Sequence};
use super::shapes::{Queries, Shaped, restored};
use crate::attention::{AttendOptions, Attended, KvRows, attend};
use crate::error::{Error, Result};
use crate::kv_pair::SEQUENCE;
use crate::paged::StepTokens;
use crate::source::Source;
use crate::view::Kv;

/// An open step of one sequence.
#[derive(Debug)]
pub(super) struct LayersStep {
    sequence: u64,
    id: Option<TransactionId>,
    tokens: u32,
    parents: Option<Vec<i32>>,
    shown: Vec<Option<Kv>>,
    dropped: Dropped,
}

impl Drop for LayersStep {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push((self.sequence, id));
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
        let parents = tokens.parents.map(|parents| of.parents_in_step(parents)).transpose()?;
        let parent = of.open.last().map(|(id, _)| *id);
        let id = Some(of.begin(parent)?);
        of.step = id;
        let shown = vec![None; of.layers.len()];
        Ok(LayersStep { sequence, id, tokens: count, parents, shown, dropped })
    }

    /// The sequence of an open step, and its transaction. One that was dropped, or whose transaction was, took the step along.
    fn stepping(&mut self, step: &LayersStep) -> Result<(&mut Sequence, TransactionId)> {
        let id = step.id.ok_or(CoreError::TransactionClosed)?;
        match self.sequence(step.sequence) {
            Ok(of) if of.step == Some(id) => Ok((of, id)),
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
        if step.shown[index].is_some() {
            return Err(Error::argument("layer", "written already", "each layer once a step"));
        }
        let (k, v) = (Shaped::batched(k)?, Shaped::batched(v)?);
        let tokens = k.source().resolve("k", SEQUENCE)?.tokens();
        if tokens != step.tokens {
            let expected = format!("{} tokens, as the step has", step.tokens);
            return Err(Error::argument("k", format!("{tokens} tokens"), expected));
        }
        step.shown[index] = Some(of.layers[index].append(id, k.source(), v.source(), step.parents.as_deref())?);
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
    pub(super) fn undo_layers(&mut self, step: &mut LayersStep) {
        if let Some(id) = step.id.take()
            && let Ok(of) = self.sequence(step.sequence)
            && of.step == Some(id)
        {
            of.layers.iter_mut().for_each(|layer| layer.drop_draft(id));
            of.step = None;
        }
    }
}

impl LayersStep {
    /// Attends to what it has written in a layer.
    pub fn attend(&self, index: usize, q: &Source<'_>, options: &AttendOptions<'_>) -> Result<Attended> {
        self.id.ok_or(CoreError::TransactionClosed)?;
        let Some(kv) = &self.shown[index] else {
            return Err(Error::argument("layer", "not written", "a layer that the step has written"));
        };
        let queries = Queries::batched(q)?;
        let options = AttendOptions { query_offsets: None, ..options.clone() };
        restored(attend(queries.source(), KvRows::from(kv), &options)?, &queries)
    }
}

impl Sequence {
    /// Parents that are counted from the innermost transaction, counted from the step.
    fn parents_in_step(&self, parents: &[i32]) -> Result<Vec<i32>> {
        let Some(&(_, before)) = self.open.last() else {
            return Err(Error::argument("parents", "a tree", "none where no transaction is open"));
        };
        let nodes = (self.length - before) as i32;
        let shifted = parents.iter().map(|&parent| {
            if parent < nodes - 1 {
                let expected =
                    format!("at least {}: in tensors, a step's tokens follow the last token before it", nodes - 1);
                return Err(Error::argument("parents", parent, expected));
            }
            Ok(parent - nodes)
        });
        shifted.collect()
    }
}
