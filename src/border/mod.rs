//! Conversions between JavaScript and Rust: numbers, arrays, tensors, errors and background tasks. JavaScript's memory
//! is borrowed for one call at most. Objects with finalizers are avoided, since each costs V8 microseconds.

pub(crate) mod argument;
pub(crate) mod external_array;
pub(crate) mod handle;
#[cfg(feature = "panics")]
pub(crate) mod panics;
pub(crate) mod process;
pub(crate) mod read_task;
pub(crate) mod refusal;
#[cfg(feature = "net")]
pub(crate) mod runtime;
pub(crate) mod shared;
pub(crate) mod stop;
pub(crate) mod task;
pub(crate) mod tensor;
