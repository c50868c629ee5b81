//! Four bits with a scale and a minimum: value = code * scale + minimum, code in 0..=15.
//!
//! ```text
//! a row, in groups of 32 elements; the last may be shorter, of g elements, h = ceil(g / 2)
//! byte i of a group   [ element h + i ][ element i ]     high, low nibble
//! ```
//!
//! V has one word with scale and minimum per row, K one per channel, over the rows of the block. Both are rounded to the
//! nearest numbers that a word can store, unless a value would then be more than half a step outside the range of the codes
//! 0..=15; in that case the minimum is rounded down.
//!
//! A row (for K, a channel) with NaN or infinity has the scale NaN, so all of it is NaN. Magnitudes over 2^126 count as
//! 2^126, because the difference of the largest and the smallest value must be a finite float.

use super::bits::{INFINITE, magnitude, whole};
use super::scale::{self, Q4_NOT_FINITE};

/// The elements of a group, and the bytes of their codes.
const GROUP: usize = 32;
const HALF: usize = GROUP / 2;
/// The largest magnitude that can be coded.
const LARGEST: f32 = f32::from_bits((126 + 127) << 23);
/// The factor that divides a range into 15 steps.
const STEPS: f32 = 1. / 15.;

/// The smallest and largest of values side by side, and their largest magnitude, which tells whether all are finite.
struct Bounds<const N: usize> {
    low: [f32; N],
    high: [f32; N],
    largest: [u32; N],
}

/// The parameters that turn values of a group into codes.
struct Steps<const N: usize> {
    factors: [f32; N],
    minimums: [f32; N],
}

impl<const N: usize> Bounds<N> {
    #[inline(always)]
    fn none() -> Self {
        Bounds { low: [f32::INFINITY; N], high: [f32::NEG_INFINITY; N], largest: [0; N] }
    }

    /// Includes one value for each of the first places.
    #[inline(always)]
    fn widen(&mut self, values: &[f32]) {
        let places = self.low.iter_mut().zip(&mut self.high).zip(&mut self.largest);
        for (((low, high), largest), &value) in places.zip(values) {
            *low = if value < *low { value } else { *low };
            *high = if value > *high { value } else { *high };
            *largest = magnitude(value).max(*largest);
        }
    }

    /// The bounds of a row, repeated in each place.
    #[inline(always)]
    fn of_row(row: &[f32]) -> Self {
        let (low, high, largest) = row.iter().fold((i32::MAX, i32::MIN, 0), |(low, high, largest), &value| {
            let place = ordered(value.to_bits() as i32);
            (place.min(low), place.max(high), magnitude(value).max(largest))
        });
        let value = |place| f32::from_bits(ordered(place) as u32);
        Bounds { low: [value(low); N], high: [value(high); N], largest: [largest; N] }
    }

    /// The word of each place; the NaN word if a value is not finite.
    #[inline(always)]
    fn words(&self) -> [u32; N] {
        let mut words = [0; N];
        for (place, word) in words.iter_mut().enumerate() {
            let found = word_of(self.low[place], self.high[place]);
            *word = if self.largest[place] < INFINITE { found } else { Q4_NOT_FINITE };
        }
        words
    }
}

/// The word of values from `low` to `high`, both finite.
#[inline(always)]
pub(super) fn word_of(low: f32, high: f32) -> u32 {
    // Adding 0 turns a bound of -0 into 0.
    let (low, high) = (low.clamp(-LARGEST, LARGEST) + 0., high.clamp(-LARGEST, LARGEST) + 0.);
    let step = |minimum: f32| scale::q4_step((high - minimum) * STEPS);
    let (nearest, below) = (scale::q4_minimum(low), scale::q4_minimum_below(low));
    let (of_nearest, of_below) = (step(nearest), step(below));
    let reaches = (nearest - low) * 2. <= of_nearest;
    scale::q4_word(if reaches { of_nearest } else { of_below }, if reaches { nearest } else { below })
}

/// Maps the bits of a float to an integer that compares as the float does, and back. The smallest integer is found with
/// vector instructions; floats would be compared one by one.
#[inline(always)]
fn ordered(bits: i32) -> i32 {
    bits ^ (bits >> 31 & i32::MAX)
}

impl<const N: usize> Steps<N> {
    /// The parameters for these words, one per place; a NaN word makes all codes 0.
    #[inline(always)]
    fn of(words: &[u32; N]) -> Self {
        let mut steps = Steps { factors: [0.; N], minimums: [0.; N] };
        for (place, &word) in words.iter().enumerate() {
            let [scale, minimum] = scale::q4_values(word);
            let finite = word != Q4_NOT_FINITE;
            steps.factors[place] = if finite { scale::inverse(scale) } else { 0. };
            steps.minimums[place] = if finite { minimum } else { 0. };
        }
        steps
    }

    #[inline(always)]
    fn code(&self, place: usize, value: f32) -> u8 {
        let steps = ((value - self.minimums[place]) * self.factors[place]).clamp(0., 15.);
        if steps.is_nan() { 0 } else { whole(steps) }
    }
}

