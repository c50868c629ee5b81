//! What a file or a store can refuse.

use std::path::Path;

use kvtide_core::{Code, Detail, details};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal. What was there before, a file or a cache, is as it was.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the cache refused.
    #[error(transparent)]
    Cache(#[from] kvtide_tensor::Error),
    /// A file cannot be read or written.
    #[error("cannot {operation} {path}: {reason}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or folder.
        path: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// What was read is damaged, cut short, or something else.
    #[error("{what} is {found}, expected {expected}")]
    Corrupt {
        /// Which part of it.
        what: String,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// What was saved is of another model, form or cache.
    #[error("{field} is {found}, expected {expected}")]
    Incompatible {
        /// The field of the identity.
        field: String,
        /// What was saved.
        found: String,
        /// What it is here.
        expected: String,
    },
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, reason: std::io::Error) -> Self {
        Error::Io { operation, path: path.display().to_string(), reason }
    }

    pub(crate) fn corrupt(what: impl ToString, found: impl ToString, expected: impl ToString) -> Self {
        Error::Corrupt { what: what.to_string(), found: found.to_string(), expected: expected.to_string() }
    }

    /// What a cache refuses of what was read: the file's fault, unless memory or blocks are lacking, or somebody uses the cache.
    pub(crate) fn of_content(error: kvtide_tensor::Error) -> Self {
        match error.code() {
            Code::InvalidArgument
            | Code::ShapeMismatch
            | Code::DtypeMismatch
            | Code::DimMismatch
            | Code::InvalidPath
            | Code::UnsupportedModel
            | Code::CacheOverflow => Error::corrupt("the content", error, "what can have been saved"),
            _ => error.into(),
        }
    }

    pub(crate) fn incompatible(field: impl ToString, found: impl ToString, expected: impl ToString) -> Self {
        Error::Incompatible { field: field.to_string(), found: found.to_string(), expected: expected.to_string() }
    }

    /// The stable name of the refusal.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Cache(error) => error.code(),
            Error::Io { .. } => Code::IoError,
            Error::Corrupt { .. } => Code::Corrupt,
            Error::Incompatible { .. } => Code::Incompatible,
        }
    }

    /// Its fields, named as users of every language see them.
    #[must_use]
    pub fn details(&self) -> Vec<Detail> {
        match self {
            Error::Cache(error) => error.details(),
            Error::Io { operation, path, reason } => {
                details![operation: *operation, path: path, reason: &reason.to_string()]
            }
            Error::Corrupt { what, found, expected } => details![part: what, value: found, expected: expected],
            Error::Incompatible { field, found, expected } => {
                details![field: field, value: found, expected: expected]
            }
        }
    }
}

impl From<kvtide_core::Error> for Error {
    fn from(error: kvtide_core::Error) -> Self {
        Error::Cache(error.into())
    }
}
