//! Everything a planner can refuse, with the numbers that say why.

use crate::code::Code;
use crate::detail::{Detail, DetailValue};
use crate::details;

/// The result of asking a planner.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Makes room in a list for so many elements more, or refuses and names `what` they are.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize, what: &'static str) -> Result<()> {
    list.try_reserve(more).map_err(|_| Error::OutOfMemory { count: more as u64, what })
}

/// A refusal. The planner that gave it has not changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// An argument has a value that it cannot have.
    #[error("{argument} is {value}, expected {expected}")]
    InvalidArgument {
        /// The argument's public name.
        argument: &'static str,
        /// What was given.
        value: DetailValue,
        /// What it may be.
        expected: String,
    },
    /// A field of a model's description has a value that it cannot have, or that contradicts another.
    #[error("{field} is {value}, expected {expected}")]
    InvalidModel {
        /// Which field, as a path: `layers[3].window`.
        field: String,
        /// What it is.
        value: DetailValue,
        /// What it may be.
        expected: String,
    },
    /// A model that works in a way that is not supported.
    #[error("the model is not supported: {field} is {value}, expected {expected}")]
    UnsupportedModel {
        /// The field that says so, as a path.
        field: String,
        /// What it is.
        value: DetailValue,
        /// What is supported.
        expected: String,
    },
    /// More tokens than `max_seq_len` allows.
    #[error("cannot append {}: {seq_len} of {max_seq_len} used", counted(*new_tokens, "token"))]
    CacheOverflow {
        /// Tokens in the cache.
        seq_len: u64,
        /// Tokens to be added.
        new_tokens: u64,
        /// The most it can hold.
        max_seq_len: u64,
    },
    /// More tokens than there are slots, of tokens that lie in slots already.
    #[error("cannot count {} more: {seq_len} of {capacity} slots used", counted(*new_tokens, "token"))]
    NoSlots {
        /// Tokens in the cache.
        seq_len: u64,
        /// Tokens to be counted.
        new_tokens: u64,
        /// Slots that there are.
        capacity: u64,
        /// The most it can hold, once it has grown.
        max_seq_len: u64,
    },
    /// The cache holds nothing.
    #[error("{operation} needs at least one token, the cache is empty")]
    CacheEmpty {
        /// What was asked.
        operation: &'static str,
    },
    /// The tokens that a roll-back needs are gone, or never were.
    #[error("cannot go back to {} at {seq_len}: {reason}", counted(*requested, "token"))]
    CannotRollBack {
        /// The length asked for.
        requested: u64,
        /// The length there is.
        seq_len: u64,
        /// Why not.
        reason: &'static str,
    },
    /// The snapshot is not of this cache's present branch.
    #[error("the snapshot cannot be used: {reason}")]
    SnapshotInvalid {
        /// Why not.
        reason: &'static str,
    },
    /// Indices that are not a path of the draft tree.
    #[error("node {node} at place {place} is not on a path: {reason}")]
    InvalidPath {
        /// Place in the list of indices.
        place: u64,
        /// The node given there.
        node: u64,
        /// Why it does not fit.
        reason: &'static str,
    },
    /// A transaction is open on the object: only the innermost one can change anything.
    #[error("a transaction is open on this {object}: commit it or roll it back first")]
    TransactionOpen {
        /// What it is open on: a cache, or another transaction.
        object: &'static str,
    },
    /// A step is open on the sequence: only its own calls can change anything.
    #[error("a step is open on this {object}: commit it or roll it back first")]
    StepOpen {
        /// What it is open on: a sequence.
        object: &'static str,
    },
    /// The transaction has ended.
    #[error("the transaction has ended: it was committed or rolled back")]
    TransactionClosed,
    /// The step has ended.
    #[error("the step has ended: it was committed or rolled back")]
    StepClosed,
    /// No sequence has this id.
    #[error("sequence {sequence} does not exist")]
    SequenceNotFound {
        /// The id given.
        sequence: u64,
    },
    /// A slot that is not allocated or not written.
    #[error("position {position} of sequence {sequence} is not written in layer {layer}: the length is {length}")]
    PositionOutOfRange {
        /// The sequence.
        sequence: u64,
        /// The layer.
        layer: u32,
        /// The position asked for.
        position: u64,
        /// Highest written position + 1, over all layers.
        length: u64,
    },
    /// Too few free blocks; none was taken.
    #[error("{} needed, {} free", there_are(*needed, "block"), there_are(*free, ""))]
    OutOfBlocks {
        /// Blocks needed.
        needed: u64,
        /// Blocks free.
        free: u64,
    },
    /// A block handle that cannot be used.
    #[error("block {block} cannot be used: {reason}")]
    InvalidBlock {
        /// The handle, or the index in a table, that was given.
        block: i64,
        /// Why not.
        reason: &'static str,
    },
    /// A step whose sequence was dropped.
    #[error("sequence {sequence} of the step was dropped")]
    StaleStep {
        /// The sequence.
        sequence: u64,
    },
    /// Bookkeeping for so many tokens or blocks does not fit in memory.
    #[error("the bookkeeping of {count} {what} does not fit in memory")]
    OutOfMemory {
        /// How many were asked for.
        count: u64,
        /// What they are.
        what: &'static str,
    },
}

