//! The keys of prefixes: a chain of keyed BLAKE3 hashes, one key for each block.
//!
//! ```text
//! h_0 = BLAKE3(key = process key, length of namespace ++ namespace ++ salt)
//! h_i = BLAKE3(key = h_(i-1),     tokens of block i as u32 little-endian ++ extras over it)
//! ```
//!
//! A key stands for all tokens up to the end of its block, under one namespace and one salt: without the salt, the keys
//! of its blocks cannot be computed. Blocks have a fixed number of tokens, so the start of the extras is unambiguous.
//!
//! 16 tokens are one compression; O(tokens). Keys contain no randomness: the caller supplies the process key.
//!
//! *Extras* change the meaning of tokens over a range of positions: an adapter, an image.
//!
//! ```text
//! tokens   [ block 0 ][ block 1 ][ block 2 ]
//! extras        [-- an image --)                over blocks 0 and 1; part of their keys
//! ```
//!
//! Each is encoded as start, end and length of its key, a little-endian u32 each, then the key, so different lists have
//! different encodings.

use std::ops::Range;

use crate::count::count;
use crate::error::{Error, Result};

/// Bytes that are hashed in one call; longer blocks are hashed in several steps of this size.
const HASHED_BYTES: usize = 256;

/// The key of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub [u8; 32]);

impl BlockKey {
    /// The key of the empty prefix for one namespace (the model, its dtype, its layout) and one salt.
    #[must_use]
    pub fn root(process_key: &[u8; 32], namespace: &[u8], salt: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(process_key);
        hasher.update(&(namespace.len() as u64).to_le_bytes()).update(namespace).update(salt);
        BlockKey(*hasher.finalize().as_bytes())
    }

    /// The key of this prefix and one more block, whose first token is at `position`.
    #[must_use]
    pub fn child(&self, tokens: &[u32], position: u32, extras: &Extras) -> Self {
        let over = extras.over(position..position.saturating_add(tokens.len() as u32));
        if tokens.len() * 4 > HASHED_BYTES || over.clone().next().is_some() {
            let mut hasher = self.hasher(tokens);
            over.for_each(|extra| {
                extra.encode(|bytes| {
                    hasher.update(bytes);
                });
            });
            return BlockKey(*hasher.finalize().as_bytes());
        }
        let mut bytes = [0; HASHED_BYTES];
        BlockKey(*blake3::keyed_hash(&self.0, little_endian(tokens, &mut bytes)).as_bytes())
    }

    /// Like `child`, with the block's extras already encoded.
    #[must_use]
    pub(crate) fn child_of(&self, tokens: &[u32], extras: &[u8]) -> Self {
        BlockKey(*self.hasher(tokens).update(extras).finalize().as_bytes())
    }

    fn hasher(&self, tokens: &[u32]) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for some in tokens.chunks(HASHED_BYTES / 4) {
            let mut bytes = [0; HASHED_BYTES];
            hasher.update(little_endian(some, &mut bytes));
        }
        hasher
    }

    /// The key's first eight bytes as a number.
    #[inline]
    #[must_use]
    pub fn short(&self) -> u64 {
        u64::from_le_bytes(self.0[..8].try_into().expect("eight bytes"))
    }

    /// The tag: the key with only the 32 bits that its children remember.
    #[must_use]
    pub fn tag(&self) -> Self {
        BlockKey::of_tag((self.short() >> 32) as u32)
    }

    /// True if only those bits are set.
    #[must_use]
    pub fn is_tag(&self) -> bool {
        *self == self.tag()
    }

    pub(super) fn of_tag(tag: u32) -> Self {
        let mut key = [0; 32];
        key[4..8].copy_from_slice(&tag.to_le_bytes());
        BlockKey(key)
    }
}

#[inline]
fn little_endian<'a>(tokens: &[u32], bytes: &'a mut [u8; HASHED_BYTES]) -> &'a [u8] {
    for (four, token) in bytes.chunks_exact_mut(4).zip(tokens) {
        four.copy_from_slice(&token.to_le_bytes());
    }
    &bytes[..tokens.len() * 4]
}

/// A dependency of a range of tokens besides their ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extra {
    /// The first position.
    pub start: u32,
    /// The position behind the last.
    pub end: u32,
    /// Its name: that of an adapter, or the hash of an image.
    pub key: Vec<u8>,
}

