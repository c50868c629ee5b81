//! What can be refused.

use kvtide_core::{Code, Detail, details};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A caller's mistake, or memory that is lacking.
    #[error(transparent)]
    Core(#[from] kvtide_core::Error),
    /// What was received is not what was promised.
    #[error("{what} is {found}, expected {expected}")]
    Corrupt {
        /// Which part of it.
        what: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An endpoint cannot be used.
    #[error("cannot {operation} {endpoint}: {reason}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// With which endpoint.
        endpoint: String,
        /// What was said.
        reason: String,
    },
}

impl Error {
    pub(crate) fn corrupt(what: &'static str, found: impl ToString, expected: &'static str) -> Self {
        Error::Corrupt { what, found: found.to_string(), expected }
    }

    /// The stable name of the refusal.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Core(error) => error.code(),
            Error::Corrupt { .. } => Code::Corrupt,
            Error::Io { .. } => Code::IoError,
        }
    }

    /// Its fields, named as users of every language see them.
    #[must_use]
    pub fn details(&self) -> Vec<Detail> {
        match self {
            Error::Core(error) => error.details(),
            Error::Corrupt { what, found, expected } => details![part: *what, value: found, expected: *expected],
            Error::Io { operation, endpoint, reason } => {
                details![operation: *operation, path: endpoint, reason: reason]
            }
        }
    }
}
