//! What makes tokens mean something else: an adapter, an image, over a range of positions.
//!
//! ```text
//! tokens   [ block 0 ][ block 1 ][ block 2 ]
//! extras        [-- an image --)                over blocks 0 and 1; part of their names
//! ```
//!
//! Encoded as start, end and length of the key, each a u32 little-endian, then the key: positions are absolute, and no
//! two lists have one encoding.
//!
//! Invariants: sorted by start, end and key, none twice, so that a list has one form however it was given; no range is empty.
//! To find those over a block is O(log extras) and those that lie around it.

use std::ops::Range;

use crate::count::count;
use crate::error::{Error, Result};

/// Something that the tokens of a range depend on beside themselves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extra {
    /// The first position.
    pub start: u32,
    /// The position behind the last.
    pub end: u32,
    /// What it is: the name of an adapter, the hash of an image.
    pub key: Vec<u8>,
}

impl Extra {
    /// Gives the parts of its encoding, in order.
    pub(super) fn encode(&self, mut part: impl FnMut(&[u8])) {
        for number in [self.start, self.end, self.key.len() as u32] {
            part(&number.to_le_bytes());
        }
        part(&self.key);
    }
}

/// The extras of one list of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    sorted: Vec<Extra>,
    /// The highest end up to and with each.
    ends: Vec<u32>,
}

impl Extras {
    /// Extras in any order; one that is given twice counts once.
    pub fn new(mut extras: Vec<Extra>) -> Result<Self> {
        for extra in &extras {
            count("extra.end", extra.end.into())?;
            count("extra.key.length", extra.key.len() as u64)?;
            if extra.start >= extra.end {
                return Err(Error::argument("extra.start", extra.start, format!("below its end, {}", extra.end)));
            }
        }
        let mut ends = Vec::new();
        let out_of_memory = |_| Error::OutOfMemory { count: extras.len() as u64, what: "extras" };
        ends.try_reserve_exact(extras.len()).map_err(out_of_memory)?;
        extras.sort_unstable();
        extras.dedup();
        ends.extend(extras.iter().scan(0, |highest, extra| {
            *highest = extra.end.max(*highest);
            Some(*highest)
        }));
        Ok(Extras { sorted: extras, ends })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Those over a range of positions, in order.
    pub(super) fn over(&self, positions: Range<u32>) -> impl Iterator<Item = &Extra> + Clone {
        let first = self.ends.partition_point(|&end| end <= positions.start);
        let behind = self.sorted.partition_point(|extra| extra.start < positions.end);
        let around = self.sorted.get(first..behind).unwrap_or(&[]);
        // An empty range is inside others, and nothing is over it.
        let empty = positions.is_empty();
        around.iter().filter(move |extra| !empty && extra.end > positions.start)
    }

    /// The encoding of those over a range, empty when there are none.
    pub(super) fn encoding(&self, positions: Range<u32>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let length: usize = self.over(positions.clone()).map(|extra| 12 + extra.key.len()).sum();
        bytes
            .try_reserve_exact(length)
            .map_err(|_| Error::OutOfMemory { count: length as u64, what: "bytes of extras" })?;
        self.over(positions).for_each(|extra| extra.encode(|part| bytes.extend_from_slice(part)));
        Ok(bytes)
    }

    /// Whether the encoding of those over a range is this one.
    pub(super) fn is_encoded(&self, positions: Range<u32>, mut encoding: &[u8]) -> bool {
        let mut same = true;
        self.over(positions).for_each(|extra| {
            extra.encode(|part| match encoding.strip_prefix(part) {
                Some(rest) => encoding = rest,
                None => same = false,
            });
        });
        same && encoding.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra(start: u32, end: u32, key: &str) -> Extra {
        Extra { start, end, key: key.into() }
    }

    #[test]
    fn a_range_that_is_none_is_refused() {
        let refused = Extras::new(vec![extra(0, 4, "a"), extra(4, 4, "b")]);
        assert_eq!(refused, Err(Error::argument("extra.start", 4u32, "below its end, 4")));
        let refused = Extras::new(vec![extra(0, 1 << 31, "a")]);
        assert_eq!(refused, Err(Error::argument("extra.end", 1u32 << 31, "at most 2147483647")));
    }

    #[test]
    fn the_order_given_does_not_matter() {
        let (a, b, c) = (extra(0, 9, "a"), extra(3, 5, "b"), extra(3, 5, "c"));
        let one = Extras::new(vec![a.clone(), b.clone(), c.clone()]).unwrap();
        assert_eq!(Extras::new(vec![c.clone(), a.clone(), b.clone(), a.clone()]).unwrap(), one);
        assert_eq!(one.over(4..5).collect::<Vec<_>>(), [&a, &b, &c]);
        assert_eq!(one.over(5..8).collect::<Vec<_>>(), [&a]);
        assert_eq!(one.over(9..12).count() + one.over(4..4).count(), 0);
    }

    #[test]
    fn every_range_gives_what_looking_at_each_gives() {
        let all: Vec<_> = (0..6u32).flat_map(|start| (start + 1..7).map(move |end| extra(start, end, "x"))).collect();
        for skip in 1..5 {
            let some: Vec<_> = all.iter().step_by(skip).cloned().collect();
            let extras = Extras::new(some.clone()).unwrap();
            for (start, end) in (0..9u32).flat_map(|start| (start..9).map(move |end| (start, end))) {
                let over = |extra: &&Extra| start < end && extra.start < end && extra.end > start;
                let expected: Vec<_> = some.iter().filter(over).collect();
                assert_eq!(extras.over(start..end).collect::<Vec<_>>(), expected, "{start}..{end} of every {skip}.");
                let encoding = extras.encoding(start..end).unwrap();
                assert!(extras.is_encoded(start..end, &encoding));
                assert!(!extras.is_encoded(start..end, &[&encoding[..], &[0]].concat()));
                assert!(encoding.is_empty() || !extras.is_encoded(start..end, &encoding[..encoding.len() - 1]));
            }
        }
    }
}
