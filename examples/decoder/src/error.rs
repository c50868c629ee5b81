//! Errors of folders, tokens and caches.

use std::path::PathBuf;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the cache.
    #[error(transparent)]
    Cache(#[from] kvtide_tensor::Error),
    /// An error of the model description.
    #[error(transparent)]
    Model(#[from] kvtide_core::Error),
    /// An error of candle.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A file that cannot be read.
    #[error("{} cannot be read: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// A field of `config.json` with a missing or unsupported value.
    #[error("{field} is {value}, expected {expected}")]
    Config {
        /// The field's name.
        field: String,
        /// Its value.
        value: String,
        /// The supported values.
        expected: String,
    },
    /// A weight that is missing, or has another shape than the configuration implies.
    #[error("the weight {name} {problem}")]
    Weight {
        /// The weight's name.
        name: String,
        /// The problem.
        problem: String,
    },
    /// A token outside the vocabulary.
    #[error("token {token} at {place} is not below {vocabulary}, the size of the vocabulary")]
    Token {
        /// The token's id.
        token: u32,
        /// Its index in the input.
        place: usize,
        /// The size of the vocabulary.
        vocabulary: usize,
    },
    /// A wrong call of a step.
    #[error("invalid step: {reason}")]
    Step {
        /// The problem.
        reason: String,
    },
}

impl Error {
    /// Makes an error for a field of `config.json`.
    pub(crate) fn config(field: &str, value: impl ToString, expected: impl Into<String>) -> Self {
        Error::Config { field: field.to_owned(), value: value.to_string(), expected: expected.into() }
    }

    /// Makes an error for a wrong call of a step.
    pub(crate) fn step(reason: impl Into<String>) -> Self {
        Error::Step { reason: reason.into() }
    }
}
