//! Values that only those who know a secret can have written: a keyed BLAKE3 of key and value behind each.
//!
//! ```text
//! value   tag 32: keyed BLAKE3 of (bytes of the key u64 little-endian, key, value)
//! ```
//!
//! A value under another key, cut short, changed, or of another secret is a miss, and is counted. Tags are compared in constant time.
//! O(bytes), and a copy of each value that is added.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::store::Store;

const TAG: usize = 32;

/// A store whose values are sealed.
pub struct Sealed<S> {
    store: S,
    secret: [u8; 32],
    forged: AtomicU64,
}

impl<S> std::fmt::Debug for Sealed<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealed").field("forged", &self.forged).finish_non_exhaustive()
    }
}

impl<S: Store> Sealed<S> {
    /// Seals what goes into a store, and believes what comes out only where it was sealed with the same secret.
    pub fn new(store: S, secret: [u8; 32]) -> Self {
        Sealed { store, secret, forged: AtomicU64::new(0) }
    }

    /// Values that came and were not sealed with the secret, or not under their key.
    #[must_use]
    pub fn forged(&self) -> u64 {
        self.forged.load(Ordering::Relaxed)
    }

    /// The store within.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn tag(&self, key: &str, value: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&(key.len() as u64).to_le_bytes()).update(key.as_bytes()).update(value);
        hasher.finalize()
    }

    /// A value without its tag, if that is right.
    fn opened(&self, key: &str, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let opened = bytes.split_last_chunk::<TAG>().and_then(|(value, tag)| {
            // The comparison of hashes takes the same time wherever they differ.
            (self.tag(key, value) == blake3::Hash::from_bytes(*tag)).then_some(value.len())
        });
        match opened {
            Some(length) => bytes.truncate(length),
            None => _ = self.forged.fetch_add(1, Ordering::Relaxed),
        }
        opened.map(|_| bytes)
    }
}

impl<S: Store> Store for Sealed<S> {
    fn get_many(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        let found = self.store.get_many(keys, bytes_max.saturating_add(TAG), deadline);
        keys.iter().zip(found).map(|(key, bytes)| self.opened(key, bytes?)).collect()
    }

    fn has_many(&self, keys: &[String], deadline: Instant) -> Vec<bool> {
        self.store.has_many(keys, deadline)
    }

    fn put_many(&self, entries: &[(String, &[u8])], deadline: Instant) -> usize {
        let sealed: Vec<(&String, Vec<u8>)> = entries
            .iter()
            .filter_map(|(key, value)| {
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(value.len() + TAG).ok()?;
                bytes.extend_from_slice(value);
                bytes.extend_from_slice(self.tag(key, value).as_bytes());
                Some((key, bytes))
            })
            .collect();
        let sealed: Vec<(String, &[u8])> = sealed.iter().map(|(key, bytes)| ((*key).clone(), &bytes[..])).collect();
        self.store.put_many(&sealed, deadline)
    }

    fn unavailable_for(&self) -> Option<Duration> {
        self.store.unavailable_for()
    }

    fn remove_many(&self, keys: &[String], deadline: Instant) {
        self.store.remove_many(keys, deadline);
    }
}
