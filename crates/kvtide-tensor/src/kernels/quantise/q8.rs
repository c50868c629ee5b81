//! Bytes with a scale for each row: value = code * scale, scale = the largest magnitude / 127, code in -127..=127.
//!
//! A row with NaN or infinity in it has the scale NaN, and so is all NaN.

use half::f16;

use super::{INFINITE, inverse, magnitude, scale, set_scale, to_scale, whole};

/// Elements that are looked at side by side, so that the search for the largest compiles to vectors.
const LANES: usize = 16;

/// Quantises rows of `dim` values.
#[inline(always)]
pub(super) fn encode(values: &[f32], dim: usize, codes: &mut [u8], scales: &mut [u8]) {
    for (place, (row, codes)) in values.chunks_exact(dim).zip(codes.chunks_exact_mut(dim)).enumerate() {
        let largest = largest(row);
        let finite = largest < INFINITE;
        let scale = if finite { to_scale(f32::from_bits(largest) / 127.) } else { f16::NAN };
        set_scale(scales, place, scale);
        let factor = if finite { inverse(scale.to_f32()) } else { 0. };
        for (code, value) in codes.iter_mut().zip(row) {
            let steps = (value * factor).clamp(-127., 127.);
            *code = if finite { whole(steps) } else { 0 };
        }
    }
}

/// The largest magnitude in a row, as bits.
#[inline(always)]
fn largest(row: &[f32]) -> u32 {
    let mut lanes = [0; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = magnitude(*value).max(*lane);
        }
    }
    rest.iter().map(|value| magnitude(*value)).chain(lanes).max().unwrap_or(0)
}

/// The values of rows of `dim` codes.
#[inline(always)]
pub(super) fn decode(codes: &[u8], scales: &[u8], dim: usize, out: &mut [f32]) {
    for (place, (row, codes)) in out.chunks_exact_mut(dim).zip(codes.chunks_exact(dim)).enumerate() {
        let scale = scale(scales, place);
        for (value, code) in row.iter_mut().zip(codes) {
            *value = f32::from(*code as i8) * scale;
        }
    }
}
