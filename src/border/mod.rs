//! What crosses between JavaScript and Rust, and how: numbers, arrays, tensors, errors.

pub(crate) mod array;
pub(crate) mod budget;
pub(crate) mod cache_views;
pub(crate) mod children;
pub(crate) mod device;
pub(crate) mod external_array;
pub(crate) mod handle;
pub(crate) mod host_array;
pub(crate) mod memory;
pub(crate) mod number;
pub(crate) mod read_task;
pub(crate) mod refusal;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod tensor;
pub(crate) mod tensor_arg;
pub(crate) mod threads;
