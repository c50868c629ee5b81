//! Decoding: each time the most likely token.

use candle_core::{D, Tensor};

use crate::cache::Cache;
use crate::decoder::Decoder;
use crate::error::Result;

/// What was decoded.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The tokens of each row.
    pub tokens: Vec<Vec<u32>>,
    /// The logits that each was chosen from, `[rows, tokens, vocabulary]`.
    pub logits: Tensor,
}

/// Adds `count` tokens, at least one, to each row. `logits` are those of the last token of each: `[rows, vocabulary]`.
///
/// The last token that is chosen is not run: its keys and values are those of the next step.
pub fn greedy(decoder: &Decoder, cache: &mut dyn Cache, logits: Tensor, count: usize) -> Result<Decoded> {
    let (mut chosen, mut seen) = (vec![Vec::with_capacity(count); cache.rows()], vec![logits]);
    loop {
        let next = seen[seen.len() - 1].argmax(D::Minus1)?.to_vec1::<u32>()?;
        for (row, &token) in chosen.iter_mut().zip(&next) {
            row.push(token);
        }
        if seen.len() >= count {
            return Ok(Decoded { tokens: chosen, logits: Tensor::stack(&seen, 1)? });
        }
        let hidden = decoder.forward(&next, cache)?;
        seen.push(decoder.last_logits(&hidden)?);
    }
}
