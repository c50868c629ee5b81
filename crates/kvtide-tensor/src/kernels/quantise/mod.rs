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
mod f8e4m3;
mod hadamard;
mod launched;
mod portable;
mod q4;
mod q8;
mod scale;
mod wide;
mod zero;

use kvtide_core::paged::{KeyOrValue, PageFormat, SectionLayout};

pub(crate) use hadamard::hadamard;
pub(crate) use launched::{LaunchedRows, launched_part};
pub(crate) use scale::q4_at;

pub(crate) use crate::base::dtype::{from_f32, saturate, to_f32};
use crate::device::form::Form;

/// The quantisation of one part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codec {
    format: PageFormat,
    part: KeyOrValue,
    /// The elements of a row.
    dim: usize,
    /// The bytes of a row's codes.
    row_bytes: usize,
    /// The rows of a head.
    block_size: usize,
    /// True if K is rotated before it is quantised.
    rotated: bool,
}

impl Codec {
    /// The codec for a section of low-bit pages; `None` if its rows are stored unquantised.
    pub fn of(part: KeyOrValue, section: &SectionLayout, rotated: bool) -> Option<Self> {
        let SectionLayout { format, head_dim, row_bytes, head_bytes, .. } = *section;
        (format.is_low_bit() && head_dim > 0).then(|| Codec {
            format,
            part,
            dim: head_dim,
            row_bytes,
            block_size: head_bytes / row_bytes,
            rotated: rotated && part == KeyOrValue::Key,
        })
    }

    /// The elements of a head.
    pub fn elements(&self) -> usize {
        self.block_size * self.dim
    }

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

    #[inline(always)]
    fn encode_plain(&self, values: &mut [f32], codes: &mut [u8], scales: &mut [u8]) {
        if self.rotated {
            for row in values.chunks_exact_mut(self.dim) {
                hadamard(row);
            }
        }
        match (self.format, self.part) {
            (PageFormat::F8E4M3, _) => f8e4m3::encode(values, codes),
            (PageFormat::Q8, _) => q8::encode(values, self.dim, codes, scales),
            (_, KeyOrValue::Value) => q4::encode_rows(values, self.dim, codes, scales),
            (_, KeyOrValue::Key) => q4::encode_channels(values, self.dim, codes, scales),
        }
    }

    #[inline(always)]
    fn decode_plain(&self, codes: &[u8], scales: &[u8], slot: usize, out: &mut [f32]) {
        let codes = &codes[slot * self.row_bytes..][..out.len() / self.dim * self.row_bytes];
        match (self.format, self.part) {
            (PageFormat::F8E4M3, _) => f8e4m3::decode(codes, out),
            (PageFormat::Q8, _) => q8::decode(codes, &scales[2 * slot..], self.dim, out),
            (_, KeyOrValue::Value) => q4::decode_rows(codes, &scales[4 * slot..], self.dim, out),
            (_, KeyOrValue::Key) => q4::decode_channels(codes, scales, self.dim, out),
        }
        if self.rotated {
            for row in out.chunks_exact_mut(self.dim) {
                hadamard(row);
            }
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
