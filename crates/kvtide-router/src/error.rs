//! Errors of this crate.

use kvtide_core::{Code, Detail, details};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid argument, or too little memory.
    #[error(transparent)]
    Core(#[from] kvtide_core::Error),
    /// Received data is malformed.
    #[error("{what} is {found}, expected {expected}")]
    Corrupt {
        /// The malformed part.
        what: &'static str,
        /// Its value.
        found: String,
        /// The expected value.
        expected: &'static str,
    },
    /// An endpoint cannot be used.
    #[error("cannot {operation} {endpoint}: {reason}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The endpoint.
        endpoint: String,
        /// The operating system's or the parser's reason.
        reason: String,
    },
}

impl Error {
    pub(crate) fn corrupt(what: &'static str, found: impl ToString, expected: &'static str) -> Self {
        Error::Corrupt { what, found: found.to_string(), expected }
    }

    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Core(error) => error.code(),
            Error::Corrupt { .. } => Code::Corrupt,
            Error::Io { .. } => Code::IoError,
        }
    }

    /// The fields of the error, under the names that all language bindings use.
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
