//! Errors of reading or rewriting a model: the place, and what was expected there.

/// The result of reading or rewriting.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. Nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// Reading the source failed.
    #[error("cannot read {length} bytes at offset {offset}: {reason}")]
    Read {
        /// The offset in the source.
        offset: u64,
        /// The number of bytes to read.
        length: u64,
        /// The system's message.
        reason: String,
    },
    /// The bytes are not a model.
    #[error("the model is malformed at offset {offset}, in {message}: expected {expected}")]
    Malformed {
        /// The offset in the source.
        offset: u64,
        /// The protobuf message that contains it.
        message: &'static str,
        /// The expected content.
        expected: String,
    },
    /// The graph without its weights needs more memory than the limit.
    #[error("the graph without its weights needs more than {limit} bytes of memory, at offset {offset}")]
    TooLarge {
        /// The offset in the source at which the limit was reached.
        offset: u64,
        /// The limit.
        limit: u64,
    },
    /// A tensor's data do not agree with its shape, or are in a forbidden place.
    #[error("tensor {name} at offset {offset}: expected {expected}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// The offset of its message in the source.
        offset: u64,
        /// The expected and the actual value.
        expected: String,
    },
    /// A file with weights is missing or too short.
    #[error("weights in {file}: expected {expected}")]
    Weights {
        /// The file, relative to the model's folder.
        file: String,
        /// The tensor that needs it.
        tensor: String,
        /// The expected and the actual value.
        expected: String,
    },
    /// There is not enough memory.
    #[error("out of memory: cannot allocate {bytes} bytes")]
    Memory {
        /// The number of bytes.
        bytes: u64,
    },
    /// The nodes do not form a valid graph.
    #[error("node {node} ({operator}): expected {expected}")]
    Graph {
        /// The node's name, or that of its first output.
        node: String,
        /// Its operator.
        operator: String,
        /// The expectation that the node does not meet.
        expected: String,
    },
    /// The model is valid, but kvtide cannot rewrite it.
    #[error("the graph is not recognised at {node} ({operator}): {reason}")]
    Unrecognised {
        /// The node's name, or that of its first output; the tensor's name if no node is the cause.
        node: String,
        /// Its operator.
        operator: String,
        /// The reason.
        reason: String,
        /// The kind of the reason.
        kind: RefusalKind,
    },
}

/// The kinds of reasons for which a model is not rewritten. Each has its own remedy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusalKind {
    /// A node has a form that is not recognised.
    #[default]
    Form,
    /// No attention has a past, and no layer keeps a state.
    Past,
    /// An attention is in a branch or a loop.
    Subgraph,
    /// The past is quantised.
    QuantisedPast,
    /// An attention outputs its scores.
    Scores,
    /// The model of the embeddings is needed as well.
    Embeddings,
    /// A config declares other windows, or other layers.
    Windows,
    /// An input has an unknown purpose or another form.
    Input,
    /// An output is missing or has another form.
    Output,
    /// A layer keeps a state in a form that is not recognised.
    State,
}

impl RefusalKind {
    /// The name in details of errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Form => "form",
            Self::Past => "past",
            Self::Subgraph => "subgraph",
            Self::QuantisedPast => "quantised-past",
            Self::Scores => "scores",
            Self::Embeddings => "embeddings",
            Self::Windows => "windows",
            Self::Input => "input",
            Self::Output => "output",
            Self::State => "state",
        }
    }
}

impl Error {
    /// The error of a model that cannot be rewritten.
    pub(crate) fn unrecognised(
        kind: RefusalKind,
        node: impl Into<String>,
        operator: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self::Unrecognised { node: node.into(), operator: operator.into(), reason: reason.into(), kind }
    }

    /// Returns the same error with a kind, if it has one.
    pub(crate) fn of(mut self, of: RefusalKind) -> Self {
        if let Self::Unrecognised { kind, .. } = &mut self {
            *kind = of;
        }
        self
    }
}
