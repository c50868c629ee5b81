//! The loops of state layers over rows of floats: safe code that the compiler vectorises.
//!
//! ```text
//! matrix      a state that gets one token, and sums over its rows
//! channels    a convolution, and a state for each channel
//! exponential e^x, SiLU, softplus
//! triangle    rows of a chunk: products of decays, rows times factors
//! wide        the same loops, compiled for the vector instructions of the machine
//! ```
//!
//! Sums are in the order of the rows, whatever the number of rows at once: the same numbers give the same bits.

pub(crate) mod channels;
pub(crate) mod exponential;
pub(crate) mod matrix;
pub(crate) mod triangle;
pub(crate) mod wide;

/// `factor * other + term`, rounded once if `FUSED`: without the instruction for it, one rounding takes a function call.
#[inline(always)]
fn mul_add<const FUSED: bool>(factor: f32, other: f32, term: f32) -> f32 {
    if FUSED { factor.mul_add(other, term) } else { factor * other + term }
}
