//! Everything that reading or rewriting a model can refuse: where it was found, and what was expected.

/// The result of reading or rewriting.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal. Nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The source could not be read where it said that there are bytes.
    #[error("cannot read {length} bytes at offset {offset}: {reason}")]
    Read {
        /// Where in the source.
        offset: u64,
        /// How many bytes were asked for.
        length: u64,
        /// What the system said.
        reason: String,
    },
    /// Bytes that are no model.
    #[error("the model is malformed at offset {offset}, in {message}: expected {expected}")]
    Malformed {
        /// Where in the source.
        offset: u64,
        /// Which protobuf message it is.
        message: &'static str,
        /// What should stand there.
        expected: String,
    },
    /// The graph without its weights takes more memory than was allowed.
    #[error("the graph takes more than {limit} bytes without its weights, at offset {offset}")]
    TooLarge {
        /// Where in the source the limit was reached.
        offset: u64,
        /// The limit.
        limit: u64,
    },
    /// A tensor whose data do not agree with its shape, or that lies where it may not.
    #[error("tensor {name} at offset {offset}: expected {expected}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// Where its message starts in the source.
        offset: u64,
        /// What was expected, and what is there.
        expected: String,
    },
    /// A file with weights that is not there, or too short.
    #[error("weights in {file}: expected {expected}")]
    Weights {
        /// The file, relative to the model's folder.
        file: String,
        /// The tensor that needs it.
        tensor: String,
        /// What was expected, and what is there.
        expected: String,
    },
    /// More bytes than there is memory for.
    #[error("there is no memory for {bytes} bytes")]
    Memory {
        /// How many were asked for.
        bytes: u64,
    },
    /// Nodes that make no graph.
    #[error("node {node} ({operator}): expected {expected}")]
    Graph {
        /// The node's name, or that of its first output.
        node: String,
        /// Its operator.
        operator: String,
        /// What was expected.
        expected: String,
    },
    /// A model that is sound but cannot be run on pages.
    #[error("the graph is not recognised at {node} ({operator}): {reason}")]
    Unrecognised {
        /// The node's name, or that of its first output; the tensor's name where no node is to blame.
        node: String,
        /// Its operator.
        operator: String,
        /// Why.
        reason: String,
    },
}
