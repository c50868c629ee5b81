//! Keys that were evicted recently: a hint for explanations, which may forget.
//!
//! ```text
//! place = first bits of the key     [ 83.. ][      ][ f0.. ][ 1c.. ]     a later key overwrites an earlier one
//! ```
//!
//! Uses no memory before the first eviction, then one place of 8 bytes for every eight blocks, 64 to 65,536 places.
//! O(1).

use super::key::BlockKey;

const PLACES_MIN: u32 = 64;
const PLACES_MAX: u32 = 1 << 16;

#[derive(Debug)]
pub(super) struct Evicted {
    places: Vec<u64>,
    size: usize,
}

impl Evicted {
    pub(super) fn new(blocks: u32) -> Self {
        Evicted { places: Vec::new(), size: (blocks / 8).clamp(PLACES_MIN, PLACES_MAX) as usize }
    }

    pub(super) fn insert(&mut self, key: &BlockKey) {
        if self.places.is_empty() && self.places.try_reserve_exact(self.size).is_ok() {
            self.places.resize(self.size, 0);
        }
        if !self.places.is_empty() {
            let place = self.place(key);
            self.places[place] = key.short();
        }
    }

    pub(super) fn contains(&self, key: &BlockKey) -> bool {
        !self.places.is_empty() && self.places[self.place(key)] == key.short()
    }

    pub(super) fn clear(&mut self) {
        self.places.clear();
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<u64>()
    }

    fn place(&self, key: &BlockKey) -> usize {
        ((u128::from(key.short()) * self.size as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(short: u64) -> BlockKey {
        let mut bytes = [1; 32];
        bytes[..8].copy_from_slice(&short.to_le_bytes());
        BlockKey(bytes)
    }

    #[test]
    fn remembers_until_another_takes_the_place() {
        let mut evicted = Evicted::new(8);
        assert!(!evicted.contains(&key(0)));
        evicted.insert(&key(5));
        evicted.insert(&key(u64::MAX));
        assert!(evicted.contains(&key(5)) && evicted.contains(&key(u64::MAX)) && !evicted.contains(&key(6)));
        evicted.insert(&key(6));
        assert!(!evicted.contains(&key(5)) && evicted.contains(&key(6)));
        evicted.clear();
        assert!(!evicted.contains(&key(6)));
    }

    #[test]
    fn takes_memory_only_once_something_was_evicted() {
        let mut evicted = Evicted::new(i32::MAX as u32);
        assert_eq!(evicted.bytes(), 0);
        evicted.insert(&key(1));
        assert_eq!(evicted.bytes(), 1 << 19);
    }
}
