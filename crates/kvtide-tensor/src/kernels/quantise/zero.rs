//! Sets rows of a quantised head to zero, exactly, and leaves the other rows in place.
//!
//! ```text
//! f8e4m3, q8, q4 of V    a row has its own codes and scales: they become zeros
//! q4 of K                a channel has one scale for all rows, and zero must be one of its codes:
//!                        value = (code - z) * scale     minimum = -z * scale, z in 0..=15
//! ```
//!
//! Such a scale has at most six binary digits, so that `z * scale` is a minimum without rounding. It spans the range from
//! the smallest to the largest of the remaining values and 0. The remaining values change by at most half of the new scale.
//! A channel that is NaN stays NaN. Codes are converted to codes, without dequantising rows, so that nothing is rotated
//! twice and every machine gives the same result. O(elements).

use std::ops::Range;

use kvtide_core::paged::{KeyOrValue, PageFormat};

use super::codec::Codec;
use super::scale;

/// The elements of a group of q4.
const GROUP: usize = 32;

impl Codec {
    /// Sets the rows of these slots of a head to zero.
    pub fn zero(&self, codes: &mut [u8], scales: &mut [u8], slots: &[Range<u32>]) {
        if self.has_channel_scales() {
            (0..self.dim).for_each(|channel| self.zero_channel(channel, codes, scales, slots));
        } else {
            self.erase(codes, scales, slots);
        }
    }

    /// Erases the rows of these slots of a head and keeps all other bits. Erased rows become zeros or, if a channel has one
    /// scale for all rows, the channel's smallest value.
    pub fn erase(&self, codes: &mut [u8], scales: &mut [u8], slots: &[Range<u32>]) {
        let scale_bytes = if self.has_channel_scales() { 0 } else { scales.len() / self.block_size };
        for run in slots.iter().map(|run| run.start as usize..run.end as usize) {
            codes[run.start * self.row_bytes..run.end * self.row_bytes].fill(0);
            scales[run.start * scale_bytes..run.end * scale_bytes].fill(0);
        }
    }

    fn has_channel_scales(&self) -> bool {
        (self.format, self.part) == (PageFormat::Q4, KeyOrValue::Key)
    }

    fn zero_channel(&self, channel: usize, codes: &mut [u8], scales: &mut [u8], slots: &[Range<u32>]) {
        let [before, minimum] = scale::q4_at(scales, channel);
        if before.is_nan() {
            return;
        }
        let is_zero = |row: usize| slots.iter().any(|run| run.contains(&(row as u32)));
        let (byte, shift) = place(channel, self.dim);
        let value =
            |codes: &[u8], row: usize| f32::from(codes[row * self.row_bytes + byte] >> shift & 15) * before + minimum;
        let stay = (0..self.block_size).filter(|&row| !is_zero(row)).map(|row| value(codes, row));
        let (low, high) = stay.fold((0f32, 0f32), |(low, high), value| (low.min(value), high.max(value)));
        let after = six_digits((high - low) / 15.);
        let factor = scale::inverse(after);
        let zero = (-low * factor).round_ties_even();
        for row in 0..self.block_size {
            let code = match is_zero(row) {
                true => zero,
                false => (value(codes, row) * factor + zero).round_ties_even().clamp(0., 15.),
            };
            let both = &mut codes[row * self.row_bytes + byte];
            *both = *both & !(15 << shift) | (code as u8) << shift;
        }
        scale::set_q4(scales, channel, &[scale::q4_word(after, -zero * after)]);
    }
}

/// The byte in a row of a channel's code, and the number of bits by which the code is shifted in it.
fn place(channel: usize, dim: usize) -> (usize, u32) {
    let start = channel / GROUP * GROUP;
    let half = GROUP.min(dim - start).div_ceil(2);
    let at = channel - start;
    (start / 2 + at % half, if at < half { 0 } else { 4 })
}

