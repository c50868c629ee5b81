//! Kernels for NVIDIA GPUs and their launches: the device half of what `kvtide-tensor` executes.
//!
//! ```text
//! kvtide-tensor   decides the moves           spans of memory, strides, runs
//!   attend                                   keys and values read in place
//!   boxes, shift, strips, pieces, quantise   one launch each: bounds checked, units chosen, lists passed along
//!     stream                                 a GPU's, or the CPU that stands in for one
//!       kernels/*.cu                         one file per operation
//! ```
//!
//! With the feature `cuda`, launches go to a GPU; building it requires nvcc. With `emulate`, the same kernels, compiled by a
//! C++ compiler, run on the CPU thread by thread, for tests: missing barriers and wrong indices show there. Without either,
//! the crate compiles and has no stream.
//!
//! A launch is checked before it starts: no kernel reads or writes outside the spans it was given.
#![deny(unsafe_code, missing_docs)]

mod allocation;
mod attend;
mod boxes;
mod divisor;
#[cfg(feature = "emulate")]
mod emulated;
mod error;
#[cfg(feature = "cuda")]
mod gpu;
mod kept;
mod kernel;
mod list;
mod memory;
mod part;
mod pieces;
mod quantise;
#[cfg(any(feature = "cuda", test))]
mod ring;
mod shift;
mod span;
mod stream;
mod strips;
mod synced;
mod unit;

pub use attend::{
    Attend, AttendKeys, AttendMask, AttendRules, AttendSequence, AttendSizes, AttendStem, AttendTrees, HeadRows,
    PageMemory, PageSection, RowFormat, STAGED, Words, attend,
};
pub use boxes::{BoxCopy, copy_boxes};
#[cfg(feature = "emulate")]
pub use emulated::Emulation;
pub use error::{DriverError, Error, Result};
pub use kept::KeptWords;
pub use memory::{DeviceMemory, Reached};
pub use part::{Rows, Section};
pub use pieces::{copy_chains, zero_pieces};
pub use quantise::{Format, Hole, Quantised, QuantisedPage, QuantisedPages, ROW_MAX, seal, unseal, zero_slots};
pub use shift::{BufferRows, Move, shift};
pub use span::Span;
pub use stream::Stream;
pub use strips::{Direction, Strip, Strips, copy_strips};

/// Runs the example of the README as a test.
#[cfg(all(doctest, feature = "emulate"))]
#[doc = include_str!("../README.md")]
struct Readme;
