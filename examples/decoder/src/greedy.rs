//! Greedy decoding: the most probable token at each step.

use candle_core::{D, Tensor};

use crate::cache::Cache;
use crate::decoder::Decoder;
use crate::error::Result;

/// The decoded tokens and their logits.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The tokens of each row.
    pub tokens: Vec<Vec<u32>>,
    /// The logits from which each token was chosen, `[rows, tokens, vocabulary]`.
    pub logits: Tensor,
}

/// Generates `count` tokens, at least one, for each row. `logits` are those of each row's last token: `[rows, vocabulary]`.
///
/// The last chosen token is not computed: the next step computes its keys and values.
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