/// The smallest scale with at most six binary digits that is not below this.
fn six_digits(value: f32) -> f32 {
    let scale = value.max(f32::MIN_POSITIVE);
    if value > 0. { f32::from_bits((scale.to_bits() + 0x3_ffff) & !0x3_ffff) } else { 0. }
}

#[cfg(test)]
mod tests {
    use kvtide_core::paged::{PageLayout, PageShape, SectionLayout};

    use super::*;

    #[test]
    fn every_multiple_of_a_scale_of_six_digits_is_a_minimum() {
        for exponent in -149..123 {
            for mantissa in [1f32, 1.001, 1.3, 1.49, 1.9999] {
                let value = mantissa * 2f32.powi(exponent);
                let found = six_digits(value);
                let most = (value * (1. + 1. / 32.)).max(f32::MIN_POSITIVE);
                assert!((value..=most).contains(&found), "{value:e}: {found:e}");
                assert_eq!(scale::q4_step(found), found, "{value:e}");
                for times in 0..=15 {
                    let product = f32::from(times as u8) * found;
                    assert_eq!(scale::q4_minimum(product), product, "{times} * {found:e}");
                    assert_eq!(f64::from(product), f64::from(times) * f64::from(found), "{times} * {found:e}");
                }
            }
        }
        assert_eq!((six_digits(0.), six_digits(-0.)), (0., 0.));
    }

    fn section(format: PageFormat, part: KeyOrValue, dim: u32) -> SectionLayout {
        let (key_format, value_format) = (format, format);
        let (head_dim, value_head_dim) = (dim, dim);
        let shape = PageShape {
            block_size: 16,
            num_layers: 1,
            num_kv_heads: 1,
            head_dim,
            value_head_dim,
            key_format,
            value_format,
        };
        PageLayout::new(shape).unwrap().section(part)
    }

    /// Numbers of all signs and magnitudes, in a fixed order.
    fn values(count: usize, low: f32, high: f32) -> Vec<f32> {
        (0..count).map(|i| low + (high - low) * ((i * 7919 + 13) % 1009) as f32 / 1008.).collect()
    }

    #[test]
    fn rows_are_zero_to_the_bit_and_the_others_stay_within_a_step() {
        let ranges = [(-1., 1.), (0.5, 3.), (-900., -2.), (2e-6, 9e-6), (-6e30, 7e30), (-1e-30, 3e-31), (5., 5.)];
        for (format, dim, hadamard) in [PageFormat::F8E4M3, PageFormat::Q8, PageFormat::Q4]
            .into_iter()
            .flat_map(|format| [(format, 7, false), (format, 64, true), (format, 45, false)])
        {
            for (part, (low, high)) in KeyOrValue::BOTH.into_iter().flat_map(|part| ranges.map(|range| (part, range))) {
                let section = section(format, part, dim as u32);
                let codec = Codec::of(part, &section, hadamard).unwrap();
                let (mut codes, mut scales) = (vec![0; section.head_bytes], vec![0; section.scale_bytes]);
                codec.encode(&mut values(16 * dim, low, high), &mut codes, &mut scales);
                let decoded = |codes: &[u8], scales: &[u8]| {
                    let mut out = vec![0.; 16 * dim];
                    codec.decode(codes, scales, 0, &mut out);
                    out
                };
                let before = decoded(&codes, &scales);
                let holes = [1..3, 7..8, 12..16];
                codec.zero(&mut codes, &mut scales, &holes);
                let after = decoded(&codes, &scales);
                // Half a scale of the widest channel, which in rotated rows may be any channel.
                let step = (high.max(0.) - low.min(0.)) / 15. * if hadamard { 8. } else { 0.525 };
                for (at, (&before, &after)) in before.iter().zip(&after).enumerate() {
                    let slot = (at / dim) as u32;
                    match holes.iter().any(|run| run.contains(&slot)) {
                        true => assert_eq!(after, 0., "{format:?} {part:?} {dim} of {low}..{high}"),
                        false => assert!((before - after).abs() <= step, "{format:?} {part:?} {before} is {after}"),
                    }
                }
            }
        }
    }
}
