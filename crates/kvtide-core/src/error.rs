//! Errors of the planners, with the numbers that explain them. A call that returns an error has changed nothing.

use std::fmt;

use crate::code::Code;
use crate::detail::{Detail, DetailValue};
use crate::details;

/// The result of a planner's call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reserves memory for `more` more elements of a list; the error names the elements as `what`.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize, what: &'static str) -> Result<()> {
    list.try_reserve(more).map_err(|_| Error::OutOfMemory { count: more as u64, what })
}

/// An error of a planner. The planner has not changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// An argument has a value that it cannot have.
    #[error("{argument} is {value}, expected {expected}")]
    InvalidArgument {
        /// The argument's public name.
        argument: &'static str,
        /// The value that was given.
        value: DetailValue,
        /// The values that it may have.
        expected: String,
    },
    /// A field of a model's description has an invalid value, or contradicts another field.
    #[error("{field} is {value}, expected {expected}")]
    InvalidModel {
        /// The field as a path: `layers[3].window`.
        field: String,
        /// The field's value.
        value: DetailValue,
        /// The values that it may have.
        expected: String,
    },
    /// The model works in a way that is not supported.
    #[error("the model is not supported: {field} is {value}, expected {expected}")]
    UnsupportedModel {
        /// The field that shows it, as a path.
        field: String,
        /// The field's value.
        value: DetailValue,
        /// The values that are supported.
        expected: String,
    },
    /// The append would exceed `max_seq_len` tokens.
    #[error("cannot append {}: {seq_len} of {max_seq_len} used", counted(*new_tokens, "token"))]
    CacheOverflow {
        /// Tokens in the cache.
        seq_len: u64,
        /// Tokens to append.
        new_tokens: u64,
        /// The most tokens that the cache can hold.
        max_seq_len: u64,
    },
    /// The caller counts more tokens, which it wrote to slots itself, than there are slots.
    #[error("cannot count {}: {seq_len} of {capacity} slots are used", counted(*new_tokens, "more token"))]
    NoSlots {
        /// Tokens in the cache.
        seq_len: u64,
        /// Tokens to count.
        new_tokens: u64,
        /// Slots in the buffer.
        capacity: u64,
        /// The most tokens that the cache can hold once it has grown.
        max_seq_len: u64,
    },
    /// The cache is empty.
    #[error("{operation} needs at least one token, but the cache is empty")]
    CacheEmpty {
        /// The operation that was called.
        operation: &'static str,
    },
    /// The tokens that a roll-back needs were dropped, or never existed.
    #[error("cannot roll back from {} to {requested}: {reason}", counted(*seq_len, "token"))]
    CannotRollBack {
        /// The requested length.
        requested: u64,
        /// The present length.
        seq_len: u64,
        /// The reason.
        reason: &'static str,
    },
    /// A state cannot be cut: there is no checkpoint at the requested length.
    #[error(
        "cannot roll back from {} to {requested}: there is no state at this length; the nearest are at {below}{}",
        counted(*seq_len, "token"), above.map_or(String::new(), |above| format!(" and {above}"))
    )]
    NoStateHere {
        /// The requested length.
        requested: u64,
        /// The present length.
        seq_len: u64,
        /// The nearest length below that has a state; 0 always has one.
        below: u64,
        /// The nearest length above that has a state.
        above: Option<u64>,
    },
    /// The snapshot does not belong to the present branch of this cache.
    #[error("the snapshot cannot be used: {reason}")]
    SnapshotInvalid {
        /// The reason.
        reason: &'static str,
    },
    /// The indices are not a path of the draft tree.
    #[error("node {node} at place {place} of the path is invalid: {reason}")]
    InvalidPath {
        /// The place in the list of indices.
        place: u64,
        /// The node at that place.
        node: u64,
        /// The reason.
        reason: &'static str,
    },
    /// A transaction is open on the object: only the innermost transaction can change anything.
    #[error("a transaction is open on this {object}: commit it or roll it back first")]
    TransactionOpen {
        /// The object it is open on: a cache, a sequence or another transaction.
        object: &'static str,
    },
    /// A step is open on the sequence: only the step's own calls can change anything.
    #[error("a step is open on this {object}: commit it or roll it back first")]
    StepOpen {
        /// The object it is open on: a sequence.
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
    /// The position is not allocated or not written.
    #[error("position {position} of sequence {sequence} is not written in layer {layer}: the length is {length}")]
    PositionOutOfRange {
        /// The sequence.
        sequence: u64,
        /// The layer.
        layer: u32,
        /// The requested position.
        position: u64,
        /// The highest written position of all layers, plus 1.
        length: u64,
    },
    /// There are too few free blocks; none was taken.
    #[error("{} needed, {} free{}", there_are(*needed, "block"), there_are(*free, ""), holding(*holders))]
    OutOfBlocks {
        /// Blocks needed.
        needed: u64,
        /// Blocks free.
        free: u64,
        /// The holders of the other blocks; [`None`] for a pool that knows no sequences.
        holders: Option<BlockHolders>,
    },
    /// The block handle cannot be used.
    #[error("block {block} cannot be used: {reason}")]
    InvalidBlock {
        /// The handle that was given, or the index in a table.
        block: i64,
        /// The reason.
        reason: &'static str,
    },
    /// A sequence of the step was dropped.
    #[error("sequence {sequence} of the step was dropped: begin a new step")]
    StaleStep {
        /// The sequence.
        sequence: u64,
    },
    /// There is not enough memory for the bookkeeping of this many tokens or blocks.
    #[error("out of memory: cannot allocate the bookkeeping of {count} {what}")]
    OutOfMemory {
        /// The number of objects.
        count: u64,
        /// The kind of objects.
        what: &'static str,
    },
}

