//! Redis and Valkey, single or as a Cluster: many keys for each call, in pipelines over a few connections.
//!
//! ```text
//! options   settings                  slots     the node of each key in a Cluster
//! link      one connection            metered   reads no more than was asked for
//! commands  commands to send          replies   answers, as values and faults
//! ```
//!
//! Values are read with `GETRANGE key 0 bytes_max`: a value that is too long arrives with one byte too many, and is a
//! miss. Values are added with `SET … NX`, and `PX` if they have a time to live: an existing value and its time are
//! left alone.

mod commands;
mod link;
mod metered;
mod node;
mod options;
mod replies;
mod slots;

use kvtide_files::Result;
use redis::Value;
use tokio::runtime::Handle;

use crate::fault::Fault;
use crate::guard::{Backend, Guarded, Replies, Watcher};
use crate::policy::GuardOptions;
use commands::Batch;
use node::Node;
use options::Parsed;
pub use options::RedisOptions;
use slots::Cluster;

/// A Redis store, to be used through `Guarded`.
#[derive(Debug)]
pub struct Redis {
    layout: Layout,
    prefix: String,
    ttl_millis: Option<u64>,
}

#[derive(Debug)]
enum Layout {
    Single(Node),
    Cluster(Cluster),
}

impl Redis {
    /// Creates a Redis store. It does not connect before the first call.
    pub fn new(options: &RedisOptions) -> Result<Self> {
        let Parsed { addresses, access, ttl_millis } = options.parse()?;
        let connections = options.connections;
        let layout = match addresses.first() {
            Some(address) if !options.is_cluster => Layout::Single(Node::new(address.clone(), access, connections)),
            _ => Layout::Cluster(Cluster::new(addresses, access, connections)),
        };
        Ok(Redis { layout, prefix: options.prefix.clone(), ttl_millis })
    }

    /// Creates a guarded Redis store.
    pub fn guarded(
        options: &RedisOptions,
        guard: GuardOptions,
        runtime: Handle,
        watcher: Option<Watcher>,
    ) -> Result<Guarded<Self>> {
        Guarded::watched(Self::new(options)?, guard, runtime, watcher)
    }

    /// Returns the answers to a batch, in its order.
    async fn answers(&self, batch: Batch<'_>) -> Vec<Result<Value, Fault>> {
        match &self.layout {
            Layout::Single(node) => {
                let all: Vec<usize> = (0..batch.keys.len()).collect();
                batch.on(node, &all).await
            }
            Layout::Cluster(cluster) => cluster.answers(&batch).await,
        }
    }
}

impl Backend for Redis {
    async fn get(&self, keys: &[String], bytes_max: usize) -> Result<Replies<Option<Vec<u8>>>, Fault> {
        let answers = self.answers(Batch::get(&self.prefix, keys, bytes_max)).await;
        replies::read(answers, |value| match value {
            // A missing value is an empty string.
            Value::BulkString(bytes) => Some((!bytes.is_empty() && bytes.len() <= bytes_max).then_some(bytes)),
            Value::Nil => Some(None),
            _ => None,
        })
    }

    async fn has(&self, keys: &[String]) -> Result<Replies<bool>, Fault> {
        let answers = self.answers(Batch::has(&self.prefix, keys)).await;
        replies::read(answers, |value| match value {
            Value::Int(count) => Some(count > 0),
            _ => None,
        })
    }

    async fn put(&self, entries: &[(String, &[u8])]) -> Result<Replies<bool>, Fault> {
        let answers = self.answers(Batch::put(&self.prefix, entries, self.ttl_millis)).await;
        let read = replies::read(answers, |value| match value {
            // The value existed before.
            Value::Okay | Value::Nil => Some(true),
            _ => None,
        });
        replies::of_writes(read)
    }

    async fn remove(&self, keys: &[String]) -> Result<Replies<()>, Fault> {
        let answers = self.answers(Batch::remove(&self.prefix, keys)).await;
        replies::of_writes(replies::read(answers, |value| matches!(value, Value::Int(_)).then_some(())))
    }
}
