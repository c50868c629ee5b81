//! Captured steps on the CPU that stands in for a GPU, against the same model step by step with the kernels of the CPU: tokens,
//! outputs, and what is cached.
#![cfg(all(feature = "captured-steps", feature = "emulate"))]

mod buffers;
mod decoding;
mod hazards;
mod others;
mod refusals;
mod toy;
