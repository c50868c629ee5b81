//! Stores over the network.

use std::collections::HashMap;
use std::time::Duration;

use kvtide_tiers::{GuardOptions, ObjectStorage, ObjectStorageOptions, Redis, RedisOptions};
use napi::{Env, Result};
use napi_derive::napi;

use super::store::NativeStore;
use crate::border::argument::{count, optional, whole};
use crate::border::handle::guard;
use crate::border::runtime;

/// The options of Redis, with defaults filled in by the TypeScript layer.
#[napi(object, object_to_js = false)]
pub struct NativeRedisOptions {
    pub urls: Vec<String>,
    pub is_cluster: bool,
    pub prefix: String,
    pub connections: f64,
    #[napi(ts_type = "string | undefined")]
    pub username: Option<String>,
    #[napi(ts_type = "string | undefined")]
    pub password: Option<String>,
    #[napi(ts_type = "number | undefined")]
    pub database: Option<f64>,
    /// The lifetime of values in milliseconds.
    #[napi(ts_type = "number | undefined")]
    pub ttl: Option<f64>,
    #[napi(ts_type = "string | undefined")]
    pub roots: Option<String>,
}

/// The options of an object store.
#[napi(object, object_to_js = false)]
pub struct NativeObjectOptions {
    pub url: String,
    pub options: HashMap<String, String>,
    #[napi(ts_type = "string | undefined")]
    pub roots: Option<String>,
}

#[napi]
impl NativeStore {
    #[napi(factory)]
    pub fn redis(env: &Env, options: NativeRedisOptions) -> Result<Self> {
        guard(env, || {
            let given = RedisOptions {
                urls: options.urls,
                is_cluster: options.is_cluster,
                username: options.username,
                password: options.password,
                database: optional("database", options.database, count)?,
                prefix: options.prefix,
                ttl: optional("ttl", options.ttl, whole)?.map(Duration::from_millis),
                connections: count("connections", options.connections)? as usize,
                roots: options.roots.map(String::into_bytes),
                ..RedisOptions::default()
            };
            let store = Redis::guarded(&given, GuardOptions::default(), runtime::handle()?, None)?;
            Ok(NativeStore::new("RedisStore", store))
        })
    }

    #[napi(factory)]
    pub fn objects(env: &Env, options: NativeObjectOptions) -> Result<Self> {
        guard(env, || {
            let mut pairs: Vec<(String, String)> = options.options.into_iter().collect();
            pairs.sort();
            let given =
                ObjectStorageOptions { url: options.url, options: pairs, roots: options.roots.map(String::into_bytes) };
            let store = ObjectStorage::guarded(&given, GuardOptions::default(), runtime::handle()?, None)?;
            Ok(NativeStore::new("ObjectStore", store))
        })
    }
}
