//! What the entries of a store are put into: compressed, sealed with a secret, or as they are. One stack of wrappers for every store, be
//! it called from here or by JavaScript.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kvtide_remote::{Compressed, Sealed, Store};
use kvtide_store::{SharedStore, StoreKey};
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::handle::guard;
use crate::border::refusal::{Outcome, Refusal};

impl From<kvtide_remote::Error> for Refusal {
    fn from(error: kvtide_remote::Error) -> Self {
        Refusal { code: error.code(), message: error.to_string(), details: error.details() }
    }
}

/// How much longer an entry may be in a store than it is by itself.
const ROOM: usize = 64;

/// Entries that pass from one hand to the other.
#[derive(Debug, Default)]
struct Handed(Mutex<HashMap<String, Vec<u8>>>);

impl Handed {
    fn entries(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Handed {
    fn get_many(&self, keys: &[String], _: usize, _: Instant) -> Vec<Option<Vec<u8>>> {
        let mut entries = self.entries();
        keys.iter().map(|key| entries.remove(key)).collect()
    }

    fn has_many(&self, keys: &[String], _: Instant) -> Vec<bool> {
        vec![false; keys.len()]
    }

    fn put_many(&self, entries: &[(String, &[u8])], _: Instant) -> usize {
        self.entries().extend(entries.iter().map(|(key, bytes)| (key.clone(), bytes.to_vec())));
        entries.len()
    }

    fn remove_many(&self, _: &[String], _: Instant) {}
}

/// What entries are put into.
struct Wrapping {
    secret: Option<[u8; 32]>,
    element_bytes: Option<usize>,
}

impl Wrapping {
    /// `secret` has 32 bytes, or none; `element_bytes` is 0 where nothing is compressed.
    pub fn read(secret: Option<&[u8]>, element_bytes: u32) -> Outcome<Self> {
        let secret = secret.map(|secret| {
            secret.try_into().map_err(|_| kvtide_core::Error::argument("secret.length", secret.len(), "32"))
        });
        Ok(Wrapping {
            secret: secret.transpose()?,
            element_bytes: (element_bytes > 0).then_some(element_bytes as usize),
        })
    }

    /// What stands behind the keys of such entries: those of others lie beside them.
    fn suffix(&self) -> String {
        let compressed = self.element_bytes.map(|bytes| format!("-z{bytes}"));
        let sealed = self.secret.map(|secret| format!("-s{}", &blake3::keyed_hash(&secret, b"kvtide").to_hex()[..8]));
        [compressed, sealed].into_iter().flatten().collect()
    }

    /// A store whose entries are put into it: compressed first, then sealed.
    pub fn wrap(&self, store: Arc<dyn Store>) -> Outcome<Arc<dyn Store>> {
        let sealed: Arc<dyn Store> = match self.secret {
            Some(secret) => Arc::new(Sealed::new(store, secret)),
            None => store,
        };
        Ok(match self.element_bytes {
            Some(bytes) => Arc::new(Compressed::new(sealed, bytes)?),
            None => sealed,
        })
    }
}

/// The same for entries that JavaScript writes and reads.
#[derive(Debug)]
pub(crate) struct Envelope {
    handed: Arc<Handed>,
    store: Arc<dyn Store>,
    suffix: String,
}

impl Envelope {
    /// The names of entries in the store.
    pub fn names(&self, keys: &[StoreKey]) -> Vec<String> {
        keys.iter().map(|key| format!("{key}{}", self.suffix)).collect()
    }

    /// Entries as they are to lie in the store.
    pub fn close(&self, entries: Vec<(StoreKey, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
        let closed = entries.into_iter().filter_map(|(key, bytes)| {
            let name = self.names(&[key]).pop()?;
            self.store.put_many(&[(name.clone(), &bytes)], Instant::now());
            let closed = self.handed.entries().remove(&name)?;
            Some((name, closed))
        });
        closed.collect()
    }

    /// The entry in what lay in the store, if it is one of at most so many bytes.
    pub fn open(&self, key: &StoreKey, bytes: &[u8], most: usize) -> Option<Vec<u8>> {
        if bytes.len() > self.bytes_max(most) {
            return None;
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes.len()).ok()?;
        copy.extend_from_slice(bytes);
        let name = self.names(&[*key]).pop()?;
        self.handed.entries().insert(name.clone(), copy);
        self.store.get_many(&[name], most, Instant::now()).pop().flatten()
    }

    /// The most bytes in the store of an entry of at most so many.
    pub fn bytes_max(&self, most: usize) -> usize {
        most.saturating_add(ROOM)
    }
}

#[napi]
pub struct NativeEnvelope {
    wrapping: Wrapping,
    envelope: Arc<Envelope>,
}

#[napi]
impl NativeEnvelope {
    #[napi(constructor)]
    pub fn new(env: &Env, secret: Option<&[u8]>, element_bytes: u32) -> Result<Self> {
        guard(env, || {
            let (handed, wrapping) = (Arc::new(Handed::default()), Wrapping::read(secret, element_bytes)?);
            let (store, suffix) = (wrapping.wrap(handed.clone())?, wrapping.suffix());
            Ok(NativeEnvelope { wrapping, envelope: Arc::new(Envelope { handed, store, suffix }) })
        })
    }
}

impl NativeEnvelope {
    pub(super) fn shared(&self) -> Arc<Envelope> {
        self.envelope.clone()
    }

    /// A store that is called from here, whose entries are put into the same.
    pub(super) fn wrap(&self, store: Arc<dyn Store>) -> Outcome<SharedStore> {
        Ok(SharedStore { store: self.wrapping.wrap(store)?, suffix: self.wrapping.suffix() })
    }
}
