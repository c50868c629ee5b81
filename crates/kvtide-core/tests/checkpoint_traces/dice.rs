//! Seeded random numbers, and draws by popularity.

/// Mixes two numbers into one that looks random (the finalizer of SplitMix64).
pub fn mix(a: u64, b: u64) -> u64 {
    let mixed = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x2545_f491_4f6c_dd1d);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0, 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn once_in(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// A length between two others; short ones are more frequent, each doubling equally so.
    pub fn length(&mut self, least: u32, most: u32) -> u32 {
        (f64::from(least) * (f64::from(most) / f64::from(least)).powf(self.unit())) as u32
    }

    /// A place in a list of `length`, near its end the more often the higher `power` is.
    pub fn recent(&mut self, length: usize, power: i32) -> usize {
        length - 1 - (self.unit().powi(power) * length as f64) as usize
    }
}

/// Things of which the i-th is asked for as often as 1 / i^exponent says.
pub struct Zipf(Vec<f64>);

impl Zipf {
    pub fn new(things: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weight = |i: u32| {
            sum += f64::from(i).powf(-exponent);
            sum
        };
        Zipf((1..=things).map(weight).collect())
    }

    pub fn draw(&self, dice: &mut Dice) -> u64 {
        let drawn = dice.unit() * self.0[self.0.len() - 1];
        self.0.partition_point(|&sum| sum < drawn) as u64
    }
}
