//! Cuts the keys of a call into batches, limited in keys and in bytes. O(keys) in all.

use std::ops::Range;

/// The ranges of keys, each with the most bytes of its values.
pub(super) struct Batches<'a> {
    count: usize,
    keys_max: usize,
    bytes_max: usize,
    bytes_of: Box<dyn Fn(usize) -> usize + Send + 'a>,
    next: usize,
}

impl<'a> Batches<'a> {
    pub(super) fn new(
        count: usize,
        keys_max: usize,
        bytes_max: usize,
        bytes_of: Box<dyn Fn(usize) -> usize + Send + 'a>,
    ) -> Self {
        Batches { count, keys_max, bytes_max, bytes_of, next: 0 }
    }
}

impl Iterator for Batches<'_> {
    type Item = (Range<usize>, u64);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.count {
            return None;
        }
        let start = self.next;
        let mut bytes = 0usize;
        while self.next < self.count {
            let more = bytes.saturating_add((self.bytes_of)(self.next));
            let is_full = self.next - start == self.keys_max || more > self.bytes_max;
            // A single longer value is a batch of its own.
            if is_full && self.next > start {
                break;
            }
            bytes = more;
            self.next += 1;
        }
        Some((start..self.next, bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(sizes: &[usize], keys_max: usize, bytes_max: usize) -> Vec<(Range<usize>, u64)> {
        Batches::new(sizes.len(), keys_max, bytes_max, Box::new(|index| sizes[index])).collect()
    }

    #[test]
    fn batches_are_cut_by_keys_and_by_bytes_and_a_long_value_is_alone() {
        assert_eq!(cut(&[], 2, 10), []);
        assert_eq!(cut(&[1, 1, 1], 2, 10), [(0..2, 2), (2..3, 1)]);
        assert_eq!(cut(&[4, 6, 1, 11, 5, 5, 1], 9, 10), [(0..2, 10), (2..3, 1), (3..4, 11), (4..6, 10), (6..7, 1)]);
        assert_eq!(cut(&[usize::MAX, usize::MAX], 9, 10), [(0..1, u64::MAX), (1..2, u64::MAX)]);
    }
}
