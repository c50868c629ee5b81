//! Operations that move bytes, one file each. They work on memory, strides and stretches; buffers and caches are unknown
//! here.
//!
//! ```text
//! rows, copy, stream            on bytes that the host can address
//! pages                         rows of tokens into pages of bytes, and back
//! portable                      in candle's operations alone
//! quantise/                     low-bit formats
//! simd/, tile/                  vector instructions, and attention on a tile of keys
//! blocks/                       products of rows with weights of 4 bits
//! states/                       loops over the states of recurrences and convolutions
//! ```
//!
//! The device kernels are in the crate `kvtide-cuda`.

pub(crate) mod blocks;
mod copy;
pub(crate) mod pages;
pub(crate) mod portable;
pub(crate) mod quantise;
mod rows;
mod simd;
pub(crate) mod states;
mod stream;
pub(crate) mod tile;

pub(crate) use copy::copy;
pub(crate) use rows::{Stretches, rows, shift};
pub(crate) use stream::Carrier;
