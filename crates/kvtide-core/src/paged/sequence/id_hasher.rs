//! A hash for ids that we count up ourselves: nobody chooses them, so one multiplication will do.
//!
//! ```text
//! id * odd number     low bits: another bucket for each of neighbouring ids; high bits: well mixed
//! ```
//!
//! O(1).

use std::hash::Hasher;

/// Any odd number with bits all over.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes one id.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    #[inline]
    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(FACTOR);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
