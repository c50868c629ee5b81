//! The operations that move bytes, one file each. They know buffers, strides and runs, and nothing of caches.
//!
//! ```text
//! write, move_rows, copy_rows, gather, upload     what callers ask for: each picks its form here
//!   rows, shift, copy, stream                     on bytes, under one lock of candle's storage
//!   launched/                                     by kernels of a device
//!   portable/                                     in candle's operations alone
//! ```

#[cfg(test)]
mod agreement;
mod copy;
mod dispatch;
mod gather;
mod launched;
pub(crate) mod pages;
mod portable;
pub(crate) mod quantise;
mod rows;
mod shift;
mod simd;
mod stream;
pub(crate) mod tile;
mod transfer;
mod write;

pub(crate) use copy::{Place, copy};
pub use dispatch::{Kernels, with_kernels};
pub(crate) use gather::{gather, gather_to};
pub(crate) use portable::{Grid, Strided};
pub(crate) use rows::{Stretches, rows};
pub(crate) use shift::shift;
pub(crate) use stream::Carrier;
pub(crate) use transfer::{collect, copy_rows, upload};
pub(crate) use write::{move_rows, write};
