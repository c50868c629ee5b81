//! A seeded random number generator (SplitMix64), and the distributions that a trace needs.

/// A random number generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number from 0 to 1, excluding 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws from an exponential distribution with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Draws a whole number of at least 1, with this mean.
    pub fn count(&mut self, mean: f64) -> u32 {
        (self.exponential((mean - 0.5).max(0.0)) as u32).saturating_add(1)
    }
}

/// Hashes a number to 64 bits, one to one.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// A Zipf distribution: rank n is drawn with a probability proportional to n^-exponent.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// The cumulative sums of the weights.
    sums: Vec<f64>,
}

impl Zipf {
    pub fn new(count: usize, exponent: f64) -> Self {
        let sums = (1..=count).scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-exponent);
            Some(*sum)
        });
        Zipf { sums: sums.collect() }
    }

    /// Draws a rank, counted from 0. O(log count).
    pub fn draw(&self, random: &mut Random) -> usize {
        let drawn = random.unit() * self.sums.last().copied().unwrap_or(0.0);
        self.sums.partition_point(|&sum| sum <= drawn).min(self.sums.len() - 1)
    }
}
