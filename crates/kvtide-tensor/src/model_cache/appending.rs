//! Tokens of all layers in one call: a step that begins, is written and committed at once, or leaves no trace.
//!
//! ```text
//! check the sequence and every layer -> begin_step -> write_layer, each -> commit_step      refused anywhere: undo_step
//! ```
//!
//! A step that has begun may have evicted what others could find, and copied what they hold: so what a caller can get wrong is looked
//! at before. O(tokens) in every layer.

use kvtide_core::{TransactionId, counted};

use super::ModelCache;
use super::stepping::is_own;
use crate::error::{Error, Result};
use crate::paged::StepTokens;
use crate::source::Source;

/// Tokens of all layers for one sequence.
#[derive(Clone, Copy, Debug)]
pub struct ModelTokens<'a> {
    /// K and V of each layer that has its own, as [`ModelCache::write_layer`] takes them.
    pub layers: &'a [[Source<'a>; 2]],
    /// For each token the one of the transaction that it follows, as [`StepTokens::parents`] says.
    pub parents: Option<&'a [i32]>,
    /// The ids of the tokens, where they are known.
    pub ids: Option<&'a [u32]>,
}

impl ModelCache {
    /// Appends tokens to a sequence, or nothing: refused while a transaction is open, unless it is `draft`, which then has them.
    pub fn append_to(&mut self, sequence: u64, draft: Option<TransactionId>, tokens: ModelTokens<'_>) -> Result<()> {
        match draft {
            Some(draft) => self.check_draft(sequence, draft)?,
            None => self.check_idle(sequence)?,
        }
        let count = tokens.layers.first().map_or(0, |[k, _]| k.tokens());
        let count = u32::try_from(count)
            .map_err(|_| Error::argument("k", counted(count as u64, "token"), "at most 2^32 - 1"))?;
        if let Some(ids) = tokens.ids
            && ids.len() != count as usize
        {
            return Err(Error::argument("tokens.length", ids.len(), format!("{count}, one for each token")));
        }
        if let Some(parents) = tokens.parents
            && parents.len() != count as usize
        {
            return Err(Error::argument("parents.length", parents.len(), format!("{count}, one for each token")));
        }
        let step = StepTokens { sequences: &[sequence], offsets: Some(&[0, count]), parents: tokens.parents };
        self.append(step, tokens.layers, tokens.ids)
    }

    /// Appends tokens of all layers at once: K and V of each layer that has its own, as [`ModelCache::write_layer`] takes them; all
    /// of it, or nothing. `ids` are those of the tokens, where they are known.
    pub fn append(&mut self, tokens: StepTokens<'_>, layers: &[[Source<'_>; 2]], ids: Option<&[u32]>) -> Result<()> {
        let own: Vec<u32> =
            (0..).zip(self.model.layers()).filter(|(_, of)| is_own(of)).map(|(layer, _)| layer).collect();
        if layers.len() != own.len() {
            let expected = format!("{}, one for each layer with keys and values of its own", own.len());
            return Err(Error::argument("layers.length", layers.len(), expected));
        }
        let count = tokens.count();
        if let Some(ids) = ids
            && ids.len() != count as usize
        {
            return Err(Error::argument("tokens.length", ids.len(), format!("{count}, one for each token")));
        }
        for (place, (&layer, [k, v])) in own.iter().zip(layers).enumerate() {
            let checked = self.store.check_rows(self.model.place(layer), [k, v], count);
            checked.map_err(|error| error.in_layer(place))?;
        }
        let mut step = self.begin_step(tokens)?;
        let mut written = || -> Result<()> {
            for (place, (&layer, [k, v])) in own.iter().zip(layers).enumerate() {
                let written = self.write_layer(&mut step, layer, k.clone(), v.clone());
                written.map_err(|error| error.in_layer(place))?;
            }
            self.commit_step(&mut step, ids)
        };
        match written() {
            Ok(()) => Ok(()),
            Err(refusal) => {
                // A cache that is poisoned by it says so at the next call.
                drop(self.undo_step(&mut step));
                Err(refusal)
            }
        }
    }
}
