//! Classifies a batch by its number for a follower: the next batch, one seen before, a gap, or a restarted publisher.
//! No I/O.
//!
//! ```text
//! seen      … 40  41  42          next is 43
//! 43        Next                  42 with the same bytes    Seen: a replay was faster
//! 45        Gap                   42 with other bytes       Anew: another publisher counts from the beginning again
//! ```
//!
//! A restarted publisher counts from 0, and may reach the old one's number before the follower looks, so a fitting
//! number proves nothing. Therefore the last batches are remembered by a hash of their bytes, which contain the time,
//! and every replay is requested from the last batch that was seen, not from the one after it. If that batch arrives
//! with the same bytes, the publisher is the same. O(1) each.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// The number of batches that are remembered.
const REMEMBERED: usize = 4096;

/// The class of a batch, given the batches seen before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Next,
    Seen,
    Gap,
    Anew,
}

#[derive(Debug, Default)]
pub(super) struct Cursor {
    last: Option<u64>,
    /// Hashes of the last batches, the newest last.
    hashes: VecDeque<u64>,
    hasher: RandomState,
    /// True after a replay until the next live batch: queued live batches may be older than the remembered ones.
    is_catching_up: bool,
}

impl Cursor {
    /// The number of the last batch.
    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    pub(super) fn place(&self, number: u64, batch: &[u8]) -> Place {
        let Some(last) = self.last else {
            return if number == 0 { Place::Next } else { Place::Gap };
        };
        if number > last {
            return if number - last == 1 { Place::Next } else { Place::Gap };
        }
        let back = last - number;
        if back < self.hashes.len() as u64 {
            let is_same = self.hashes[self.hashes.len() - 1 - back as usize] == self.hasher.hash_one(batch);
            return if is_same { Place::Seen } else { Place::Anew };
        }
        if self.is_catching_up { Place::Seen } else { Place::Anew }
    }

    /// Records a batch. If it is not the next one, the hashes of earlier batches are dropped.
    pub(super) fn take(&mut self, number: u64, batch: &[u8]) {
        if self.place(number, batch) != Place::Next {
            self.hashes.clear();
        }
        if self.hashes.len() == REMEMBERED {
            self.hashes.pop_front();
        }
        self.hashes.push_back(self.hasher.hash_one(batch));
        self.last = Some(number);
    }

    /// Forgets all batches.
    pub(super) fn forget(&mut self) {
        (self.last, self.is_catching_up) = (None, false);
        self.hashes.clear();
    }

    pub(super) fn catch_up(&mut self, is_catching_up: bool) {
        self.is_catching_up = is_catching_up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_gaps_repeats_and_new_beginnings() {
        let mut cursor = Cursor::default();
        assert_eq!((cursor.place(0, b"a"), cursor.place(3, b"a")), (Place::Next, Place::Gap));
        for number in 0..5 {
            assert_eq!(cursor.place(number, &[number as u8]), Place::Next);
            cursor.take(number, &[number as u8]);
        }
        assert_eq!(cursor.place(6, b"x"), Place::Gap);
        assert_eq!(cursor.place(u64::MAX, b"x"), Place::Gap);
        assert_eq!((cursor.place(4, &[4]), cursor.place(0, &[0])), (Place::Seen, Place::Seen));
        assert_eq!((cursor.place(4, b"x"), cursor.place(0, b"x")), (Place::Anew, Place::Anew));
        cursor.take(9, b"x");
        assert_eq!((cursor.place(4, &[4]), cursor.place(10, b"y")), (Place::Anew, Place::Next));
        cursor.catch_up(true);
        assert_eq!((cursor.place(4, &[4]), cursor.place(9, b"y")), (Place::Seen, Place::Anew));
        cursor.forget();
        assert_eq!((cursor.last(), cursor.place(0, b"a")), (None, Place::Next));
    }
}
