//! The names of prefixes: a chain of keyed BLAKE3, one key a block.
//!
//! ```text
//! h_0 = BLAKE3(key = process key, length of namespace ++ namespace ++ salt)
//! h_i = BLAKE3(key = h_(i-1),     tokens of block i as u32 little-endian ++ extras over it)
//! ```
//!
//! A key names all tokens up to the end of its block, under one namespace and one salt: who does not know the salt cannot
//! name its blocks. The tokens of a block are of a fixed number, so that it is never in doubt where the extras begin.
//!
//! 16 tokens are one compression; O(tokens). There is no randomness here: the process key is the caller's.

use super::extra::Extras;

/// The bytes that are hashed in one call; of longer blocks so many at a time.
const HASHED_BYTES: usize = 256;

/// The name of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub [u8; 32]);

impl BlockKey {
    /// The name of the empty prefix: what keys of one namespace (the model, its dtype, its layout) and one salt begin with.
    #[must_use]
    pub fn root(process_key: &[u8; 32], namespace: &[u8], salt: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(process_key);
        hasher.update(&(namespace.len() as u64).to_le_bytes()).update(namespace).update(salt);
        BlockKey(*hasher.finalize().as_bytes())
    }

    /// The name of this prefix and one block more, whose first token is at `position`.
    #[must_use]
    pub fn child(&self, tokens: &[u32], position: u32, extras: &Extras) -> Self {
        let over = extras.over(position..position.saturating_add(tokens.len() as u32));
        if tokens.len() * 4 > HASHED_BYTES || over.clone().next().is_some() {
            let mut hasher = blake3::Hasher::new_keyed(&self.0);
            for some in tokens.chunks(HASHED_BYTES / 4) {
                let mut bytes = [0; HASHED_BYTES];
                hasher.update(little_endian(some, &mut bytes));
            }
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

    /// The key's first eight bytes as a number.
    #[inline]
    #[must_use]
    pub fn short(&self) -> u64 {
        u64::from_le_bytes(self.0[..8].try_into().expect("eight bytes"))
    }
}

#[inline]
fn little_endian<'a>(tokens: &[u32], bytes: &'a mut [u8; HASHED_BYTES]) -> &'a [u8] {
    for (four, token) in bytes.chunks_exact_mut(4).zip(tokens) {
        four.copy_from_slice(&token.to_le_bytes());
    }
    &bytes[..tokens.len() * 4]
}

#[cfg(test)]
mod tests {
    use super::super::extra::Extra;
    use super::*;

    const PROCESS: [u8; 32] = [7; 32];

    fn extras(of: &[(u32, u32, &[u8])]) -> Extras {
        Extras::new(of.iter().map(|&(start, end, key)| Extra { start, end, key: key.into() }).collect()).unwrap()
    }

    /// The definition, word for word.
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
}
