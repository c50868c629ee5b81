//! Converts rows of floats to low-bit codes, and back.
//!
//! There is one file per format, written once, without intrinsics: loops over neighbouring elements that compile to vector
//! instructions. `wide.rs` compiles these loops for the vector instructions of the machine, `portable.rs` does the same with
//! candle's tensor operations, and `launched.rs` uses a device's kernels. All implementations give the same codes.
//!
//! | format | a code's value | values that cannot be represented |
//! | --- | --- | --- |
//! | `f8e4m3` | the float itself | over 448: 448; infinity: NaN |
//! | `q8` | code * scale, code in -127..=127 | NaN or infinity in a row of a head: the whole row is NaN |
//! | `q4` | code * scale + minimum, code in 0..=15 | the same, for K in a channel of a head and block; over 2^126: 2^126 |
//!
//! The error is at most half a step plus the rounding of f32: half the distance between neighbouring codes for f8e4m3, for
//! the others half a scale as it is stored (`scale.rs`), or 2^-127 if that is larger. This holds for every magnitude of a
//! float, except over 448 in f8e4m3 and over 2^126 in q4. Rotated rows need sums of their elements to be finite floats: it
//! holds up to the largest float divided by the number of elements in a row. A row costs O(elements).

mod bits;
mod codec;
mod f8e4m3;
mod hadamard;
mod launched;
mod portable;
mod q4;
mod q8;
mod scale;
mod wide;
mod zero;

pub(crate) use codec::Codec;
pub(crate) use hadamard::hadamard;
pub(crate) use launched::{LaunchedRows, launched_part};
pub(crate) use scale::q4_at;

pub(crate) use crate::base::dtype::{from_f32, saturate, to_f32};
use crate::device::form::Form;

impl Codec {
    /// Quantises all rows of a head; `values` are overwritten.
    pub fn encode(&self, values: &mut [f32], codes: &mut [u8], scales: &mut [u8]) {
        assert_eq!((values.len(), codes.len()), (self.elements(), self.block_size * self.row_bytes), "a whole head");
        match form() {
            Form::Bytes(kernels) => wide::encode(kernels, self, values, codes, scales),
            _ => self.encode_portable(values, codes, scales),
        }
    }

    /// Dequantises rows of a head with these codes and scales, from `slot` on, as many as `out` has room for.
    pub fn decode(&self, codes: &[u8], scales: &[u8], slot: usize, out: &mut [f32]) {
        let count = out.len() / self.dim;
        assert!(out.len() == count * self.dim && slot + count <= self.block_size, "rows of a head");
        match form() {
            Form::Bytes(kernels) => wide::decode(kernels, self, codes, scales, slot, out),
            _ => self.decode_portable(codes, scales, slot, out),
        }
    }
}

/// The implementation in use. If the environment requests one that cannot run, making the cache has already failed.
fn form() -> Form {
    Form::of_host().unwrap_or(Form::Portable)
}

#[cfg(test)]
#[path = "../../../tests/inside/quantise.rs"]
mod tests;
