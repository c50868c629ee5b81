//! What cannot be made, with the option that is at fault. No secret is in it: neither passwords nor keys, nor URLs, which may have both.

use kvtide_core::{Code, Detail, details};

/// The result of making something.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something cannot be made. Calls of a store that was made never fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An option has a value that it cannot have.
    #[error("{argument} is {value}, expected {expected}")]
    InvalidArgument {
        /// The option.
        argument: &'static str,
        /// What was given, or what sort of thing where it may be a secret.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Certificates cannot be read.
    #[error("cannot read {what}: {reason}")]
    Certificates {
        /// Which ones.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}

impl Error {
    pub(crate) fn argument(argument: &'static str, value: impl ToString, expected: &'static str) -> Self {
        Error::InvalidArgument { argument, value: value.to_string(), expected }
    }

    /// The stable name of the refusal.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::InvalidArgument { .. } => Code::InvalidArgument,
            Error::Certificates { .. } => Code::IoError,
        }
    }

    /// Its fields, named as users of every language see them.
    #[must_use]
    pub fn details(&self) -> Vec<Detail> {
        match self {
            Error::InvalidArgument { argument, value, expected } => {
                details![argument: *argument, value: value, expected: *expected]
            }
            Error::Certificates { what, reason } => {
                details![operation: "read", path: *what, reason: reason]
            }
        }
    }
}
