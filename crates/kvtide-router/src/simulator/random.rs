//! Numbers that follow from a seed (SplitMix64), and the distributions that a trace needs.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 to 1, without 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// With that mean, mostly below it.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// At least one, with that mean.
    pub(super) fn count(&mut self, mean: f64) -> u32 {
        (self.exponential((mean - 0.5).max(0.0)) as u32).saturating_add(1)
    }
}

/// Spreads a number over 64 bits, one to one.
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Ranks of which the n-th is drawn in proportion to n^-exponent.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    /// Sums up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    pub(super) fn new(count: usize, exponent: f64) -> Self {
        let sums = (1..=count).scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-exponent);
            Some(*sum)
        });
        Zipf { sums: sums.collect() }
    }

    /// A rank from 0 on. O(log count).
    pub(super) fn draw(&self, random: &mut Random) -> usize {
        let drawn = random.unit() * self.sums.last().copied().unwrap_or(0.0);
        self.sums.partition_point(|&sum| sum <= drawn).min(self.sums.len() - 1)
    }
}
