//! The cached blocks of one worker, with LRU eviction: of one prompt, later blocks are evicted first.
//!
//! A linked list in an array, and a map from keys to places. O(1) per block.

use hashbrown::HashTable;

use crate::random::mix;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Place {
    key: u64,
    newer: u32,
    older: u32,
}

#[derive(Debug)]
pub struct WorkerCache {
    places: Vec<Place>,
    by_key: HashTable<u32>,
    newest: u32,
    oldest: u32,
    blocks_max: usize,
}

impl WorkerCache {
    pub fn new(blocks_max: usize) -> Self {
        let by_key = HashTable::with_capacity(blocks_max);
        WorkerCache { places: Vec::with_capacity(blocks_max), by_key, newest: NONE, oldest: NONE, blocks_max }
    }

    /// Returns the number of a prompt's leading blocks that are cached.
    pub fn length(&self, keys: &[u64]) -> usize {
        keys.iter().take_while(|&&key| self.find(key).is_some()).count()
    }

    /// Marks blocks as used, inserts new ones, and appends evicted ones to `evicted`. If a prompt is longer than the
    /// cache, only its first blocks are inserted. Returns the number of cached blocks of the prompt.
    pub fn put(&mut self, keys: &[u64], evicted: &mut Vec<u64>) -> usize {
        let fits = keys.len().min(self.blocks_max);
        // In reverse, so that the first block is the newest. Cached blocks are marked before any block is evicted.
        for &key in keys[..fits].iter().rev() {
            if let Some(place) = self.find(key) {
                self.unlink(place);
                self.link(place);
            }
        }
        for &key in keys[..fits].iter().rev() {
            match self.find(key) {
                Some(place) => {
                    self.unlink(place);
                    self.link(place);
                }
                None => self.add(key, evicted),
            }
        }
        fits
    }

    fn add(&mut self, key: u64, evicted: &mut Vec<u64>) {
        let place = if self.places.len() < self.blocks_max {
            self.places.push(Place { key, newer: NONE, older: NONE });
            (self.places.len() - 1) as u32
        } else {
            let place = self.oldest;
            self.unlink(place);
            let old = self.places[place as usize].key;
            if let Ok(entry) = self.by_key.find_entry(mix(old), |&at| at == place) {
                entry.remove();
            }
            evicted.push(old);
            self.places[place as usize].key = key;
            place
        };
        let places = &self.places;
        self.by_key.insert_unique(mix(key), place, |&at| mix(places[at as usize].key));
        self.link(place);
    }

    fn find(&self, key: u64) -> Option<u32> {
        self.by_key.find(mix(key), |&at| self.places[at as usize].key == key).copied()
    }

    fn link(&mut self, place: u32) {
        let older = std::mem::replace(&mut self.newest, place);
        let Place { newer, older: own, .. } = &mut self.places[place as usize];
        (*newer, *own) = (NONE, older);
        match older {
            NONE => self.oldest = place,
            older => self.places[older as usize].newer = place,
        }
    }

    fn unlink(&mut self, place: u32) {
        let Place { newer, older, .. } = self.places[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.places[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.places[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes_first_and_ends_before_beginnings() {
        let mut cache = WorkerCache::new(5);
        let mut evicted = Vec::new();
        assert_eq!(cache.put(&[1, 2, 3], &mut evicted), 3);
        assert_eq!(cache.put(&[1, 5], &mut evicted), 2);
        assert!(evicted.is_empty());
        assert_eq!((cache.length(&[1, 2, 3, 4]), cache.length(&[1, 5]), cache.length(&[2])), (3, 2, 1));
        cache.put(&[1, 6, 7], &mut evicted);
        assert_eq!(evicted, [3]);
        cache.put(&[8], &mut evicted);
        assert_eq!(evicted, [3, 2]);
        assert_eq!(cache.put(&[1, 2, 3, 4, 9, 10], &mut evicted), 5);
        assert_eq!(cache.length(&[1, 2, 3, 4, 9, 10]), 5);
        assert_eq!(evicted.len(), 6);
    }
}