impl Error {
    /// An argument that is out of bounds.
    pub fn argument(argument: &'static str, value: impl Into<DetailValue>, expected: impl Into<String>) -> Self {
        Error::InvalidArgument { argument, value: value.into(), expected: expected.into() }
    }

    /// A field of a model's description that has a wrong value.
    pub(crate) fn model(field: impl Into<String>, value: impl Into<DetailValue>, expected: impl Into<String>) -> Self {
        Error::InvalidModel { field: field.into(), value: value.into(), expected: expected.into() }
    }

    /// A field that says that the model works in another way than those that are supported.
    pub(crate) fn unsupported(
        field: impl Into<String>,
        value: impl Into<DetailValue>,
        expected: impl Into<String>,
    ) -> Self {
        Error::UnsupportedModel { field: field.into(), value: value.into(), expected: expected.into() }
    }

    /// The stable name of the refusal.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::InvalidArgument { .. } | Error::InvalidModel { .. } => Code::InvalidArgument,
            Error::UnsupportedModel { .. } => Code::UnsupportedModel,
            Error::CacheOverflow { .. } | Error::NoSlots { .. } => Code::CacheOverflow,
            Error::CacheEmpty { .. } => Code::CacheEmpty,
            Error::CannotRollBack { .. } => Code::CannotRollBack,
            Error::SnapshotInvalid { .. } => Code::SnapshotInvalid,
            Error::InvalidPath { .. } => Code::InvalidPath,
            Error::TransactionOpen { .. } | Error::StepOpen { .. } => Code::TransactionOpen,
            Error::TransactionClosed | Error::StepClosed => Code::TransactionClosed,
            Error::StaleStep { .. } => Code::StaleStep,
            Error::SequenceNotFound { .. } => Code::SequenceNotFound,
            Error::PositionOutOfRange { .. } => Code::PositionOutOfRange,
            Error::OutOfBlocks { .. } => Code::OutOfBlocks,
            Error::InvalidBlock { .. } => Code::InvalidBlock,
            Error::OutOfMemory { .. } => Code::OutOfMemory,
        }
    }

    /// The refusal's fields, named as users of every language see them.
    #[must_use]
    pub fn details(&self) -> Vec<Detail> {
        match self {
            Error::InvalidArgument { argument, value, expected } => {
                details![argument: *argument, value: value, expected: expected]
            }
            Error::InvalidModel { field, value, expected } | Error::UnsupportedModel { field, value, expected } => {
                details![argument: field, value: value, expected: expected]
            }
            Error::CacheOverflow { seq_len, new_tokens, max_seq_len } => {
                details![seqLen: *seq_len, newTokens: *new_tokens, maxSeqLen: *max_seq_len]
            }
            Error::NoSlots { seq_len, new_tokens, capacity, max_seq_len } => {
                details![seqLen: *seq_len, newTokens: *new_tokens, maxSeqLen: *max_seq_len, capacity: *capacity]
            }
            Error::CacheEmpty { operation } => details![operation: *operation],
            Error::CannotRollBack { requested, seq_len, reason } => {
                details![requested: *requested, seqLen: *seq_len, reason: *reason]
            }
            Error::SnapshotInvalid { reason } => details![reason: *reason],
            Error::InvalidPath { place, node, reason } => {
                details![place: *place, node: *node, reason: *reason]
            }
            Error::TransactionOpen { object } | Error::StepOpen { object } => details![object: *object],
            Error::TransactionClosed | Error::StepClosed => Vec::new(),
            Error::StaleStep { sequence } => details![seq: *sequence],
            Error::SequenceNotFound { sequence } => details![seq: *sequence],
            Error::PositionOutOfRange { sequence, layer, position, length } => {
                details![seq: *sequence, layer: *layer, pos: *position, length: *length]
            }
            Error::OutOfBlocks { needed, free } => details![needed: *needed, free: *free],
            Error::InvalidBlock { block, reason } => details![block: *block, reason: *reason],
            Error::OutOfMemory { count, what } => details![count: *count, what: *what],
        }
    }
}

/// A number of things: `1 token`, `2 tokens`.
#[must_use]
pub fn counted(count: u64, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {what}{ending}")
}

/// The same with its verb: `1 block is`, `2 blocks are`; without a name `1 is`.
#[must_use]
pub fn there_are(count: u64, what: &str) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    if what.is_empty() { format!("{count} {verb}") } else { format!("{} {verb}", counted(count, what)) }
}
