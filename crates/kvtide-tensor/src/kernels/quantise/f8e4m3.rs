//! 8-bit floats: OCP E4M3 without infinities; 0x7f and 0xff are NaN.
//!
//! ```text
//! s eeee mmm     (1 + m / 8) * 2^(e - 7)     e = 0: m * 2^-9
//! ```
//!
//! Rounding is to nearest, ties to even. Finite values over 448 become 448; infinities become NaN, which is written as 0x7f.

use super::bits::{INFINITE, magnitude};

/// Numbers below 2^-6 are subnormal: multiples of 2^-9.
const NORMAL: u32 = 0x3c80_0000;
/// Half of 2^(23 - 9) and its exponent: adding it leaves the multiple of 2^-9 in the low bits, rounded to even.
const SUBNORMAL: u32 = 0x4680_0000;
/// The difference of the exponent biases, and half of the bits that are cut off, minus one.
const REBIASED: u32 = (7u32.wrapping_sub(127) << 23).wrapping_add(0x7_ffff);
const NAN: u32 = 0x7f;
/// 448.
const LARGEST: u32 = 0x7e;

/// Quantises each value.
#[inline(always)]
pub(super) fn encode(values: &[f32], codes: &mut [u8]) {
    for (code, value) in codes.iter_mut().zip(values) {
        *code = encode_one(*value);
    }
}

#[inline(always)]
fn encode_one(value: f32) -> u8 {
    let magnitude = magnitude(value);
    let sign = (value.to_bits() >> 24) & 0x80;
    let small = (f32::from_bits(magnitude) + f32::from_bits(SUBNORMAL)).to_bits().wrapping_sub(SUBNORMAL);
    let odd = (magnitude >> 20) & 1;
    let large = (magnitude.wrapping_add(REBIASED).wrapping_add(odd) >> 20).min(LARGEST);
    let finite = if magnitude < NORMAL { small } else { large };
    (if magnitude >= INFINITE { NAN } else { finite | sign }) as u8
}

/// The magnitudes from which each code except the first is the nearest, ties to even. The portable implementation, which has
/// no bit operations, compares with them.
pub(super) fn bounds<const N: usize>() -> [f32; N] {
    std::array::from_fn(|code| {
        let middle = (decode_one(code as u8) + decode_one(code as u8 + 1)) / 2.;
        // The midpoint itself rounds to the even code.
        if code % 2 == 1 { middle } else { f32::from_bits(middle.to_bits() + 1) }
    })
}

/// The values of codes.
#[inline(always)]
pub(super) fn decode(codes: &[u8], out: &mut [f32]) {
    for (value, code) in out.iter_mut().zip(codes) {
        *value = decode_one(*code);
    }
}

#[inline(always)]
fn decode_one(code: u8) -> f32 {
    let (code, sign) = (u32::from(code) & 0x7f, (u32::from(code) & 0x80) << 24);
    // Puts exponent and mantissa in place; 2^120 is the difference of the biases.
    let value = f32::from_bits(code << 20) * f32::from_bits((120 + 127) << 23);
    let bits = if code == NAN { 0x7fc0_0000 } else { value.to_bits() };
    f32::from_bits(bits | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a code, from the definition.
    fn value(code: u8) -> f64 {
        let (e, m) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let magnitude = match code & 0x7f {
            0x7f => f64::NAN,
            _ if e == 0 => m * 2f64.powi(-9),
            _ => (1. + m / 8.) * 2f64.powi(e - 7),
        };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    fn code_of(value: f32) -> u8 {
        let mut code = [0];
        encode(&[value], &mut code);
        code[0]
    }

    #[test]
    fn every_code_has_its_value_and_comes_back() {
        for code in 0..=255u8 {
            let mut decoded = [0.];
            decode(&[code], &mut decoded);
            let expected = value(code);
            assert!(f64::from(decoded[0]) == expected || decoded[0].is_nan() && expected.is_nan(), "{code:#x}");
            assert_eq!(decoded[0].is_sign_negative(), code & 0x80 != 0);
            assert_eq!(code_of(decoded[0]), if decoded[0].is_nan() { 0x7f } else { code });
        }
    }

    #[test]
    fn values_go_to_the_nearest_code_and_halves_to_the_even_one() {
        for code in 0..0x7eu8 {
            let (low, high) = (value(code), value(code + 1));
            let middle = ((low + high) / 2.) as f32;
            let even = if code % 2 == 0 { code } else { code + 1 };
            assert_eq!(code_of(middle), even, "{middle}");
            assert_eq!(code_of(-middle), even | 0x80);
            assert_eq!(code_of(f32::from_bits(middle.to_bits() - 1)), code);
            assert_eq!(code_of(f32::from_bits(middle.to_bits() + 1)), code + 1);
        }
    }

    #[test]
    fn what_is_too_large_saturates_and_what_is_infinite_is_nan() {
        for large in [448.1, 463.9, 464., 480., 512., 1e9, f32::MAX] {
            assert_eq!((code_of(large), code_of(-large)), (0x7e, 0xfe), "{large}");
        }
        for nan in [f32::INFINITY, f32::NAN, f32::from_bits(0x7f80_0001)] {
            assert_eq!((code_of(nan), code_of(-nan)), (0x7f, 0x7f));
        }
        assert_eq!((code_of(0.), code_of(-0.), code_of(1e-40), code_of(-1e-9)), (0, 0x80, 0, 0x80));
    }
}
