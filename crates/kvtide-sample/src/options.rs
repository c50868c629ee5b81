//! The options of sampling. Every option has a value with which it does nothing.

use crate::error::{Error, Result};

/// The largest vocabulary: sums of this many weights fit in 64 bits.
pub const VOCABULARY_MAX: u32 = 1 << 23;

/// The options of sampling.
///
/// ```
/// let options = kvtide_sample::Options { temperature: 0.7, top_p: 0.9, seed: 1, ..Default::default() };
/// assert!(options.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The divisor of logits. With 0, the token with the largest logit is always drawn; among equals, the lowest id.
    pub temperature: f32,
    /// Keeps only this many tokens with the largest logits; among equals, the lowest ids.
    pub top_k: Option<u32>,
    /// Keeps only the most probable tokens that together have this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps only tokens at least this many times as probable as the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Divides the logits of tokens that were seen, also in the prompt, if they are over 0, else multiplies them; 1
    /// changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of generated tokens.
    pub presence_penalty: f32,
    /// Subtracted from the logits of generated tokens once for each occurrence.
    pub frequency_penalty: f32,
    /// Added to the logits of these token ids, each of which may occur once. -Infinity rules a token out.
    pub bias: Vec<(u32, f32)>,
    /// Selects the random numbers.
    pub seed: u64,
    /// Requests log-probabilities of the drawn token and of this many of the most probable ones.
    pub logprobs: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

fn within(argument: &'static str, value: f32, fits: bool, expected: &'static str) -> Result<()> {
    if value.is_finite() && fits { Ok(()) } else { Err(Error::argument(argument, value, expected)) }
}

impl Options {
    /// Returns an error if an option has an invalid value.
    pub fn check(&self) -> Result<()> {
        within("temperature", self.temperature, self.temperature >= 0.0, "a finite number from 0 on")?;
        if self.top_k == Some(0) {
            return Err(Error::argument("topK", 0, "at least 1"));
        }
        within("topP", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "a number over 0, at most 1")?;
        within("minP", self.min_p, (0.0..=1.0).contains(&self.min_p), "a number from 0 to 1")?;
        let repetition = self.repetition_penalty;
        within("repetitionPenalty", repetition, repetition > 0.0, "a finite number over 0")?;
        within("presencePenalty", self.presence_penalty, true, "a finite number")?;
        within("frequencyPenalty", self.frequency_penalty, true, "a finite number")?;
        let mut ids: Vec<u32> = self.bias.iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::argument("bias", twice[0], "each token once"));
        }
        let wrong = self.bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY);
        wrong.map_or(Ok(()), |&(_, bias)| Err(Error::argument("bias", bias, "a finite number, or -Infinity")))
    }

    /// True if tokens are chosen by their logits alone.
    #[must_use]
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// True if some tokens are left out because of their probability.
    pub(crate) fn cuts(&self) -> bool {
        self.top_k.is_some() || self.top_p < 1.0 || self.min_p > 0.0
    }

    /// True if the result depends on the generated tokens.
    pub(crate) fn counts_generated(&self) -> bool {
        self.repeats() || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// True if the result depends on the tokens that were seen, also in the prompt.
    pub(crate) fn repeats(&self) -> bool {
        self.repetition_penalty != 1.0
    }
}
