//! Values that lie in a store in fewer bytes: the bytes of numbers are sorted by their places, and the whole goes through LZ4.
//!
//! ```text
//! content   bytes of the value u32 little-endian   method u8: 0 as it is; 1, 2, 4 planes of LZ4
//! ```
//!
//! Floating-point numbers that are alike share their exponents, which lie in one byte of each: beside each other they compress. What does
//! not get smaller is kept as it is. A length is compared with `bytes_max` before memory is taken; content that does not come out at that
//! length is a miss. O(bytes).

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::planes;
use crate::store::Store;

const TRAILER: usize = 5;

/// A store whose values are compressed.
#[derive(Debug)]
pub struct Compressed<S> {
    store: S,
    element_bytes: usize,
}

impl<S: Store> Compressed<S> {
    /// Compresses what goes into a store. Numbers of 1, 2 or 4 bytes are what most of the values are made of; any bytes will do.
    pub fn new(store: S, element_bytes: usize) -> Result<Self> {
        if !matches!(element_bytes, 1 | 2 | 4) {
            return Err(Error::argument("elementBytes", element_bytes, "1, 2 or 4"));
        }
        Ok(Compressed { store, element_bytes })
    }

    /// The store within.
    pub fn store(&self) -> &S {
        &self.store
    }
}

/// A value as it lies in a store; nothing where there is no memory for it, or where it is longer than 4 GiB.
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

/// The value again, if these are the bytes of one that is no longer than `bytes_max`.
#[must_use]
pub fn decompress(mut bytes: Vec<u8>, bytes_max: usize) -> Option<Vec<u8>> {
    let (content, &[a, b, c, d, method]) = bytes.split_last_chunk::<TRAILER>()?;
    let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).ok().filter(|length| *length <= bytes_max)?;
    match method {
        0 if content.len() == length => {
            bytes.truncate(length);
            Some(bytes)
        }
        1 | 2 | 4 => {
            let mut value = Vec::new();
            value.try_reserve_exact(length).ok()?;
            value.resize(length, 0);
            let count = lz4_flex::block::decompress_into(content, &mut value).ok()?;
            if count != length {
                return None;
            }
            planes::join(value, method.into())
        }
        _ => None,
    }
}

impl<S: Store> Store for Compressed<S> {
    fn get_many(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        let found = self.store.get_many(keys, bytes_max.saturating_add(TRAILER), deadline);
        found.into_iter().map(|bytes| decompress(bytes?, bytes_max)).collect()
    }

    fn has_many(&self, keys: &[String], deadline: Instant) -> Vec<bool> {
        self.store.has_many(keys, deadline)
    }

    fn put_many(&self, entries: &[(String, &[u8])], deadline: Instant) -> usize {
        let compressed: Vec<(&String, Vec<u8>)> =
            entries.iter().filter_map(|(key, value)| Some((key, compress(value, self.element_bytes)?))).collect();
        let entries: Vec<(String, &[u8])> =
            compressed.iter().map(|(key, bytes)| ((*key).clone(), &bytes[..])).collect();
        self.store.put_many(&entries, deadline)
    }

    fn unavailable_for(&self) -> Option<Duration> {
        self.store.unavailable_for()
    }

    fn remove_many(&self, keys: &[String], deadline: Instant) {
        self.store.remove_many(keys, deadline);
    }
}
