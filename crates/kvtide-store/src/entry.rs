//! A block in a store: its name, its bytes, and what they are of, so that whatever comes back is looked at before it is believed.
//!
//! ```text
//! "kvtide01"   key 32   parent 32   form 32   bytes of tokens u32, of extras u32, of page u64
//! tokens   extras   page: a block, all layers of a group   sum u64: XXH3 of all before it
//! ```
//!
//! Numbers are little-endian. What is not an entry of this key, of this form and of this size is none: a miss, and no error. O(bytes).

use kvtide_core::paged::{BlockKey, BlockName};
use twox_hash::XxHash3_64;

const MAGIC: &[u8; 8] = b"kvtide01";
const HEADER: usize = 8 + 3 * 32 + 4 + 4 + 8;
const SUM: usize = 8;

/// Under which name a block lies in a store: the key of its prefix, and the group of its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreKey {
    /// The name of the block: of the model, the form, the salt and all tokens up to its end.
    pub block: BlockKey,
    /// The number of the group of layers.
    pub group: u16,
}

impl StoreKey {
    /// The key of a name: 64 digits, a point, a number.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (digits, group) = name.split_once('.')?;
        let is_lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 64 || !digits.bytes().all(is_lower) || !group.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let mut key = [0; 32];
        for (byte, two) in key.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?;
        }
        Some(StoreKey { block: BlockKey(key), group: group.parse().ok()? })
    }
}

impl std::fmt::Display for StoreKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.block.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ".{}", self.group)
    }
}

/// A block as a store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it is found by.
    pub name: BlockName<'a>,
    /// Of which model and form: a digest.
    pub form: &'a [u8; 32],
    /// The bytes of the block, all layers of its group.
    pub page: &'a [u8],
}

/// What an entry has to be.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The key that was asked for.
    pub key: &'a BlockKey,
    /// Of which model and form.
    pub form: &'a [u8; 32],
    /// Tokens of a block.
    pub block_size: usize,
    /// Bytes of a block.
    pub page_bytes: usize,
}

/// The longest list of extras that is kept with a block.
const EXTRAS_MAX: usize = 1 << 16;

impl Expected<'_> {
    /// The most bytes that such an entry has: what is longer need not be read.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        HEADER + self.block_size * 4 + EXTRAS_MAX + self.page_bytes + SUM
    }
}

/// An entry's bytes; none where its extras are too long for one.
#[must_use]
pub fn encode(entry: &Entry<'_>) -> Option<Vec<u8>> {
    let BlockName { key, parent, tokens, extras } = entry.name;
    if extras.len() > EXTRAS_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(HEADER + tokens.len() * 4 + extras.len() + entry.page.len() + SUM).ok()?;
    bytes.extend(MAGIC);
    [&key.0, &parent.0, entry.form].iter().for_each(|digest| bytes.extend(*digest));
    bytes.extend((tokens.len() as u32 * 4).to_le_bytes());
    bytes.extend((extras.len() as u32).to_le_bytes());
    bytes.extend((entry.page.len() as u64).to_le_bytes());
    tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
    bytes.extend(extras);
    bytes.extend(entry.page);
    let sum = XxHash3_64::oneshot(&bytes);
    bytes.extend(sum.to_le_bytes());
    Some(bytes)
}

/// A block that was read from a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The key of the prefix before it.
    pub parent: BlockKey,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The extras over it, encoded.
    pub extras: Vec<u8>,
    /// Where its bytes begin in the entry; there are as many as a block has.
    pub page: usize,
}

/// What bytes are, if they are what was asked for: all of it was compared, the sum last.
#[must_use]
pub fn decode(bytes: &[u8], expected: &Expected<'_>) -> Option<Decoded> {
    let (body, sum) = bytes.split_last_chunk::<SUM>()?;
    let (header, rest) = body.split_first_chunk::<HEADER>()?;
    let digest = |at: usize| <[u8; 32]>::try_from(&header[8 + at * 32..][..32]).expect("32 bytes");
    let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes")) as usize;
    let page_bytes = u64::from_le_bytes(header[HEADER - 8..].try_into().expect("eight bytes"));
    let (token_bytes, extra_bytes) = (number(HEADER - 16), number(HEADER - 12));
    let is_right = header.starts_with(MAGIC)
        && digest(0) == expected.key.0
        && digest(2) == *expected.form
        && token_bytes == expected.block_size * 4
        && extra_bytes <= EXTRAS_MAX
        && page_bytes == expected.page_bytes as u64
        && rest.len() == token_bytes + extra_bytes + expected.page_bytes
        && XxHash3_64::oneshot(body) == u64::from_le_bytes(*sum);
    if !is_right {
        return None;
    }
    let (tokens, rest) = rest.split_at(token_bytes);
    let tokens: Vec<u32> = tokens.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect();
    let extras = rest[..extra_bytes].to_vec();
    let parent = BlockKey(digest(1));
    let name = BlockName { key: *expected.key, parent, tokens: &tokens, extras: &extras };
    let holds = name.holds();
    holds.then_some(Decoded { parent, tokens, extras, page: HEADER + token_bytes + extra_bytes })
}
