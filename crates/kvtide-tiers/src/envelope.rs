//! The envelope of entries in a store: compressed, sealed with a secret, both or neither. Functions of bytes, without
//! I/O.
//!
//! ```text
//! close     value -> compress -> seal            open    check and remove the seal -> decompress
//!
//! compressed   content   bytes of the value u32 little-endian   method u8: 0 uncompressed; 1, 2, 4 planes of LZ4
//! sealed       value   tag 32: keyed BLAKE3 of (bytes of the key u64 little-endian, key, value)
//! ```
//!
//! Similar floating-point numbers share exponents, and each exponent is in one byte of its number: grouped by their
//! position, these bytes compress. A value that does not shrink is stored uncompressed. A length is compared with
//! `bytes_max` before memory is allocated. Tags are compared in constant time. Each kind of envelope has a suffix of
//! its own for keys, so that entries of several kinds exist next to each other. O(bytes).

use std::borrow::Cow;

use kvtide_files::{Error, Result};

use crate::planes;

const TRAILER: usize = 5;
const TAG: usize = 32;

/// The options for compressing and sealing entries.
#[derive(Clone, Default)]
pub struct Envelope {
    secret: Option<[u8; 32]>,
    element_bytes: Option<usize>,
}

impl std::fmt::Debug for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Envelope").field("element_bytes", &self.element_bytes).finish_non_exhaustive()
    }
}

impl Envelope {
    /// Creates an envelope that seals entries if there is a secret, and compresses them if they consist of numbers of
    /// 1, 2 or 4 bytes.
    pub fn new(secret: Option<[u8; 32]>, element_bytes: Option<usize>) -> Result<Self> {
        match element_bytes {
            None | Some(1 | 2 | 4) => Ok(Envelope { secret, element_bytes }),
            Some(other) => Err(Error::argument("elementBytes", other as u64, "1, 2 or 4")),
        }
    }

    /// Returns the suffix of the keys of such entries.
    #[must_use]
    pub fn suffix(&self) -> String {
        let compressed = self.element_bytes.map(|bytes| format!("-z{bytes}"));
        let sealed = self.secret.map(|secret| format!("-s{}", &blake3::keyed_hash(&secret, b"kvtide").to_hex()[..8]));
        [compressed, sealed].into_iter().flatten().collect()
    }

    /// Returns the most bytes in a store of an entry of at most `most` bytes.
    #[must_use]
    pub fn bytes_max(&self, most: usize) -> usize {
        let compressed = self.element_bytes.map_or(0, |_| TRAILER);
        most.saturating_add(compressed + self.secret.map_or(0, |_| TAG))
    }

    /// Returns a value as it is stored; `None` if memory is lacking, or if it is to be compressed and longer than 4
    /// GiB.
    #[must_use]
    pub fn close(&self, key: &str, value: Vec<u8>) -> Option<Vec<u8>> {
        let mut bytes = match self.element_bytes {
            Some(element_bytes) => compress(&value, element_bytes)?,
            None => value,
        };
        if let Some(secret) = &self.secret {
            let tag = tag(secret, key, &bytes);
            bytes.try_reserve_exact(TAG).ok()?;
            bytes.extend_from_slice(tag.as_bytes());
        }
        Some(bytes)
    }

    /// Returns the value of stored bytes under a key; `None` if they were not made with this envelope, or if the value
    /// is longer than `bytes_max`.
    #[must_use]
    pub fn open<'a>(&self, key: &str, bytes: &'a [u8], bytes_max: usize) -> Option<Cow<'a, [u8]>> {
        let content = match &self.secret {
            Some(secret) => {
                let (content, found) = bytes.split_last_chunk::<TAG>()?;
                // Comparing hashes takes the same time wherever they differ.
                (tag(secret, key, content) == blake3::Hash::from_bytes(*found)).then_some(content)?
            }
            None => bytes,
        };
        match self.element_bytes {
            Some(_) => decompress(content, bytes_max),
            None => (content.len() <= bytes_max).then_some(Cow::Borrowed(content)),
        }
    }
}

fn tag(secret: &[u8; 32], key: &str, value: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(&(key.len() as u64).to_le_bytes()).update(key.as_bytes()).update(value);
    hasher.finalize()
}

/// Compresses a value; `None` if memory is lacking, or if it is longer than 4 GiB.
#[must_use]
pub fn compress(value: &[u8], element_bytes: usize) -> Option<Vec<u8>> {
    let length = u32::try_from(value.len()).ok()?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(lz4_flex::block::get_maximum_output_size(value.len()) + TRAILER).ok()?;
    bytes.resize(lz4_flex::block::get_maximum_output_size(value.len()), 0);
    let sorted = planes::split(value, element_bytes)?;
    let compressed = lz4_flex::block::compress_into(sorted.as_deref().unwrap_or(value), &mut bytes);
    let method = match compressed {
        Ok(count) if count < value.len() => {
            bytes.truncate(count);
            element_bytes as u8
        }
        _ => {
            bytes.truncate(0);
            bytes.extend_from_slice(value);
            0
        }
    };
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.push(method);
    Some(bytes)
}

/// Decompresses a value; `None` if the bytes are invalid, or if the value is longer than `bytes_max`.
#[must_use]
pub fn decompress(bytes: &[u8], bytes_max: usize) -> Option<Cow<'_, [u8]>> {
    let (content, &[a, b, c, d, method]) = bytes.split_last_chunk::<TRAILER>()?;
    let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).ok().filter(|length| *length <= bytes_max)?;
    match method {
        0 => (content.len() == length).then_some(Cow::Borrowed(content)),
        1 | 2 | 4 => {
            let mut value = Vec::new();
            value.try_reserve_exact(length).ok()?;
            value.resize(length, 0);
            let count = lz4_flex::block::decompress_into(content, &mut value).ok()?;
            let is_whole = count == length;
            if is_whole { planes::join(value, method.into()).map(Cow::Owned) } else { None }
        }
        _ => None,
    }
}
