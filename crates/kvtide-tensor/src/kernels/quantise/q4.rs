//! Four bits with a scale and a minimum: value = code * scale + minimum, code in 0..=15.
//!
//! ```text
//! a row, in groups of 32 elements; the last may be shorter, of g elements, h = ceil(g / 2)
//! byte i of a group   [ element h + i ][ element i ]     high, low nibble
//! ```
//!
//! V has a scale and a minimum for each row: `[rows][scale, minimum]`. K has them for each channel, over the rows of the
//! block: `[scales][minimums]`. The minimum is rounded down and the scale up, so that 0..=15 reach over every value.
//!
//! A row (of K: a channel) with NaN or infinity in it has the scale NaN, and so is all NaN.

use half::f16;

use super::{INFINITE, inverse, magnitude, scale, set_scale, to_scale, whole};

/// Elements of a group.
const GROUP: usize = 32;
/// Elements that are looked at side by side.
const LANES: usize = 16;
/// More than the distance of an f16 from a neighbour, relative and at the small end.
const NEXT: f32 = 1. / 1024.;
const LEAST: f32 = 1. / 16_777_216.;

/// Smallest and largest of values, and whether all are finite.
#[derive(Clone, Copy)]
struct Bounds {
    low: f32,
    high: f32,
    largest: u32,
}

impl Bounds {
    const NONE: Bounds = Bounds { low: f32::INFINITY, high: f32::NEG_INFINITY, largest: 0 };

    /// Scale and minimum; both NaN when a value is not finite.
    #[inline(always)]
    fn scales(self) -> (f16, f16) {
        if self.largest >= INFINITE {
            return (f16::NAN, f16::NAN);
        }
        let nearest = to_scale(self.low);
        let lower = to_scale(self.low - self.low.abs() * NEXT - LEAST);
        let minimum = if nearest.to_f32() > self.low { lower } else { nearest };
        let step = (self.high - minimum.to_f32()) * (1. / 15.);
        let nearest = to_scale(step);
        let higher = to_scale(step + step * NEXT + LEAST);
        let scale = if nearest.to_f32() < step { higher } else { nearest };
        (scale, minimum)
    }
}

/// A value in steps from the minimum.
#[inline(always)]
fn steps(value: f32, factor: f32, minimum: f32) -> u8 {
    // Of a value that is not finite the code is 0, as that of all with its scale.
    let steps = ((value - minimum) * factor).clamp(0., 15.);
    if steps.is_nan() { 0 } else { whole(steps) }
}

/// Quantises rows of `dim` values, each with a scale and a minimum of its own.
#[inline(always)]
pub(super) fn encode_rows(values: &mut [f32], dim: usize, codes: &mut [u8], scales: &mut [u8]) {
    let row_bytes = dim.div_ceil(2);
    for (place, (row, codes)) in values.chunks_exact_mut(dim).zip(codes.chunks_exact_mut(row_bytes)).enumerate() {
        let (scale, minimum) = bounds(row).scales();
        set_scale(scales, 2 * place, scale);
        set_scale(scales, 2 * place + 1, minimum);
        let minimum = if scale.is_nan() { 0. } else { minimum.to_f32() };
        let factor = if scale.is_nan() { 0. } else { inverse(scale.to_f32()) };
        pack(row, codes, |_, value| steps(value, factor, minimum));
    }
}

/// Quantises rows of `dim` values, each channel with a scale and a minimum of its own.
#[inline(always)]
pub(super) fn encode_channels(values: &mut [f32], dim: usize, codes: &mut [u8], scales: &mut [u8]) {
    let row_bytes = dim.div_ceil(2);
    for start in (0..dim).step_by(GROUP) {
        let group = GROUP.min(dim - start);
        let mut bounds = [Bounds::NONE; GROUP];
        for row in values.chunks_exact(dim) {
            for (bounds, &value) in bounds.iter_mut().zip(&row[start..start + group]) {
                *bounds = widened(*bounds, value);
            }
        }
        let (mut factors, mut minimums) = ([0.; GROUP], [0.; GROUP]);
        for channel in 0..group {
            let (scale, minimum) = bounds[channel].scales();
            set_scale(scales, start + channel, scale);
            set_scale(scales, dim + start + channel, minimum);
            if !scale.is_nan() {
                (factors[channel], minimums[channel]) = (inverse(scale.to_f32()), minimum.to_f32());
            }
        }
        for (row, codes) in values.chunks_exact(dim).zip(codes.chunks_exact_mut(row_bytes)) {
            let codes = &mut codes[start / 2..][..group.div_ceil(2)];
            pack(&row[start..start + group], codes, |channel, value| {
                steps(value, factors[channel % GROUP], minimums[channel % GROUP])
            });
        }
    }
}