impl Extra {
    /// Passes the pieces of its encoding to `part`, in order.
    pub(super) fn encode(&self, mut part: impl FnMut(&[u8])) {
        for number in [self.start, self.end, self.key.len() as u32] {
            part(&number.to_le_bytes());
        }
        part(&self.key);
    }
}

/// The extras of one list of tokens, sorted by start, end and key, without duplicates, so the order in which they were
/// given does not matter. Finding those over a block is O(log extras), plus the extras around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    sorted: Vec<Extra>,
    /// For each extra, the highest end of it and those before it.
    ends: Vec<u32>,
}

impl Extras {
    /// Takes extras in any order; duplicates count once.
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

    /// True if there are no extras.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The extras over a range of positions, in order.
    pub(super) fn over(&self, positions: Range<u32>) -> impl Iterator<Item = &Extra> + Clone {
        let first = self.ends.partition_point(|&end| end <= positions.start);
        let behind = self.sorted.partition_point(|extra| extra.start < positions.end);
        let around = self.sorted.get(first..behind).unwrap_or(&[]);
        // No extra is over an empty range, even inside another range.
        let empty = positions.is_empty();
        around.iter().filter(move |extra| !empty && extra.end > positions.start)
    }

    /// The encoding of the extras over a range; empty if there are none.
    pub(super) fn encoding(&self, positions: Range<u32>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let length: usize = self.over(positions.clone()).map(|extra| 12 + extra.key.len()).sum();
        bytes
            .try_reserve_exact(length)
            .map_err(|_| Error::OutOfMemory { count: length as u64, what: "bytes of extras" })?;
        self.over(positions).for_each(|extra| extra.encode(|part| bytes.extend_from_slice(part)));
        Ok(bytes)
    }

    /// True if the extras over a range have this encoding.
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

    const PROCESS: [u8; 32] = [7; 32];

    fn extras(of: &[(u32, u32, &[u8])]) -> Extras {
        Extras::new(of.iter().map(|&(start, end, key)| Extra { start, end, key: key.into() }).collect()).unwrap()
    }

    /// Computes a key exactly as the definition says.
    fn by_definition(parent: &BlockKey, tokens: &[u32], over: &[(u32, u32, &[u8])]) -> BlockKey {
        let mut bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        for (start, end, key) in over {
            for number in [*start, *end, key.len() as u32] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(*key);
        }
        BlockKey(*blake3::keyed_hash(&parent.0, &bytes).as_bytes())
    }

    #[test]
    fn roots_differ_in_process_namespace_and_salt() {
        let roots = [
            BlockKey::root(&PROCESS, b"ab", b"c"),
            BlockKey::root(&PROCESS, b"a", b"bc"),
            BlockKey::root(&PROCESS, b"", b"abc"),
            BlockKey::root(&PROCESS, b"abc", b""),
            BlockKey::root(&[8; 32], b"abc", b""),
        ];
        assert!((1..roots.len()).all(|at| !roots[..at].contains(&roots[at])));
        assert_eq!(roots[0], BlockKey::root(&PROCESS, b"ab", b"c"));
    }

    #[test]
    fn a_child_is_the_keyed_hash_of_tokens_and_extras() {
        let root = BlockKey::root(&PROCESS, b"m", b"s");
        for len in [0, 1, 16, 63, 64, 65, 128, 1000] {
            let tokens: Vec<u32> = (0..len).map(|token| u32::wrapping_mul(token, 0x0102_0305)).collect();
            assert_eq!(root.child(&tokens, 5, &Extras::default()), by_definition(&root, &tokens, &[]), "{len}");
            let over: &[(u32, u32, &[u8])] = &[(0, 2000, b"xy"), (5, 6, b"")];
            let expected = by_definition(&root, &tokens, if len > 0 { over } else { &[] });
            assert_eq!(root.child(&tokens, 5, &extras(over)), expected, "{len} with extras");
            let encoding = extras(over).encoding(5..5 + len).unwrap();
            assert_eq!(root.child_of(&tokens, &encoding), expected, "{len} with extras, encoded");
        }
    }

    #[test]
    fn only_extras_over_the_block_count() {
        let (root, tokens) = (BlockKey::root(&PROCESS, b"m", b"s"), [1, 2, 3, 4]);
        let plain = root.child(&tokens, 8, &Extras::default());
        for (start, end, inside) in [(0, 8, false), (12, 20, false), (0, 9, true), (11, 20, true), (9, 10, true)] {
            let key = root.child(&tokens, 8, &extras(&[(start, end, b"image")]));
            assert_eq!(key != plain, inside, "{start}..{end}");
        }
    }

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
