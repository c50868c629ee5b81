//! The stable names of everything that can be refused.
//!
//! One table for both languages: the TypeScript union lists the same strings, and a test compares the two.

/// An enum of things with public names.
macro_rules! named {
    ($(#[doc = $about:literal])+ $type:ident, $name_of:ident; $($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[doc = $doc])+ $name,)+
        }

        impl $type {
            /// Every one there is.
            pub const ALL: &[$type] = &[$($type::$name,)+];

            /// Its public name.
            #[must_use]
            pub fn $name_of(self) -> &'static str {
                match self {
                    $($type::$name => $text,)+
                }
            }
        }
    };
}

named! {
    /// What went wrong, as a name that never changes once it is published.
    Code, as_str;

    /// An argument has a value that it cannot have.
    InvalidArgument = "INVALID_ARGUMENT",
    /// A tensor's shape does not fit.
    ShapeMismatch = "SHAPE_MISMATCH",
    /// A tensor's element type does not fit.
    DtypeMismatch = "DTYPE_MISMATCH",
    /// A tensor lies on another device.
    DeviceMismatch = "DEVICE_MISMATCH",
    /// One token's vector has the wrong number of elements.
    DimMismatch = "DIM_MISMATCH",
    /// More tokens than the cache may ever hold.
    CacheOverflow = "CACHE_OVERFLOW",
    /// Something was asked of a cache that holds nothing.
    CacheEmpty = "CACHE_EMPTY",
    /// The tokens that a roll-back needs are gone, or never were.
    CannotRollBack = "CANNOT_ROLL_BACK",
    /// A snapshot that this cache cannot restore.
    SnapshotInvalid = "SNAPSHOT_INVALID",
    /// A view whose memory was overwritten since it was made.
    StaleView = "STALE_VIEW",
    /// No sequence has this id.
    SequenceNotFound = "SEQUENCE_NOT_FOUND",
    /// A position that is not allocated or not written.
    PositionOutOfRange = "POSITION_OUT_OF_RANGE",
    /// The pool has too few free blocks.
    OutOfBlocks = "OUT_OF_BLOCKS",
    /// A block handle that the pool did not hand out, or has taken back.
    InvalidBlock = "INVALID_BLOCK",
    /// A memory limit, or memory itself, is exhausted.
    OutOfMemory = "OUT_OF_MEMORY",
    /// The object was disposed of.
    Disposed = "DISPOSED",
    /// An earlier failure left the object's content undefined.
    Poisoned = "POISONED",
    /// The device is not there or cannot be used.
    DeviceUnavailable = "DEVICE_UNAVAILABLE",
    /// A defect of this library; the process goes on.
    Internal = "INTERNAL",
    /// Work in the background still reads the object.
    Busy = "BUSY",
    /// A transaction is open on the cache.
    TransactionOpen = "TRANSACTION_OPEN",
    /// The transaction or the step has ended.
    TransactionClosed = "TRANSACTION_CLOSED",
    /// A step was committed before every layer was written.
    StepIncomplete = "STEP_INCOMPLETE",
    /// A step's tables were used after its sequences changed.
    StaleStep = "STALE_STEP",
    /// Indices that are not a path of the draft tree.
    InvalidPath = "INVALID_PATH",
    /// One piece of memory was asked of a view that lies in two.
    NotContiguous = "NOT_CONTIGUOUS",
    /// A model description that this library does not support.
    UnsupportedModel = "UNSUPPORTED_MODEL",
    /// The native addon is not installed.
    BindingNotFound = "BINDING_NOT_FOUND",
    /// The native addon has another version than the package.
    BindingMismatch = "BINDING_MISMATCH",
    /// Another native addon is loaded already.
    BindingConflict = "BINDING_CONFLICT",
    /// The caller's signal ended the work.
    Aborted = "ABORTED",
    /// An ONNX graph in which attention is not recognised.
    UnsupportedGraph = "UNSUPPORTED_GRAPH",
    /// Bytes that are no ONNX model, or weights that are missing or cut short.
    InvalidGraph = "INVALID_GRAPH",
    /// The runtime that computes a graph is missing, or cannot be used.
    RuntimeUnavailable = "RUNTIME_UNAVAILABLE",
    /// The runtime refused a graph, or failed while it computed one.
    RuntimeFailed = "RUNTIME_FAILED",
    /// A row of logits that has NaN or +Infinity, or nothing but -Infinity.
    NotFinite = "NOT_FINITE",
    /// What was saved is of another model, form or cache.
    Incompatible = "INCOMPATIBLE",
    /// What was saved is damaged, cut short, or none of this library's.
    Corrupt = "CORRUPT",
    /// A file cannot be read or written.
    IoError = "IO_ERROR",
}
