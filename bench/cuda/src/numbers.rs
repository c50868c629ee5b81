//! Fills memory with bf16 numbers. They are the same in each run, and never zero: zeros would hide missing writes and
//! can be faster.

use half::bf16;
use kvtide_cuda::Span;

use crate::Result;
use crate::place::Place;

/// The bytes after which numbers repeat. They are a multiple of no stride, so misplaced data differs.
const PERIOD: usize = 249_989 * 256;

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Fills a span with numbers from -`most` to `most`: the start by the host, the rest by copies on the device.
pub fn fill(place: &Place, target: Span<'_>, seed: u64, most: f32) -> Result<()> {
    let first = PERIOD.min(target.bytes());
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let bytes: Vec<u8> = (0..first / 2).flat_map(|_| bf16::from_f32(numbers.next() * most).to_le_bytes()).collect();
    place.stream.upload(&bytes, target)?;
    let mut filled = bytes.len();
    while filled < target.bytes() && filled > 0 {
        let more = filled.min(target.bytes() - filled);
        place.copy(target, target.from(filled), more)?;
        filled += more;
    }
    Ok(())
}

pub fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f64()).collect()
}

/// Returns some of `count` places, including the first and the last.
pub fn samples(count: usize) -> impl Iterator<Item = usize> {
    const MOST: usize = 97;
    let some = count.min(MOST);
    (0..some).map(move |of| if some < 2 { 0 } else { of * (count - 1) / (some - 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_reach_from_the_first_to_the_last() {
        assert_eq!(samples(0).count(), 0);
        assert_eq!(samples(1).collect::<Vec<_>>(), [0]);
        assert_eq!(samples(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let many: Vec<_> = samples(1_000_000).collect();
        assert_eq!((many.len(), many[0], many[96]), (97, 0, 999_999));
        assert!(many.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn numbers_are_spread_and_alike_in_each_run() {
        let mut numbers = Numbers(3);
        let drawn: Vec<f32> = (0..1000).map(|_| numbers.next()).collect();
        assert!(drawn.iter().all(|number| (-1.0..1.0).contains(number)));
        assert!(drawn.iter().any(|&number| number < -0.8) && drawn.iter().any(|&number| number > 0.8));
        let mut again = Numbers(3);
        assert!(drawn.iter().all(|&number| number.to_bits() == again.next().to_bits()));
    }

    #[test]
    fn bytes_are_little_endian_bf16() {
        assert_eq!(floats(&[0x80, 0x3f, 0x00, 0xc0]), [1.0, -2.0]);
    }
}
