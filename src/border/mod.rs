//! What crosses between JavaScript and Rust, and how: numbers, arrays, tensors, errors.

pub(crate) mod bytes;
pub(crate) mod device;
pub(crate) mod guard;
pub(crate) mod handed;
pub(crate) mod memory;
pub(crate) mod number;
pub(crate) mod raise;
pub(crate) mod read_task;
pub(crate) mod shown;
pub(crate) mod source;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod tensor;
pub(crate) mod threads;
