//! Shared by most cases: run a prompt in chunks, continue greedily, and compare.

use candle_core::Tensor;
use decoder::{Cache, Decoder, greedy};

use crate::agreement::Agreement;
use crate::case::Failure;
use crate::folder::Reference;

/// The number of tokens per chunk of a prompt; `None` for the whole prompt at once.
pub type Chunk = Option<usize>;

/// Computes `tokens`, and returns the logits of all of them, `[tokens, vocabulary]`.
pub fn prefill(decoder: &Decoder, cache: &mut dyn Cache, tokens: &[u32], chunk: Chunk) -> Result<Tensor, Failure> {
    let pieces = tokens.chunks(chunk.unwrap_or(tokens.len()).max(1));
    let run = |piece: &[u32]| Ok(decoder.logits(&decoder.forward(piece, cache)?)?.squeeze(0)?);
    let logits = pieces.map(run).collect::<Result<Vec<_>, Failure>>()?;
    Ok(Tensor::cat(&logits, 0)?)
}

/// The expected results after a prompt; floats are optional.
pub struct Expected<'a> {
    /// The prompt's name, for messages.
    pub prompt: &'a str,
    /// The logits of the prompt's last tokens.
    pub logits: Option<&'a Tensor>,
    /// The greedy tokens after it.
    pub greedy: &'a [u32],
    /// The logits from which each token was chosen.
    pub greedy_logits: Option<&'a Tensor>,
}

/// Compares the logits of a prompt's tokens, continues greedily, and compares the continuation.
pub fn check(
    decoder: &Decoder,
    cache: &mut dyn Cache,
    logits: &Tensor,
    expected: &Expected<'_>,
    agreement: &mut Agreement,
) -> Result<(), Failure> {
    let (prompt, tokens) = (expected.prompt, logits.dim(0)?);
    if let Some(wanted) = expected.logits {
        let first = wanted.dim(0)?.checked_sub(tokens).ok_or("there are more logits than in the reference")?;
        agreement.numbers(&format!("logits.{prompt}"), logits, &wanted.narrow(0, first, tokens)?)?;
    }
    if expected.greedy.is_empty() {
        return Ok(());
    }
    let found = greedy(decoder, cache, logits.narrow(0, tokens - 1, 1)?, expected.greedy.len())?;
    agreement.tokens(&format!("greedy.{prompt}"), &found.tokens[0], expected.greedy)?;
    if let Some(wanted) = expected.greedy_logits {
        agreement.numbers(&format!("greedy_logits.{prompt}"), &found.logits.squeeze(0)?, wanted)?;
    }
    Ok(())
}

/// Calls [`check`] for a prompt of the reference; `logits` belong to its last tokens.
pub fn check_prompt(
    reference: &Reference,
    cache: &mut dyn Cache,
    prompt: &str,
    logits: &Tensor,
    agreement: &mut Agreement,
) -> Result<(), Failure> {
    let expected = Expected {
        prompt,
        logits: reference.tensor(&format!("logits.{prompt}")),
        greedy: &reference.greedy(prompt).unwrap_or_default(),
        greedy_logits: reference.tensor(&format!("greedy_logits.{prompt}")),
    };
    check(&reference.decoder, cache, logits, &expected, agreement)
}
