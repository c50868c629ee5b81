//! Errors of this crate. A call that returns one has changed nothing.

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// An option or an argument has a value that it cannot have.
    #[error("{argument} is {value}, expected {expected}")]
    InvalidArgument {
        /// The name of the option or argument.
        argument: &'static str,
        /// The value that was given.
        value: f64,
        /// The values that it may have.
        expected: String,
    },
    /// A logit is NaN or +Infinity; if no token is named, all logits are -Infinity.
    #[error("row {row}: {}", match token {
        Some(token) => format!("the logit of token {token} is NaN or +Infinity"),
        None => "every logit is -Infinity".to_owned(),
    })]
    NotFinite {
        /// The index of the row in the call.
        row: usize,
        /// The first token whose logit is not a finite number or -Infinity.
        token: Option<u32>,
    },
    /// Mask and bias rule out every token that the model could give.
    #[error("mask and bias rule out all {vocabulary} tokens")]
    NothingAllowed {
        /// Number of tokens in the vocabulary.
        vocabulary: u32,
    },
    /// A grammar that cannot be used, or a text that it cannot continue.
    #[error("{}{reason}", match place {
        Some(place) => format!("{place}: "),
        None => String::new(),
    })]
    InvalidGrammar {
        /// The place of what is wrong, if it is known: a path in the schema, a line and a column, a character, a token.
        place: Option<String>,
        /// The reason, as one line.
        reason: String,
    },
    /// Bytes that are not a tokenizer's file, or tokens that cannot be used.
    #[error("the tokenizer cannot be read: {reason}")]
    InvalidTokenizer {
        /// The reason, as one line.
        reason: String,
    },
    /// There is not enough memory for a copy of a row.
    #[error("out of memory: cannot allocate {bytes} bytes")]
    OutOfMemory {
        /// The number of bytes.
        bytes: u64,
    },
}

impl Error {
    /// The same error with another row of the call.
    #[must_use]
    pub fn of_row(self, row: usize) -> Self {
        match self {
            Error::NotFinite { token, .. } => Error::NotFinite { row, token },
            other => other,
        }
    }

    #[cfg(feature = "grammar")]
    pub(crate) fn grammar(place: Option<String>, reason: impl Into<String>) -> Self {
        Error::InvalidGrammar { place, reason: reason.into() }
    }

    pub(crate) fn argument(argument: &'static str, value: impl Into<f64>, expected: impl Into<String>) -> Self {
        Error::InvalidArgument { argument, value: value.into(), expected: expected.into() }
    }
}

/// Reserves memory for this many more elements.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    list.try_reserve(more).map_err(|_| Error::OutOfMemory { bytes: (more * size_of::<T>()) as u64 })
}
