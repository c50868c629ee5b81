//! Object stores: S3 and compatible servers, Google Cloud Storage, Azure. One request for each value, many at a time.
//!
//! The length of a value is in the header of its answer, and is checked before its body is read. Values are added only
//! if they do not exist yet; if the store cannot check that itself, they are looked up first. The client library does
//! not retry, because `Guarded` does.

mod bounded;
mod faults;
mod options;

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::join_all;
use kvtide_files::Result;
use object_store::path::{Path, PathPart};
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Handle;

use crate::fault::{Fault, FaultKind};
use crate::guard::{Backend, Guarded, Replies, Watcher};
use crate::policy::GuardOptions;
use faults::of_error;
pub use options::ObjectStorageOptions;

/// An object store, to be used through `Guarded`.
pub struct ObjectStorage {
    client: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl std::fmt::Debug for ObjectStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectStorage").field("prefix", &self.prefix.as_ref()).finish_non_exhaustive()
    }
}

impl ObjectStorage {
    /// Creates an object store. It does not connect before the first call.
    pub fn new(options: &ObjectStorageOptions) -> Result<Self> {
        let (client, prefix) = options.open()?;
        Ok(ObjectStorage { client, prefix })
    }

    /// Creates a guarded object store. Every value is a batch of its own, whatever the options say.
    pub fn guarded(
        options: &ObjectStorageOptions,
        guard: GuardOptions,
        runtime: Handle,
        watcher: Option<Watcher>,
    ) -> Result<Guarded<Self>> {
        Guarded::watched(Self::new(options)?, GuardOptions { batch_keys: 1, ..guard }, runtime, watcher)
    }

    /// Returns the path of a key: the key is one part of the path, whatever characters it has.
    fn path(&self, key: &str) -> Path {
        self.prefix.clone().join(PathPart::from(key))
    }

    async fn get_one(&self, key: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, Fault> {
        let found = match self.client.get_opts(&self.path(key), GetOptions::default()).await {
            Ok(found) => found,
            Err(error) => return of_error(&error).map_or(Ok(None), Err),
        };
        let Some(length) = usize::try_from(found.meta.size).ok().filter(|length| *length <= bytes_max) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(length).is_err() {
            return Ok(None);
        }
        let mut body = found.into_stream();
        while let Some(piece) = body.next().await {
            let broken = || Fault::new(FaultKind::Unreachable, "the body broke off");
            let piece = piece.map_err(|error| of_error(&error).unwrap_or_else(broken))?;
            if piece.len() > length - bytes.len() {
                return Err(Fault::new(FaultKind::Garbage, "more than was announced"));
            }
            bytes.extend_from_slice(&piece);
        }
        if bytes.len() < length {
            return Err(Fault::new(FaultKind::Garbage, "less than was announced"));
        }
        Ok((length > 0).then_some(bytes))
    }

    async fn has_one(&self, key: &str) -> Result<bool, Fault> {
        match self.client.head(&self.path(key)).await {
            Ok(_) => Ok(true),
            Err(error) => of_error(&error).map_or(Ok(false), Err),
        }
    }

    async fn put_one(&self, key: &str, value: &[u8]) -> Result<bool, Fault> {
        let path = self.path(key);
        let put = async |mode: PutMode| {
            let options = PutOptions { mode, ..PutOptions::default() };
            self.client.put_opts(&path, value.to_vec().into(), options).await.map(drop)
        };
        let added = match put(PutMode::Create).await {
            Err(object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. }) => {
                if self.has_one(key).await? {
                    return Ok(true);
                }
                put(PutMode::Overwrite).await
            }
            added => added,
        };
        match added {
            Ok(()) | Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(true)
            }
            Err(error) => Err(of_error(&error).unwrap_or_else(|| Fault::new(FaultKind::Refused, "no such bucket"))),
        }
    }

    async fn remove_one(&self, key: &str) -> Result<(), Fault> {
        match self.client.delete(&self.path(key)).await {
            Ok(()) => Ok(()),
            Err(error) => of_error(&error).map_or(Ok(()), Err),
        }
    }
}

/// Gathers the results of all values. If all of them failed, the first fault is that of the batch.
fn gathered<T: Default>(answers: Vec<Result<T, Fault>>) -> Result<Replies<T>, Fault> {
    let is_answered = answers.is_empty() || answers.iter().any(Result::is_ok);
    let mut fault = None;
    let each = answers.into_iter().map(|answer| {
        answer.unwrap_or_else(|found| {
            fault.get_or_insert(found);
            T::default()
        })
    });
    let each = each.collect();
    match fault {
        Some(fault) if !is_answered => Err(fault),
        fault => Ok(Replies { each, fault }),
    }
}

impl Backend for ObjectStorage {
    async fn get(&self, keys: &[String], bytes_max: usize) -> Result<Replies<Option<Vec<u8>>>, Fault> {
        gathered(join_all(keys.iter().map(|key| self.get_one(key, bytes_max))).await)
    }

    async fn has(&self, keys: &[String]) -> Result<Replies<bool>, Fault> {
        gathered(join_all(keys.iter().map(|key| self.has_one(key))).await)
    }

    async fn put(&self, entries: &[(String, &[u8])]) -> Result<Replies<bool>, Fault> {
        gathered(join_all(entries.iter().map(|(key, value)| self.put_one(key, value))).await)
    }

    async fn remove(&self, keys: &[String]) -> Result<Replies<()>, Fault> {
        gathered(join_all(keys.iter().map(|key| self.remove_one(key))).await)
    }
}
