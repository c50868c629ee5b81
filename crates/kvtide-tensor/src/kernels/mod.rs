//! The operations that move bytes, one file each. They know memory, strides and stretches, and nothing of buffers or caches.
//!
//! ```text
//! rows, copy, stream            on bytes that the host sees
//! pages                         rows of tokens into pages of bytes, and back
//! portable                      in candle's operations alone
//! quantise/                     low-bit formats
//! simd/, tile/                  vectors, and attention on a tile of keys
//! ```
//!
//! The form that a device launches is the crate `kvtide-cuda`.

mod copy;
pub(crate) mod pages;
pub(crate) mod portable;
pub(crate) mod quantise;
mod rows;
mod simd;
mod stream;
pub(crate) mod tile;

pub(crate) use copy::copy;
pub(crate) use rows::{Stretches, rows, shift};
pub(crate) use stream::Carrier;
