//! Bytes with one scale per row: value = code * scale, scale = the largest magnitude / 127, code in -127..=127.
//!
//! The scale is rounded to eight bits, and may be up to one part in 256 too small: then the largest value is 127.497 scales,
//! less than half a step from code 127.
//!
//! A row with NaN or infinity has the scale NaN, so all of it is NaN. A separate code for NaN would cost attention one
//! comparison per code, and in attention a row of K with a NaN gives NaN whatever its other elements are.

use super::bits::{INFINITE, magnitude, whole};
use super::scale::{self, Q8_NOT_FINITE};

/// Quantises rows of `dim` values.
#[inline(always)]
pub(super) fn encode(values: &[f32], dim: usize, codes: &mut [u8], scales: &mut [u8]) {
    for (place, (row, codes)) in values.chunks_exact(dim).zip(codes.chunks_exact_mut(dim)).enumerate() {
        let bits = scale_of(largest(row));
        scale::set_q8(scales, place, bits);
        if bits == Q8_NOT_FINITE {
            codes.fill(0);
            continue;
        }
        let factor = scale::inverse(scale::q8_value(bits));
        for (code, value) in codes.iter_mut().zip(row) {
            *code = whole((value * factor).clamp(-127., 127.));
        }
    }
}

/// The scale of a row, from the bits of its largest magnitude.
#[inline(always)]
pub(super) fn scale_of(largest: u32) -> u16 {
    if largest >= INFINITE { Q8_NOT_FINITE } else { scale::q8_bits(f32::from_bits(largest) / 127.) }
}

/// The bits of the largest magnitude in a row. The largest integer is found with vector instructions; floats would be
/// compared one by one.
#[inline(always)]
fn largest(row: &[f32]) -> u32 {
    row.iter().fold(0, |largest, value| largest.max(magnitude(*value)))
}

/// Dequantises rows of `dim` codes.
#[inline(always)]
pub(super) fn decode(codes: &[u8], scales: &[u8], dim: usize, out: &mut [f32]) {
    for (place, (row, codes)) in out.chunks_exact_mut(dim).zip(codes.chunks_exact(dim)).enumerate() {
        let scale = scale::q8_at(scales, place);
        for (value, code) in row.iter_mut().zip(codes) {
            *value = f32::from(*code as i8) * scale;
        }
    }
}
