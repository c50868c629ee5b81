//! Layers that keep a state of a fixed size for each sequence instead of keys and values: short convolutions, linear
//! attention with its gated and delta rules, and state space models.
//!
//! ```text
//! step            the sequences of a step: rows of all tokens, a state before and a state after for each sequence
//! rows            rows of floats at equal distances
//! short_conv      a causal depthwise convolution                          state: the last columns
//! linear_attention, ssm -> recurrence/                                    state: a matrix for each head
//!   recurrence/token    token by token                                    reads and writes a state once a token
//!   recurrence/chunk    64 tokens at a time, as products of matrices      reads and writes a state once a chunk
//! channel_ssm     state space models with a decay for each channel        state: some numbers for each channel
//! ```
//!
//! - Batches are ragged: the rows of all sequences are in one tensor, `offsets` has the first row of each, and the number of
//!   rows at its end. A sequence without rows keeps its state.
//! - A state is never changed: the new one goes to other memory, `target`. Without a `source` it begins with zeros.
//! - A unit of work is one sequence and some heads, or channels. Its results depend on its own numbers alone: neither other
//!   sequences nor the number of threads change a bit. A prompt that is cut gives the same results but for rounding; steps
//!   of fewer than [`CHUNKED_MIN`] tokens give the bits of single tokens.
//! - States and inputs are 32-bit floats. NaN and infinities go where the formulas take them.
//!
//! Without vector instructions, every recurrence runs token by token.

mod channel_ssm;
mod linear_attention;
mod recurrence;
mod rows;
mod short_conv;
mod ssm;
mod step;

pub use channel_ssm::{ChannelSsm, channel_ssm};
pub use linear_attention::{LinearAttention, linear_attention};
pub use recurrence::CHUNKED_MIN;
pub use rows::Rows;
pub use short_conv::{Order, ShortConv, short_conv};
pub use ssm::{Ssm, StepTimes, ssm};
pub use step::StepState;
pub(crate) use step::zeros;
