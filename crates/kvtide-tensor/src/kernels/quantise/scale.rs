//! Scales and minimums: the leading bits of 32-bit floats, with the full range of their exponents.
//!
//! ```text
//! q8   two bytes, a bf16     scale: 8 bits of exponent, 7 of mantissa
//! q4   a word                bits 31..14  minimum: sign, 8 bits of exponent, 9 of mantissa
//!                            bits 13..0   scale: 8 bits of exponent, 6 of mantissa
//! ```
//!
//! Both are rounded to nearest, ties to even. The codes' range may then miss an extreme value by up to half a step, which is
//! the error bound, and rounding to seven bits stays below that. A scale that is not 0 is at least [`SMALLEST`], so that its
//! inverse is finite. All of it is arithmetic that compiles to vector instructions.

/// The smallest normal float.
const SMALLEST: f32 = f32::MIN_POSITIVE;
/// The number of low bits of a float that are cut: from a scale of q8, from a scale of q4, from a minimum of q4.
const Q8_CUT: u32 = 16;
const STEP_CUT: u32 = 17;
const MINIMUM_CUT: u32 = 14;
const STEP_BITS: u32 = (1 << MINIMUM_CUT) - 1;

/// The scale that makes a row of q8 NaN.
pub(super) const Q8_NOT_FINITE: u16 = 0x7fc0;
/// The word that makes a row, or a channel, of q4 NaN: both its scale and its minimum are NaN.
pub(super) const Q4_NOT_FINITE: u32 = 0x7fc0_3fe0;

/// The nearest float whose last `cut` bits are 0, ties to the one with an even last kept bit.
#[inline(always)]
fn nearest(value: f32, cut: u32) -> f32 {
    let bits = value.to_bits();
    let odd = bits >> cut & 1;
    f32::from_bits(bits.wrapping_add(odd + (1 << (cut - 1)) - 1) & !((1 << cut) - 1))
}

/// A scale without its last `cut` bits; 0 if it is not above 0.
#[inline(always)]
fn rounded(scale: f32, cut: u32) -> f32 {
    let normal = if scale > SMALLEST { scale } else { SMALLEST };
    if scale > 0. { nearest(normal, cut) } else { 0. }
}

/// The bits of a scale of q8.
#[inline(always)]
pub(super) fn q8_bits(scale: f32) -> u16 {
    (rounded(scale, Q8_CUT).to_bits() >> Q8_CUT) as u16
}

/// The scale of q8 with these bits.
#[inline(always)]
pub(super) fn q8_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << Q8_CUT)
}

/// The nearest scale that q4 can store.
#[inline(always)]
pub(super) fn q4_step(step: f32) -> f32 {
    rounded(step, STEP_CUT)
}

/// The nearest minimum that q4 can store.
#[inline(always)]
pub(super) fn q4_minimum(minimum: f32) -> f32 {
    nearest(minimum, MINIMUM_CUT)
}

/// The largest minimum that q4 can store and that is not above this.
#[inline(always)]
pub(super) fn q4_minimum_below(minimum: f32) -> f32 {
    let away = if minimum < 0. { STEP_BITS } else { 0 };
    f32::from_bits(minimum.to_bits().wrapping_add(away) & !STEP_BITS)
}

/// The word of a rounded scale and minimum.
#[inline(always)]
pub(super) fn q4_word(step: f32, minimum: f32) -> u32 {
    minimum.to_bits() | step.to_bits() >> STEP_CUT
}

/// Scale and minimum of a word.
#[inline(always)]
pub(super) fn q4_values(word: u32) -> [f32; 2] {
    [f32::from_bits((word & STEP_BITS) << STEP_CUT), f32::from_bits(word & !STEP_BITS)]
}

/// The q8 scale at index `place`; NaN for a NaN row.
#[inline(always)]
pub(super) fn q8_at(scales: &[u8], place: usize) -> f32 {
    q8_value(u16::from_ne_bytes([scales[2 * place], scales[2 * place + 1]]))
}

/// The q4 scale and minimum at index `place`; NaN for a NaN row or channel.
#[inline(always)]
pub(crate) fn q4_at(scales: &[u8], place: usize) -> [f32; 2] {
    let bytes = &scales[4 * place..][..4];
    q4_values(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Writes the q8 scale at index `place`.
#[inline(always)]
pub(super) fn set_q8(scales: &mut [u8], place: usize, bits: u16) {
    scales[2 * place..][..2].copy_from_slice(&bits.to_ne_bytes());
}

/// Writes q4 words from index `first` on.
#[inline(always)]
pub(super) fn set_q4(scales: &mut [u8], first: usize, words: &[u32]) {
    for (bytes, word) in scales[4 * first..].chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
}

/// The inverse of a scale; 0 for a scale of 0.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0. { 0. } else { 1. / scale }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// Numbers of every exponent, at and around the midpoints between shorter numbers.
    fn numbers() -> impl Iterator<Item = f32> {
        (0..0x7f8u32).flat_map(|high| {
            [0, 1, 0x1fff, 0x2000, 0x2001, 0x6000, 0x7fff, 0x8000, 0x8001, 0x1_0000, 0x1_8000, 0x3_0000, 0xf_ffff]
                .map(|low| f32::from_bits(high << 20 | low))
        })
    }

    /// A multiple of the unit of a mantissa with this many bits, rounded with `round`, from the definition.
    fn expected(value: f32, mantissa: i32, round: fn(f64) -> f64) -> f64 {
        let magnitude = f64::from(value.abs());
        let exponent = (-126..128).rev().find(|&exponent| 2f64.powi(exponent) <= magnitude).unwrap_or(-126);
        let unit = 2f64.powi(exponent - mantissa);
        round(f64::from(value) / unit) * unit
    }

    #[test]
    fn scales_and_minimums_are_the_nearest_of_their_bits() {
        let even = f64::round_ties_even;
        for value in numbers().filter(|value| *value < 1e38) {
            let scale = if value == 0. { 0. } else { value.max(SMALLEST) };
            assert_eq!(f64::from(q8_value(q8_bits(value))), expected(scale, 7, even), "{value:e}");
            assert_eq!(q8_value(q8_bits(value)), bf16::from_f32(scale).to_f32(), "{value:e}");
            assert_eq!(f64::from(q4_step(value)), expected(scale, 6, even), "{value:e}");
            for value in [value, -value] {
                assert_eq!(f64::from(q4_minimum(value)), expected(value, 9, even), "{value:e}");
                assert_eq!(f64::from(q4_minimum_below(value)), expected(value, 9, f64::floor), "{value:e}");
                let (step, minimum) = (q4_step(value.abs()), q4_minimum(value));
                assert_eq!(q4_values(q4_word(step, minimum)), [step, minimum], "{value:e}");
            }
        }
    }

    #[test]
    fn what_is_no_number_and_what_is_nothing_have_bits_of_their_own() {
        assert!(q8_value(Q8_NOT_FINITE).is_nan() && q4_values(Q4_NOT_FINITE).iter().all(|value| value.is_nan()));
        assert_eq!((q8_bits(0.), q8_bits(-1.), q4_step(-1.), q4_values(0)), (0, 0, 0., [0.; 2]));
    }
}
