//! The operations that move bytes, one file each. They know strides and runs, and nothing of caches.

mod copy;
mod dispatch;
pub(crate) mod pages;
pub(crate) mod quantise;
mod rows;
mod shift;
mod simd;
mod stream;
pub(crate) mod tile;

pub(crate) use copy::{Place, copy};
pub use dispatch::{Kernels, with_kernels};
pub(crate) use rows::{Stretches, rows};
pub(crate) use shift::shift;
pub(crate) use stream::Carrier;
