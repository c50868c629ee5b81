//! Comparison with a reference: tokens exactly, floats within 1e-3.

use candle_core::Tensor;

use crate::case::{Failure, Outcome};

/// The largest accepted difference.
const TOLERANCE: f32 = 1e-3;

/// The number of compared tokens and floats, and the largest difference so far.
#[derive(Default)]
pub struct Agreement {
    tokens: usize,
    numbers: usize,
    worst: f32,
}

impl Agreement {
    /// Compares two tensors of floats, which must have the same shape.
    pub fn numbers(&mut self, what: &str, found: &Tensor, wanted: &Tensor) -> Result<(), Failure> {
        if found.dims() != wanted.dims() {
            return Err(format!("{what} has shape {:?}, expected {:?}", found.dims(), wanted.dims()).into());
        }
        let pairs = found.flatten_all()?.to_vec1::<f32>()?.into_iter().zip(wanted.flatten_all()?.to_vec1::<f32>()?);
        for (place, (found, wanted)) in pairs.enumerate() {
            let off = (found - wanted).abs();
            // NaN is never within the tolerance.
            if off.is_nan() || off > TOLERANCE {
                return Err(format!("{what} is {found} at {place}, expected {wanted}: {off:.1e} off").into());
            }
            self.worst = self.worst.max(off);
            self.numbers += 1;
        }
        Ok(())
    }

    /// Compares two lists of tokens.
    pub fn tokens(&mut self, what: &str, found: &[u32], wanted: &[u32]) -> Result<(), Failure> {
        if let Some(place) = (0..found.len().max(wanted.len())).find(|&place| found.get(place) != wanted.get(place)) {
            let shown = |tokens: &[u32]| tokens.get(place).map_or("none".to_owned(), u32::to_string);
            return Err(format!("{what}: token {place} is {}, expected {}", shown(found), shown(wanted)).into());
        }
        self.tokens += found.len();
        Ok(())
    }

    /// Returns that everything agreed, or that there was no reference.
    pub fn outcome(&self, without: &str) -> Outcome {
        match (self.tokens, self.numbers) {
            (0, 0) => Outcome::Skipped(format!("no reference for {without}")),
            (0, numbers) => Outcome::Passed(format!("{numbers} numbers at most {:.1e} off", self.worst)),
            (tokens, 0) => Outcome::Passed(format!("{tokens} tokens equal")),
            (tokens, numbers) => {
                Outcome::Passed(format!("{tokens} tokens equal, {numbers} numbers at most {:.1e} off", self.worst))
            }
        }
    }
}
