//! Scales as f16, in arithmetic that compiles to vectors: the conversions of the `half` crate are calls.
//!
//! Rounding is to nearest, halves to even; what is beyond the largest f16 becomes it.

use half::f16;

/// From 2^-14 on, numbers are normal.
const NORMAL: u32 = 0x3880_0000;
/// What is added to a smaller one to leave the multiple of 2^-24 in the low bits.
const SUBNORMAL: f32 = 0.5;
const LARGEST: f32 = 65504.;
const NAN: u16 = 0x7e00;

/// The bits of the nearest f16 of a finite number.
#[inline(always)]
pub(super) fn nearest(value: f32) -> u16 {
    let value = value.clamp(-LARGEST, LARGEST);
    let magnitude = super::magnitude(value);
    let sign = (value.to_bits() >> 16) & 0x8000;
    let small = (f32::from_bits(magnitude) + SUBNORMAL).to_bits().wrapping_sub(SUBNORMAL.to_bits());
    let odd = (magnitude >> 13) & 1;
    let large = magnitude.wrapping_add(0xfff).wrapping_add(odd).wrapping_sub((127 - 15) << 23) >> 13;
    (if magnitude < NORMAL { small } else { large } | sign) as u16
}

/// The value of an f16 that is finite.
#[inline(always)]
pub(super) fn value(bits: u16) -> f32 {
    let (magnitude, sign) = (u32::from(bits) & 0x7fff, (u32::from(bits) & 0x8000) << 16);
    let value = f32::from_bits(magnitude << 13) * f32::from_bits((112 + 127) << 23);
    f32::from_bits(value.to_bits() | sign)
}

/// A scale that makes everything NaN.
pub(super) const NOT_FINITE: u16 = NAN;

/// The scale numbered `place`; NaN when it says so.
#[inline(always)]
pub(crate) fn get(scales: &[u8], place: usize) -> f32 {
    f16::from_ne_bytes([scales[2 * place], scales[2 * place + 1]]).to_f32()
}

/// Writes scales down, the first one numbered `first`.
#[inline(always)]
pub(super) fn set(scales: &mut [u8], first: usize, bits: &[u16]) {
    for (bytes, bits) in scales[2 * first..].chunks_exact_mut(2).zip(bits) {
        bytes.copy_from_slice(&bits.to_ne_bytes());
    }
}

/// What a scale is multiplied with to give 1; nothing is left of a scale of 0.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0. { 0. } else { 1. / scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_those_of_the_half_crate() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(value(bits).to_bits(), half.to_f32().to_bits());
                // The number itself, and numbers at and round the middle to the next one.
                for step in [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff] {
                    let number = f32::from_bits(half.to_f32().to_bits() + step);
                    let expected = f16::from_f32(number);
                    let expected = if expected.is_finite() { expected.to_bits() } else { 0x7bff | bits & 0x8000 };
                    assert_eq!(nearest(number), expected, "{number}");
                }
            }
        }
        for exponent in -40..40 {
            for mantissa in [1f32, 1.3, 1.5, 1.7502441] {
                let number = mantissa * 2f32.powi(exponent);
                let expected = f16::from_f32(number.min(65504.)).to_bits();
                assert_eq!((nearest(number), nearest(-number)), (expected, expected | 0x8000), "{number}");
            }
        }
    }
}