/// The number of blocks that are not free, and of open sequences. Blocks that no sequence holds are held by snapshots,
/// matches and loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHolders {
    /// Open sequences.
    pub sequences: u64,
    /// Held blocks, each counted once.
    pub blocks: u64,
}

impl fmt::Display for BlockHolders {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = counted(self.blocks, "block");
        match self.sequences {
            _ if self.blocks == 0 => write!(to, "the pool has no more, and none is held"),
            0 => write!(to, "no sequence is open; snapshots, matches and loads hold {blocks}"),
            open => {
                let open = there_are(open, "sequence");
                write!(to, "{open} open; sequences, snapshots, matches and loads hold {blocks}")
            }
        }
    }
}

/// The end of an error message, which says what holds the blocks.
#[must_use]
pub fn holding(holders: Option<BlockHolders>) -> String {
    holders.map(|holders| format!(": {holders}")).unwrap_or_default()
}

impl Error {
    /// The error of an argument with an invalid value.
    pub fn argument(argument: &'static str, value: impl Into<DetailValue>, expected: impl Into<String>) -> Self {
        Error::InvalidArgument { argument, value: value.into(), expected: expected.into() }
    }

    /// The error of a field of a model's description with an invalid value.
    pub(crate) fn model(field: impl Into<String>, value: impl Into<DetailValue>, expected: impl Into<String>) -> Self {
        Error::InvalidModel { field: field.into(), value: value.into(), expected: expected.into() }
    }

    /// The error of a field whose value shows that the model works in an unsupported way.
    pub(crate) fn unsupported(
        field: impl Into<String>,
        value: impl Into<DetailValue>,
        expected: impl Into<String>,
    ) -> Self {
        Error::UnsupportedModel { field: field.into(), value: value.into(), expected: expected.into() }
    }

    /// The error's stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::InvalidArgument { .. } | Error::InvalidModel { .. } => Code::InvalidArgument,
            Error::UnsupportedModel { .. } => Code::UnsupportedModel,
            Error::CacheOverflow { .. } | Error::NoSlots { .. } => Code::CacheOverflow,
            Error::CacheEmpty { .. } => Code::CacheEmpty,
            Error::CannotRollBack { .. } | Error::NoStateHere { .. } => Code::CannotRollBack,
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

    /// The error's fields, named as users of every language see them.
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
            Error::NoStateHere { requested, seq_len, below, above } => {
                let mut details = details![requested: *requested, seqLen: *seq_len, reason: "no state", below: *below];
                details.extend(above.map(|above| Detail { name: "above", value: above.into() }));
                details
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
            Error::OutOfBlocks { needed, free, holders: None } => details![needed: *needed, free: *free],
            Error::OutOfBlocks { needed, free, holders: Some(of) } => {
                details![needed: *needed, free: *free, sequences: of.sequences, held: of.blocks]
            }
            Error::InvalidBlock { block, reason } => details![block: *block, reason: *reason],
            Error::OutOfMemory { count, what } => details![count: *count, what: *what],
        }
    }
}

/// A number of things with its noun: `1 token`, `2 tokens`.
#[must_use]
pub fn counted(count: u64, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {what}{ending}")
}

/// The same with a verb: `1 block is`, `2 blocks are`; without a noun, `1 is`.
#[must_use]
pub fn there_are(count: u64, what: &str) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    if what.is_empty() { format!("{count} {verb}") } else { format!("{} {verb}", counted(count, what)) }
}
