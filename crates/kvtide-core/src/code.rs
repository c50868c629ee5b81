//! The stable error codes: one name for each kind of failure.
//!
//! One table serves both languages: the TypeScript union lists the same strings, and a test compares the two.

/// Defines an enum whose variants have public names.
macro_rules! named {
    ($(#[doc = $about:literal])+ $type:ident, $name_of:ident; $($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[doc = $doc])+ $name,)+
        }

        impl $type {
            /// All variants.
            pub const ALL: &[$type] = &[$($type::$name,)+];

            /// The variant's public name.
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
    /// The kind of an error, as a name that never changes once it is published.
    Code, as_str;

    /// An argument has a value that it cannot have.
    InvalidArgument = "INVALID_ARGUMENT",
    /// A tensor's shape does not fit.
    ShapeMismatch = "SHAPE_MISMATCH",
    /// A tensor's element type does not fit.
    DtypeMismatch = "DTYPE_MISMATCH",
    /// A tensor is on another device.
    DeviceMismatch = "DEVICE_MISMATCH",
    /// One token's vector has the wrong number of elements.
    DimMismatch = "DIM_MISMATCH",
    /// The call would store more tokens than the cache may ever hold.
    CacheOverflow = "CACHE_OVERFLOW",
    /// The call needs at least one token, and the cache is empty.
    CacheEmpty = "CACHE_EMPTY",
    /// The tokens that a roll-back needs were dropped, or never existed.
    CannotRollBack = "CANNOT_ROLL_BACK",
    /// This cache cannot restore the snapshot.
    SnapshotInvalid = "SNAPSHOT_INVALID",
    /// The view's memory was overwritten after the view was made.
    StaleView = "STALE_VIEW",
    /// There is no sequence with this id.
    SequenceNotFound = "SEQUENCE_NOT_FOUND",
    /// The position is not allocated or not written.
    PositionOutOfRange = "POSITION_OUT_OF_RANGE",
    /// The pool has too few free blocks.
    OutOfBlocks = "OUT_OF_BLOCKS",
    /// The pool did not hand out this block handle, or has taken it back.
    InvalidBlock = "INVALID_BLOCK",
    /// A memory limit, or memory itself, is exhausted.
    OutOfMemory = "OUT_OF_MEMORY",
    /// The object was disposed of.
    Disposed = "DISPOSED",
    /// An earlier failure left the object's content undefined.
    Poisoned = "POISONED",
    /// The device is missing or cannot be used.
    DeviceUnavailable = "DEVICE_UNAVAILABLE",
    /// A bug in this library; the process goes on.
    Internal = "INTERNAL",
    /// A background call still reads the object.
    Busy = "BUSY",
    /// A transaction is open on the cache.
    TransactionOpen = "TRANSACTION_OPEN",
    /// The transaction or the step has ended.
    TransactionClosed = "TRANSACTION_CLOSED",
    /// A step was committed before every layer was written.
    StepIncomplete = "STEP_INCOMPLETE",
    /// A sequence of the step was dropped, or its tables were used after its sequences changed.
    StaleStep = "STALE_STEP",
    /// The indices are not a path of the draft tree.
    InvalidPath = "INVALID_PATH",
    /// One piece of memory was requested of a view that consists of two.
    NotContiguous = "NOT_CONTIGUOUS",
    /// The library does not support the model that was described.
    UnsupportedModel = "UNSUPPORTED_MODEL",
    /// The native addon is not installed.
    BindingNotFound = "BINDING_NOT_FOUND",
    /// The native addon has another version than the package.
    BindingMismatch = "BINDING_MISMATCH",
    /// Another native addon is loaded already.
    BindingConflict = "BINDING_CONFLICT",
    /// The caller's signal ended the work.
    Aborted = "ABORTED",
    /// The ONNX graph contains no attention that the library recognises.
    UnsupportedGraph = "UNSUPPORTED_GRAPH",
    /// The bytes are not an ONNX model, or weights are missing or cut short.
    InvalidGraph = "INVALID_GRAPH",
    /// The runtime that computes a graph is missing or cannot be used.
    RuntimeUnavailable = "RUNTIME_UNAVAILABLE",
    /// The runtime rejected a graph, or failed while it computed one.
    RuntimeFailed = "RUNTIME_FAILED",
    /// A row of logits contains NaN or +Infinity, or only -Infinity.
    NotFinite = "NOT_FINITE",
    /// The saved data belongs to another model, form or cache.
    Incompatible = "INCOMPATIBLE",
    /// The saved data is damaged, cut short, or was not written by this library.
    Corrupt = "CORRUPT",
    /// A file cannot be read or written.
    IoError = "IO_ERROR",
    /// The call needs more tokens than the model's context holds.
    ContextOverflow = "CONTEXT_OVERFLOW",
    /// The model, its revision or one of its files is not on the Hub, or may not be read.
    ModelNotFound = "MODEL_NOT_FOUND",
    /// The Hub cannot be reached, and the model's files are not in the cache folder.
    HubUnavailable = "HUB_UNAVAILABLE",
    /// A tokenizer's file is missing or cannot be used.
    InvalidTokenizer = "INVALID_TOKENIZER",
    /// A chat template failed, or the model has none.
    TemplateFailed = "TEMPLATE_FAILED",
    /// A grammar cannot be used, or no token continues its text.
    InvalidGrammar = "INVALID_GRAMMAR",
}
