//! No value is off by more than half a step, at any magnitude that a float has: compared with the definitions, in 64-bit
//! floats.
//!
//! Stored scales are read from their bits alone here: a scale must follow the format and be close to the best one possible,
//! and no value may be off by more than half of it.

use super::*;

/// Below this no scale goes, but to 0: then what is left out is less than half of it.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;
/// Rounding of a few operations on floats, relative to what they are of.
const ROUNDING: f64 = 1e-6;

/// Rows as they come in practice and worse, of elements up to `magnitude`.
fn rows(count: usize, dim: usize, magnitude: f32, seed: u32) -> Vec<f32> {
    let mut next = draws(seed);
    let mut row = |kind: usize| -> Vec<f32> {
        let of = |next: f32| match kind {
            0 => next * magnitude,
            // Far from 0, and near each other.
            1 => magnitude * (1. - next.abs() / 64.),
            2 => -magnitude * (1. - next.abs() / 64.),
            // All the same.
            3 => magnitude / 3.,
            // Nothing, and little of both signs.
            4 => 0.,
            _ => -0. * next,
        };
        let same: Vec<f32> = (0..dim).map(|_| of(next())).collect();
        // Every magnitude below this one.
        if kind == 6 {
            same.iter().map(|_| next() * magnitude * 10f32.powf(-20. * next().abs())).collect()
        } else {
            same
        }
    };
    (0..count).flat_map(|place| row((place + seed as usize) % 7)).collect()
}

impl Head {
    /// Scale and minimum of the row or channel of an element, from their bits.
    fn step_of(&self, element: usize) -> [f64; 2] {
        let (row, channel) = (element / self.codec.dim, element % self.codec.dim);
        let number = |bits: u32| f64::from(f32::from_bits(bits));
        match (self.codec.format, self.codec.part) {
            (PageFormat::Q8, _) => {
                [number(u32::from(u16::from_ne_bytes(self.scales[2 * row..][..2].try_into().unwrap())) << 16), 0.]
            }
            (_, part) => {
                let place = if part == KeyOrValue::Key { channel } else { row };
                let word = u32::from_ne_bytes(self.scales[4 * place..][..4].try_into().unwrap());
                [number(word << 18 >> 1), number(word >> 14 << 14)]
            }
        }
    }

    /// The elements that share the scale of one.
    fn beside(&self, element: usize) -> Vec<usize> {
        let Codec { dim, block_size, .. } = self.codec;
        match (self.codec.format, self.codec.part) {
            (PageFormat::Q4, KeyOrValue::Key) => (0..block_size).map(|row| row * dim + element % dim).collect(),
            _ => (0..dim).map(|channel| element / dim * dim + channel).collect(),
        }
    }

    /// The largest scale that values may have for theirs to be near the best.
    fn step_at_most(&self, values: &[f64], element: usize) -> f64 {
        let of = self.beside(element).into_iter().map(|place| values[place]);
        let (low, high) =
            of.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (value.min(low), value.max(high)));
        match self.codec.format {
            PageFormat::Q8 => (high.max(-low) / 127. * (1. + 1. / 256.)).max(SMALLEST),
            // A minimum may be rounded away from the values by as much as one of its units, 2^-9 of it.
            _ => ((high - low + low.abs() / 512.) / 15. * (1. + 1. / 128.)).max(SMALLEST),
        }
    }
}

/// The value that a format can represent at most.
fn counted(format: PageFormat, value: f32) -> f64 {
    let most = if format == PageFormat::Q4 { 2f64.powi(126) } else { f64::INFINITY };
    f64::from(value).clamp(-most, most)
}

/// Half the distance of the neighbours of a value in f8e4m3; from the largest one on, what is beyond it.
fn half_of_f8(value: f64) -> f64 {
    let exponent = (-6..=8).rev().find(|&exponent| 2f64.powi(exponent) <= value.abs()).unwrap_or(-6);
    (value.abs() - 448.).max(2f64.powi(exponent - 4))
}

/// Magnitudes from the smallest float to the largest.
fn magnitudes() -> impl Iterator<Item = f32> {
    let decades = (-30..=30).step_by(3).map(|exponent| 10f32.powi(exponent));
    decades.chain([1e-45, 1e-40, 1.5e-38, 1e-36, 6e-5, 3e-8, 65_504., 8.4e6, 8e37, f32::MAX])
}

fn each_of(rotated: bool, mut look: impl FnMut(&mut Head, &[f32], &[f32])) {
    for (seed, magnitude) in magnitudes().enumerate() {
        for mut head in heads().filter(|head| head.codec.rotated == rotated) {
            let values = rows(head.codec.block_size, head.codec.dim, magnitude, seed as u32);
            head.encode(Kernels::current().unwrap(), &values);
            let decoded = head.decode(Kernels::current().unwrap(), 0, head.codec.block_size);
            look(&mut head, &values, &decoded);
        }
    }
}

#[test]
fn no_value_of_any_magnitude_is_farther_off_than_half_a_step() {
    each_of(false, |head, values, decoded| {
        let counted: Vec<f64> = values.iter().map(|&value| counted(head.codec.format, value)).collect();
        for (element, (&value, &found)) in counted.iter().zip(decoded).enumerate() {
            let half = match head.codec.format {
                PageFormat::F8E4M3 => half_of_f8(value),
                _ => head.step_of(element)[0].max(SMALLEST) / 2.,
            };
            let rounding = ROUNDING * (value.abs() + 127. * half);
            let error = (value - f64::from(found)).abs();
            assert!(error <= half + rounding, "{:?}: {value:e} is {found:e}, half a step {half:e}", head.codec);
            if head.codec.format != PageFormat::F8E4M3 {
                let most = head.step_at_most(&counted, element);
                assert!(2. * half <= most * (1. + ROUNDING), "{:?}: {value:e} in steps of {:e}", head.codec, 2. * half);
            }
        }
    });
}

/// The rotation back turns the error of half a step in each of the elements that are rotated together into a common error.
#[test]
fn rows_that_were_rotated_are_off_by_half_a_step_in_each_element_they_are_spread_over() {
    each_of(true, |head, values, decoded| {
        let block = 1usize << head.codec.dim.trailing_zeros();
        for start in (0..values.len()).step_by(block) {
            let of = &values[start..start + block];
            let largest = of.iter().fold(0f64, |most, &value| most.max(f64::from(value.abs())));
            let spread = largest * (block as f64).sqrt();
            // Sums that are no floats are not finite, and f8e4m3 and q4 end before they do.
            let most = match head.codec.format {
                PageFormat::F8E4M3 => 448.,
                PageFormat::Q4 => 2f64.powi(126),
                _ => f64::from(f32::MAX),
            };
            // In one element of a row that makes all of it NaN, of K in q4 a channel of all rows.
            if values.iter().any(|value| f64::from(value.abs()) * block as f64 > most) {
                continue;
            }
            let squares: f64 =
                of.iter().zip(&decoded[start..]).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
            let half = |element: usize| match head.codec.format {
                PageFormat::F8E4M3 => half_of_f8(spread),
                _ => head.step_of(element)[0].max(SMALLEST) / 2.,
            };
            let expected: f64 = (start..start + block).map(|element| half(element).powi(2)).sum();
            let rounding = ROUNDING * (block as f64).sqrt() * (spread + 127. * half(start));
            assert!(
                squares.sqrt() <= expected.sqrt() + rounding,
                "{:?}: {} of {}",
                head.codec,
                squares.sqrt(),
                expected.sqrt()
            );
        }
    });
}