/// Writes the codes of a row's values; `code` is given the place of each in the row.
#[inline(always)]
fn pack(row: &[f32], codes: &mut [u8], code: impl Fn(usize, f32) -> u8) {
    for (number, (group, codes)) in row.chunks(GROUP).zip(codes.chunks_mut(GROUP / 2)).enumerate() {
        let start = number * GROUP;
        let (low, high) = group.split_at(codes.len());
        for (place, byte) in codes.iter_mut().enumerate() {
            let above = high.get(place).map_or(0, |&value| code(start + low.len() + place, value));
            *byte = code(start + place, low[place]) | above << 4;
        }
    }
}

/// The codes of a row, each with its place, lower nibbles of a group first.
#[inline(always)]
fn unpack(codes: &[u8], out: &mut [f32], value: impl Fn(usize, f32) -> f32) {
    for (number, (group, codes)) in out.chunks_mut(GROUP).zip(codes.chunks(GROUP / 2)).enumerate() {
        let start = number * GROUP;
        let (low, high) = group.split_at_mut(codes.len());
        for (place, (out, byte)) in low.iter_mut().zip(codes).enumerate() {
            *out = value(start + place, f32::from(byte & 15));
        }
        for (place, (out, byte)) in high.iter_mut().zip(codes).enumerate() {
            *out = value(start + low.len() + place, f32::from(byte >> 4));
        }
    }
}

/// The values of rows of codes, each row with a scale and a minimum of its own.
#[inline(always)]
pub(super) fn decode_rows(codes: &[u8], scales: &[u8], dim: usize, out: &mut [f32]) {
    for (place, (row, codes)) in out.chunks_exact_mut(dim).zip(codes.chunks_exact(dim.div_ceil(2))).enumerate() {
        let (scale, minimum) = (scale(scales, 2 * place), scale(scales, 2 * place + 1));
        unpack(codes, row, |_, code| code * scale + minimum);
    }
}

/// The values of rows of codes, each channel with a scale and a minimum of its own.
#[inline(always)]
pub(super) fn decode_channels(codes: &[u8], scales: &[u8], dim: usize, out: &mut [f32]) {
    let row_bytes = dim.div_ceil(2);
    for start in (0..dim).step_by(GROUP) {
        let group = GROUP.min(dim - start);
        let (mut steps, mut minimums) = ([0.; GROUP], [0.; GROUP]);
        for channel in 0..group {
            steps[channel] = scale(scales, start + channel);
            minimums[channel] = scale(scales, dim + start + channel);
        }
        for (row, codes) in out.chunks_exact_mut(dim).zip(codes.chunks_exact(row_bytes)) {
            let codes = &codes[start / 2..][..group.div_ceil(2)];
            unpack(codes, &mut row[start..start + group], |channel, code| {
                code * steps[channel % GROUP] + minimums[channel % GROUP]
            });
        }
    }
}

#[inline(always)]
fn widened(bounds: Bounds, value: f32) -> Bounds {
    Bounds {
        low: if value < bounds.low { value } else { bounds.low },
        high: if value > bounds.high { value } else { bounds.high },
        largest: magnitude(value).max(bounds.largest),
    }
}

/// The bounds of a row.
#[inline(always)]
fn bounds(row: &[f32]) -> Bounds {
    let mut lanes = [Bounds::NONE; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = widened(*lane, *value);
        }
    }
    let joined = lanes.into_iter().fold(Bounds::NONE, |all, lane| Bounds {
        low: all.low.min(lane.low),
        high: all.high.max(lane.high),
        largest: all.largest.max(lane.largest),
    });
    rest.iter().fold(joined, |all, value| widened(all, *value))
}
