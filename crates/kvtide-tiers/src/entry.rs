//! A block in a store: its key, its bytes, and a description of its content, which is verified before the content is
//! used.
//!
//! ```text
//! key of a store   key of the block 64 digits . number of the group . tag of version and form 16 digits
//!
//! entry            "kvtide02"   key 32   parent 32   form 32   group u32   bytes of tokens u32, of extras u32, of page u64
//!                  tokens   extras   page: a block, all layers of the group   checksum u64: XXH3 of everything before it
//! ```
//!
//! Numbers are little-endian. A block in several forms, or written by several versions, has a separate key for each:
//! such entries exist next to each other, and a cache looks for its own alone. In each version, the checksum is the
//! last 8 bytes, so that an entry of another version can be told from a damaged one. O(bytes).

use kvtide_core::paged::{BlockKey, BlockName};
use twox_hash::XxHash3_64;

const MAGIC: &[u8; 8] = b"kvtide02";
const HEADER: usize = 8 + 3 * 32 + 3 * 4 + 8;
const SUM: usize = 8;

/// Identifies the layout of entries and a form in the keys of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FormTag([u8; 8]);

impl FormTag {
    /// Returns the tag of a form, given its digest.
    #[must_use]
    pub fn of(form: &[u8; 32]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(MAGIC).update(form);
        FormTag(*hasher.finalize().as_bytes().first_chunk().expect("32 bytes"))
    }
}

/// The key of a block in a store: the block's key, the group of its layers, and its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreKey {
    /// The key of the block, which stands for the model, the salt and all tokens up to the block's end.
    pub block: BlockKey,
    /// The number of the group of layers.
    pub group: u16,
    /// The form of its bytes.
    pub form: FormTag,
}

impl StoreKey {
    /// Parses a key: 64 digits, a point, a number without leading zeros, a point, 16 digits. So each key has one name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let (name, group, form) = (parts.next()?, parts.next()?, parts.next()?);
        let has_zeros = group.len() > 1 && group.starts_with('0');
        if parts.next().is_some() || has_zeros || !group.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(StoreKey { block: BlockKey(digits(name)?), group: group.parse().ok()?, form: FormTag(digits(form)?) })
    }

    /// True for the key of an entry of any form and version: 64 digits, a point, then letters, digits, points or
    /// dashes.
    pub(crate) fn is_key(text: &str) -> bool {
        let is_rest = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
        let parts = text.split_once('.');
        parts.is_some_and(|(name, rest)| digits::<32>(name).is_some() && !rest.is_empty() && rest.bytes().all(is_rest))
    }
}

/// Parses exactly this many bytes, each from two lower-case digits.
fn digits<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != BYTES * 2 || !text.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (byte, two) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?;
    }
    Some(bytes)
}

impl std::fmt::Display for StoreKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.block.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ".{}.", self.group)?;
        self.form.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A block as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key of the block, and what the key stands for.
    pub name: BlockName<'a>,
    /// The number of the group of layers.
    pub group: u16,
    /// The digest of the model and the form.
    pub form: &'a [u8; 32],
    /// The bytes of the block, all layers of its group.
    pub page: &'a [u8],
}

/// The expected content of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The requested key.
    pub key: &'a BlockKey,
    /// The number of the group of layers.
    pub group: u16,
    /// The digest of the model and the form.
    pub form: &'a [u8; 32],
    /// The number of tokens of a block.
    pub block_size: usize,
    /// The number of bytes of a block.
    pub page_bytes: usize,
}

/// The most bytes of extras in an entry.
const EXTRAS_MAX: usize = 1 << 16;

impl Expected<'_> {
    /// Returns the most bytes of such an entry: a longer one need not be read.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        HEADER + self.block_size * 4 + EXTRAS_MAX + self.page_bytes + SUM
    }
}

/// Returns an entry's bytes; `None` if its extras are too long or memory is lacking.
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
    bytes.extend(u32::from(entry.group).to_le_bytes());
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
    /// The extras of its tokens, encoded.
    pub extras: Vec<u8>,
    /// The offset of its bytes in the entry.
    pub page: usize,
}

/// The reason why bytes are not the requested entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// An intact entry of another version or form: a miss, but useful to other caches.
    Foreign,
    /// The entry is damaged, or does not belong under this key.
    Damaged,
}

/// Decodes an entry after comparing all of it with the request, the checksum first.
pub fn decode(bytes: &[u8], expected: &Expected<'_>) -> Result<Decoded, Unfit> {
    let (body, sum) = bytes.split_last_chunk::<SUM>().ok_or(Unfit::Damaged)?;
    if XxHash3_64::oneshot(body) != u64::from_le_bytes(*sum) {
        return Err(Unfit::Damaged);
    }
    let is_entry = body.starts_with(&MAGIC[..6]);
    if is_entry
        && (!body.starts_with(MAGIC) || body.get(8 + 2 * 32..8 + 3 * 32).is_some_and(|form| form != expected.form))
    {
        return Err(Unfit::Foreign);
    }
    read(body, expected).ok_or(Unfit::Damaged)
}

/// Decodes the body of an entry whose checksum is right.
fn read(body: &[u8], expected: &Expected<'_>) -> Option<Decoded> {
    let (header, rest) = body.split_first_chunk::<HEADER>()?;
    let digest = |at: usize| <[u8; 32]>::try_from(&header[8 + at * 32..][..32]).expect("32 bytes");
    let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes")) as usize;
    let page_bytes = u64::from_le_bytes(header[HEADER - 8..].try_into().expect("eight bytes"));
    let (token_bytes, extra_bytes) = (number(HEADER - 16), number(HEADER - 12));
    let is_right = header.starts_with(MAGIC)
        && digest(0) == expected.key.0
        && digest(2) == *expected.form
        && number(HEADER - 20) == usize::from(expected.group)
        && token_bytes == expected.block_size * 4
        && extra_bytes <= EXTRAS_MAX
        && page_bytes == expected.page_bytes as u64
        && rest.len() == token_bytes + extra_bytes + expected.page_bytes;
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
