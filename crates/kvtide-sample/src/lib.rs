//! Samples tokens from a language model's logits. Pure computation: no runtime, no tensor, no clock, no hidden state.
//!
//! The steps on a row of logits, in this order:
//!
//! | step | why here |
//! | --- | --- |
//! | repetition, presence and frequency penalties | they depend on the model's own output: the repetition penalty divides or multiplies by sign, so it must see the model's logits without a bias |
//! | bias | the caller's decision about a token overrides the automatic steps |
//! | mask of allowed tokens | no later step allows a token that a grammar rules out |
//! | *log-probabilities* | they cover all allowed tokens, and do not depend on temperature and cuts |
//! | temperature | top-p and min-p use the probabilities with which tokens are drawn |
//! | top-k | does not depend on the other cuts, and leaves them few tokens |
//! | top-p | a share of the probability that top-k left |
//! | min-p | relative to the most probable token, so earlier cuts do not change its meaning |
//! | draw | |
//!
//! transformers uses the same order. vLLM applies min-p before top-k and top-p, which then see fewer tokens; llama.cpp
//! applies the temperature last, so that cuts do not depend on it.
//!
//! Guarantees:
//!
//! - Drawing changes nothing; a call that returns an error has changed nothing.
//! - The same seed, position, logits and tokens give the same token on every platform ([`Options::seed`]): probabilities are
//!   integers, computed by additions and multiplications of doubles only.
//! - Nothing is sorted: a row is read a few times.
//! - Among tokens with the same logit, the one with the lowest id comes first.
//!
//! With the feature `grammar`, the module [`grammar`] computes masks for JSON schemas, regular expressions and
//! context-free grammars.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod cut;
mod error;
#[cfg(feature = "grammar")]
pub mod grammar;
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
pub use row::{Mask, Peak, Row};
pub use sampler::{Sampled, Sampler};
pub use verify::Drafts;
pub use workspace::Workspace;

/// Tests the example of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
