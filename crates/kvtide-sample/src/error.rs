//! Everything that can be refused. What was asked has not changed then.

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// An option or an argument has a value that it cannot have.
    #[error("{argument} is {value}, expected {expected}")]
    InvalidArgument {
        /// Which one.
        argument: &'static str,
        /// What was given.
        value: f64,
        /// What it may be.
        expected: String,
    },
    /// A logit is NaN or infinitely large; or, where no token is named, all of them are -Infinity.
    #[error("row {row}: {}", match token {
        Some(token) => format!("the logit of token {token} is NaN or +Infinity"),
        None => "every logit is -Infinity".to_owned(),
    })]
    NotFinite {
        /// Which of the rows of the call.
        row: usize,
        /// The first token whose logit is not a number.
        token: Option<u32>,
    },
    /// Mask and bias leave no token that the model could give.
    #[error("mask and bias leave no token of {vocabulary}")]
    NothingAllowed {
        /// Tokens that there are.
        vocabulary: u32,
    },
    /// There is no memory for a copy of a row.
    #[error("cannot take {bytes} bytes")]
    OutOfMemory {
        /// How much was asked for.
        bytes: u64,
    },
}

impl Error {
    /// The same of another row of the call.
    #[must_use]
    pub fn of_row(self, row: usize) -> Self {
        match self {
            Error::NotFinite { token, .. } => Error::NotFinite { row, token },
            other => other,
        }
    }

    pub(crate) fn argument(argument: &'static str, value: impl Into<f64>, expected: impl Into<String>) -> Self {
        Error::InvalidArgument { argument, value: value.into(), expected: expected.into() }
    }
}

/// Makes room for so many elements more, or refuses.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    list.try_reserve(more).map_err(|_| Error::OutOfMemory { bytes: (more * size_of::<T>()) as u64 })
}
