//! Tokens drawn from a language model's logits. Pure numbers: no runtime, no tensor, no clock, no hidden state.
//!
//! What is done to a row of logits, in this order:
//!
//! | step | why here |
//! | --- | --- |
//! | repetition, presence and frequency penalties | they are about what the model said: the repetition penalty divides or multiplies by sign, so it must see the model's own logits, and not a bias |
//! | bias | the caller's word on a token comes after all that is automatic |
//! | mask of allowed tokens | nothing brings back what a grammar rules out |
//! | *log-probabilities* | of what could be said, and comparable whatever the temperature and the cuts are |
//! | temperature | top-p and min-p speak of the probabilities that tokens are drawn with |
//! | top-k | does not depend on the others, and leaves them little |
//! | top-p | of the probability that top-k left, as a whole |
//! | min-p | relative to the most probable token, so it means the same whatever was cut before |
//! | draw | |
//!
//! transformers has the same order. vLLM puts min-p before top-k and top-p, which then speak of fewer tokens; llama.cpp puts the
//! temperature last, so that cuts do not depend on it.
//!
//! What always holds:
//!
//! - Calls that draw change nothing; a refusal leaves everything as it was.
//! - The same seed, position, logits and tokens give the same token on every platform ([`Options::seed`]): probabilities are whole
//!   numbers, made by additions and multiplications of doubles alone.
//! - Nothing is sorted: a row is gone through a few times.
//! - Of tokens with the same logit, the one with the lowest id comes first.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod cut;
mod error;
mod lookup;
mod options;
mod random;
mod row;
mod sampler;
mod seen;
mod verify;
mod weight;
mod workspace;

pub use error::{Error, Result};
pub use lookup::{NGRAM_MAX, PromptLookup};
pub use options::{Options, VOCABULARY_MAX};
pub use row::Mask;
pub use sampler::{Sampled, Sampler};
pub use verify::Drafts;
pub use workspace::Workspace;

/// The example of the page that registries show.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
