//! The errors of files and of stores.

use std::path::Path;

use kvtide_core::{Code, Detail, DetailValue, details};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refused call. The file or cache that existed before is unchanged. One exception: if the folder cannot be flushed
/// after a save, the new file is in its place, and whole.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cache refused the call.
    #[error(transparent)]
    Cache(#[from] kvtide_tensor::Error),
    /// A file cannot be read or written.
    #[error("cannot {operation} {path}: {reason}")]
    Io {
        /// The operation that was tried.
        operation: &'static str,
        /// The file or folder.
        path: String,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The data is damaged, cut short, or of another kind.
    #[error("{what} is {found}, expected {expected}")]
    Corrupt {
        /// The part that is wrong.
        what: String,
        /// Its value.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// The data was saved from another model, form or cache.
    #[error("{field} is {found}, expected {expected}")]
    Incompatible {
        /// The field of the identity.
        field: String,
        /// The saved value.
        found: String,
        /// The cache's value.
        expected: String,
    },
}

impl Error {
    /// Creates an error for an argument that is out of bounds.
    pub fn argument(argument: &'static str, value: impl Into<DetailValue>, expected: impl Into<String>) -> Self {
        Error::Cache(kvtide_tensor::Error::argument(argument, value, expected))
    }

    /// Creates an error for an operation on a file or a folder that failed.
    #[must_use]
    pub fn io(operation: &'static str, path: &Path, reason: std::io::Error) -> Self {
        Error::Io { operation, path: path.display().to_string(), reason }
    }

    pub(crate) fn corrupt(what: impl ToString, found: impl ToString, expected: impl ToString) -> Self {
        Error::Corrupt { what: what.to_string(), found: found.to_string(), expected: expected.to_string() }
    }

    /// Converts a cache's refusal of data from a file: the file is corrupt, unless memory or blocks are lacking or the
    /// cache is in use.
    pub(crate) fn of_content(error: kvtide_tensor::Error) -> Self {
        match error.code() {
            Code::InvalidArgument
            | Code::ShapeMismatch
            | Code::DtypeMismatch
            | Code::DimMismatch
            | Code::InvalidPath
            | Code::UnsupportedModel
            | Code::CacheOverflow => Error::corrupt("the content", error, "content that a save can write"),
            _ => error.into(),
        }
    }

    pub(crate) fn incompatible(field: impl ToString, found: impl ToString, expected: impl ToString) -> Self {
        Error::Incompatible { field: field.to_string(), found: found.to_string(), expected: expected.to_string() }
    }

    /// Returns the stable code of the error.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Cache(error) => error.code(),
            Error::Io { .. } => Code::IoError,
            Error::Corrupt { .. } => Code::Corrupt,
            Error::Incompatible { .. } => Code::Incompatible,
        }
    }

    /// Returns the error's fields, named as in every language.
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
