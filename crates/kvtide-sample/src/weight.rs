//! Probabilities as integers: multiples of 2^-40 of the largest probability, rounded.
//!
//! Sums of integers do not depend on their order, and a number below a sum is drawn without rounding. So a draw is the
//! same on every platform, and speculation is exact. A token with less than 2^-41 of the largest probability has weight
//! 0.
//!
//! This module has its own `exp`, since those of platforms differ in the last bits: additions and multiplications of
//! doubles, not fused, are the same everywhere. O(1) each, several at a time on processors with vector units.

/// The weight of the most probable token.
pub(crate) const ONE: u64 = 1 << BITS;

const BITS: u32 = 40;

/// Number of tokens whose weights are computed together.
pub(crate) const BLOCK: usize = 256;

/// e to the power of `x`, which is at most 0, times 2^40, rounded.
#[expect(clippy::excessive_precision, clippy::unreadable_literal, reason = "the digits of a split constant")]
fn scaled_exp(x: f64) -> u64 {
    /// 1.5 * 2^52: adding it leaves the nearest integer in the lowest bits.
    const ROUND: f64 = 6755399441055744.0;
    /// ln 2 in two pieces; the first has so few bits that its product with a small integer is exact.
    const LN_2: [f64; 2] = [0.693147180369123816490, 1.90821492927058770002e-10];
    /// 1 / n! for the powers of the remainder, which is at most ln 2 / 2; omitted terms are below 1e-14.
    const TERMS: [f64; 11] = [
        1.0 / 39916800.0,
        1.0 / 3628800.0,
        1.0 / 362880.0,
        1.0 / 40320.0,
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
    ];
    let x = if x > -60.0 { x } else { -60.0 };
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let rest = x - power * LN_2[0] - power * LN_2[1];
    let mut sum = TERMS[0];
    for term in &TERMS[1..] {
        sum = sum * rest + term;
    }
    sum = sum * rest + 1.0;
    // 2^(power + 40); its exponent is taken from the low bits of `rounded`.
    let exponent = rounded.to_bits().wrapping_add(u64::from(BITS) + 1023) << 52;
    let scaled = sum * f64::from_bits(exponent);
    // Below 2^52, so adding 2^52 rounds, and leaves the number in the low bits.
    (scaled + 4503599627370496.0).to_bits() & ((1 << 52) - 1)
}

/// The reference of weights: the largest logit and the temperature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    most: f64,
    per_degree: f64,
}

impl Scale {
    /// Returns the scale of logits of which `most` is the largest.
    pub fn new(most: f32, temperature: f32) -> Self {
        // The reciprocal of any nonzero 32-bit float is finite in 64 bits.
        Scale { most: most.into(), per_degree: 1.0 / f64::from(temperature) }
    }

    /// The weight of a logit.
    pub fn weight(self, logit: f32) -> u64 {
        scaled_exp((f64::from(logit) - self.most) * self.per_degree)
    }

    /// A logit slightly below all those that have at least this weight.
    pub fn threshold(self, weight: f64) -> f32 {
        let below = ((weight - 0.51) / ONE as f64).ln() - 1e-6;
        let threshold = (self.most + below / self.per_degree) as f32;
        threshold.next_down().min(self.most as f32)
    }

    /// Computes the weights of a block of logits and returns their sum.
    pub fn block(self, logits: &[f32], found: &mut [u64; BLOCK]) -> u64 {
        for (found, &logit) in found.iter_mut().zip(logits) {
            *found = self.weight(logit);
        }
        // A block's sum is far below 64 bits; without checks, several weights are added at a time.
        found[..logits.len()].iter().fold(0, |sum, &weight| sum.wrapping_add(weight))
    }

    /// The sum of all weights.
    pub fn total(self, logits: &[f32]) -> u64 {
        let mut room = [0; BLOCK];
        logits.chunks(BLOCK).map(|block| self.block(block, &mut room)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{ONE, Scale, scaled_exp};

    #[test]
    fn weights_are_the_exponential_rounded() {
        assert_eq!(scaled_exp(0.0), ONE);
        for step in 0..400_000 {
            let x = -f64::from(step) / 10_000.0;
            let wanted = x.exp() * ONE as f64;
            let found = scaled_exp(x) as f64;
            assert!((found - wanted).abs() <= 0.51 + wanted * 1e-13, "{x}: {found}, not {wanted}");
        }
    }

    #[test]
    fn what_is_far_below_has_no_weight() {
        for x in [-29.0, -60.0, -1e9, f64::MIN, f64::NEG_INFINITY] {
            assert_eq!(scaled_exp(x), 0, "{x}");
        }
        assert_eq!(Scale::new(f32::MAX, f32::MAX).weight(f32::MIN), scaled_exp(-2.0));
        assert_eq!(Scale::new(3.0, f32::from_bits(1)).weight(3.0), ONE);
        assert_eq!(Scale::new(3.0, f32::from_bits(1)).weight(2.0), 0);
    }

    #[test]
    fn bits_are_those_of_every_platform() {
        let found = [-0.1, -1.0, -2.5, -10.0, -20.0].map(scaled_exp);
        assert_eq!(found, [994_879_262_377, 404_487_723_188, 90_253_410_453, 49_917_751, 2266]);
    }
}