/// Quantises rows of `dim` values; each row has a scale and a minimum.
#[inline(always)]
pub(super) fn encode_rows(values: &[f32], dim: usize, codes: &mut [u8], scales: &mut [u8]) {
    let row_bytes = dim.div_ceil(2);
    for (place, (row, codes)) in values.chunks_exact(dim).zip(codes.chunks_exact_mut(row_bytes)).enumerate() {
        let words = Bounds::<1>::of_row(row).words();
        scale::set_q4(scales, place, &words);
        let Steps { factors: [factor], minimums: [minimum] } = Steps::of(&words);
        let steps = Steps { factors: [factor; GROUP], minimums: [minimum; GROUP] };
        for (group, codes) in row.chunks(GROUP).zip(codes.chunks_mut(HALF)) {
            pack(group, codes, &steps);
        }
    }
}

/// Quantises rows of `dim` values; each channel has a scale and a minimum.
#[inline(always)]
pub(super) fn encode_channels(values: &[f32], dim: usize, codes: &mut [u8], scales: &mut [u8]) {
    let row_bytes = dim.div_ceil(2);
    for start in (0..dim).step_by(GROUP) {
        let group = GROUP.min(dim - start);
        let mut bounds = Bounds::<GROUP>::none();
        for row in values.chunks_exact(dim) {
            let group = &row[start..start + group];
            match <&[f32; GROUP]>::try_from(group) {
                Ok(group) => bounds.widen(group),
                Err(_) => bounds.widen(group),
            }
        }
        let words = bounds.words();
        scale::set_q4(scales, start, &words[..group]);
        let steps = Steps::of(&words);
        for (row, codes) in values.chunks_exact(dim).zip(codes.chunks_exact_mut(row_bytes)) {
            pack(&row[start..start + group], &mut codes[start / 2..][..group.div_ceil(2)], &steps);
        }
    }
}

/// Writes the codes of a group.
#[inline(always)]
fn pack(group: &[f32], codes: &mut [u8], steps: &Steps<GROUP>) {
    if let (Ok(group), Ok(codes)) = (<&[f32; GROUP]>::try_from(group), <&mut [u8; HALF]>::try_from(&mut *codes)) {
        let mut each = [0; GROUP];
        for (place, code) in each.iter_mut().enumerate() {
            *code = steps.code(place, group[place]);
        }
        for (place, byte) in codes.iter_mut().enumerate() {
            *byte = each[place] | each[HALF + place] << 4;
        }
        return;
    }
    let (low, high) = group.split_at(codes.len());
    for (place, byte) in codes.iter_mut().enumerate() {
        let above = high.get(place).map_or(0, |&value| steps.code(low.len() + place, value));
        *byte = steps.code(place, low[place]) | above << 4;
    }
}

/// Dequantises rows of codes; each row has a scale and a minimum.
#[inline(always)]
pub(super) fn decode_rows(codes: &[u8], scales: &[u8], dim: usize, out: &mut [f32]) {
    for (place, (row, codes)) in out.chunks_exact_mut(dim).zip(codes.chunks_exact(dim.div_ceil(2))).enumerate() {
        let [step, minimum] = scale::q4_at(scales, place);
        let (steps, minimums) = ([step; GROUP], [minimum; GROUP]);
        for (group, codes) in row.chunks_mut(GROUP).zip(codes.chunks(HALF)) {
            unpack(codes, group, &steps, &minimums);
        }
    }
}

/// Dequantises rows of codes; each channel has a scale and a minimum.
#[inline(always)]
pub(super) fn decode_channels(codes: &[u8], scales: &[u8], dim: usize, out: &mut [f32]) {
    let row_bytes = dim.div_ceil(2);
    for start in (0..dim).step_by(GROUP) {
        let group = GROUP.min(dim - start);
        let (mut steps, mut minimums) = ([0.; GROUP], [0.; GROUP]);
        for channel in 0..group {
            [steps[channel], minimums[channel]] = scale::q4_at(scales, start + channel);
        }
        for (row, codes) in out.chunks_exact_mut(dim).zip(codes.chunks_exact(row_bytes)) {
            let codes = &codes[start / 2..][..group.div_ceil(2)];
            unpack(codes, &mut row[start..start + group], &steps, &minimums);
        }
    }
}

/// Dequantises a group.
#[inline(always)]
fn unpack(codes: &[u8], group: &mut [f32], steps: &[f32; GROUP], minimums: &[f32; GROUP]) {
    if let (Ok(group), Ok(codes)) = (<&mut [f32; GROUP]>::try_from(&mut *group), <&[u8; HALF]>::try_from(codes)) {
        for place in 0..HALF {
            group[place] = f32::from(codes[place] & 15) * steps[place] + minimums[place];
            let above = HALF + place;
            group[above] = f32::from(codes[place] >> 4) * steps[above] + minimums[above];
        }
        return;
    }
    let (low, high) = group.split_at_mut(codes.len());
    for (place, (out, byte)) in low.iter_mut().zip(codes).enumerate() {
        *out = f32::from(byte & 15) * steps[place] + minimums[place];
    }
    for (place, (out, byte)) in (codes.len()..).zip(high.iter_mut().zip(codes)) {
        *out = f32::from(byte >> 4) * steps[place] + minimums[place];
    }
}
