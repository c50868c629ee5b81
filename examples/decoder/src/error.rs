//! What can go wrong: with a folder, with a token, with a cache.

use std::path::PathBuf;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cache's refusal.
    #[error(transparent)]
    Cache(#[from] kvtide_tensor::Error),
    /// The description's refusal.
    #[error(transparent)]
    Model(#[from] kvtide_core::Error),
    /// The tensors' refusal.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A file that cannot be read.
    #[error("{} cannot be read: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A field of `config.json` that this decoder cannot go by.
    #[error("{field} is {value}, expected {expected}")]
    Config {
        /// Which.
        field: String,
        /// What it is.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// A weight that is missing, or of another shape than the configuration says.
    #[error("the weight {name} {problem}")]
    Weight {
        /// Which.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A token that the model does not have.
    #[error("token {token} at {place} is not below {vocabulary}, the size of the vocabulary")]
    Token {
        /// Its number.
        token: u32,
        /// Where it stands.
        place: usize,
        /// How many there are.
        vocabulary: usize,
    },
    /// A step that was not taken as it should be.
    #[error("the step cannot go on: {reason}")]
    Step {
        /// Why.
        reason: String,
    },
}

impl Error {
    /// A field that cannot be used.
    pub(crate) fn config(field: &str, value: impl ToString, expected: impl Into<String>) -> Self {
        Error::Config { field: field.to_owned(), value: value.to_string(), expected: expected.into() }
    }

    /// A call out of turn.
    pub(crate) fn step(reason: impl Into<String>) -> Self {
        Error::Step { reason: reason.into() }
    }
}
