//! How tokens are drawn: every option has a value at which it does nothing.

use crate::error::{Error, Result};

/// The most tokens that a vocabulary may have: sums of so many weights fit in 64 bits.
pub const VOCABULARY_MAX: u32 = 1 << 23;

/// How tokens are drawn.
///
/// ```
/// let options = kvtide_sample::Options { temperature: 0.7, top_p: 0.9, seed: 1, ..Default::default() };
/// assert!(options.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What logits are divided by. 0: always the token with the largest logit, the first of equals.
    pub temperature: f32,
    /// Only so many tokens with the largest logits, the first of equals.
    pub top_k: Option<u32>,
    /// Only the most probable tokens that together have this probability; 1: all.
    pub top_p: f32,
    /// Only tokens at least this many times as probable as the most probable one; 0: all.
    pub min_p: f32,
    /// Logits of tokens that were seen, in the prompt too, are divided by this where they are over 0, else multiplied; 1: none.
    pub repetition_penalty: f32,
    /// Taken off the logits of tokens that were generated.
    pub presence_penalty: f32,
    /// Taken off the logits of tokens once for each time that they were generated.
    pub frequency_penalty: f32,
    /// Added to the logits of tokens: their ids, each once. -Infinity rules a token out.
    pub bias: Vec<(u32, f32)>,
    /// Which random numbers are used.
    pub seed: u64,
    /// Log-probabilities of the drawn token and of so many of the most probable ones.
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
    /// Refuses values that an option cannot have.
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

    /// Whether a token is found by its logit alone.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether some tokens are left out by their probability.
    pub(crate) fn cuts(&self) -> bool {
        self.top_k.is_some() || self.top_p < 1.0 || self.min_p > 0.0
    }

    /// Whether it matters what was generated.
    pub(crate) fn counts_generated(&self) -> bool {
        self.repeats() || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether it matters what was seen, in the prompt too.
    pub(crate) fn repeats(&self) -> bool {
        self.repetition_penalty != 1.0
    }
}
