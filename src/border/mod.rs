//! What crosses between JavaScript and Rust, and how: numbers, arrays, tensors, errors.

pub(crate) mod argument;
pub(crate) mod external_array;
pub(crate) mod handle;
pub(crate) mod process;
pub(crate) mod read_task;
pub(crate) mod refusal;
pub(crate) mod shared;
pub(crate) mod stop;
pub(crate) mod task;
pub(crate) mod tensor;
