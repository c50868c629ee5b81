//! Sequences of a call, and how many of its tokens each of them gets.

use kvtide_core::Error;
use kvtide_tensor::StepTokens;

use crate::border::number::{count, whole};
use crate::border::refusal::Outcome;

/// The sequences of a call.
pub(crate) struct SequenceBatch {
    pub sequences: Vec<u64>,
    /// Where the tokens of each begin, and where the last ones end; none: each gets one.
    pub offsets: Option<Vec<u32>>,
}

impl SequenceBatch {
    /// Reads one of so many numbers: how many sequences, they, and their offsets.
    pub fn read(batch: &[f64], numbers: f64) -> Outcome<Self> {
        let refused = || Error::argument("sequences", batch.len(), "as many numbers as the call says");
        let batch = batch.get(..count("sequences", numbers)? as usize).ok_or_else(refused)?;
        let (&sequences, rest) = batch.split_first().ok_or_else(refused)?;
        let (ids, offsets) = rest.split_at_checked(count("sequences", sequences)? as usize).ok_or_else(refused)?;
        let sequences = ids.iter().map(|&id| whole("sequences", id)).collect::<Outcome<_>>()?;
        let offsets = offsets.iter().map(|&offset| count("offsets", offset)).collect::<Outcome<Vec<_>>>()?;
        Ok(SequenceBatch { sequences, offsets: (!offsets.is_empty()).then_some(offsets) })
    }

    /// The tokens of a step.
    pub fn step<'a>(&'a self, parents: Option<&'a [i32]>) -> StepTokens<'a> {
        StepTokens { sequences: &self.sequences, offsets: self.offsets.as_deref(), parents }
    }
}
