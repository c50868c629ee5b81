//! Redis and Valkey, single or as a Cluster: many keys a call, in pipelines over a few connections.
//!
//! ```text
//! options   what it is made with      slots     which node of a Cluster has a key
//! link      one connection            metered   no more is read than was asked for
//! commands  what is sent              replies   what comes back, as values and faults
//! ```
//!
//! Values are read by `GETRANGE key 0 bytes_max`: of one that is too long, one byte more than it may have comes, and it is a miss. Values are
//! added by `SET … NX`, with `PX` where they have a time to live: a value that is there is left alone, as is its time.

mod commands;
mod link;
mod metered;
mod node;
mod options;
mod replies;
mod slots;

use redis::Value;
use tokio::runtime::Handle;

use crate::backend::{Backend, Replies};
use crate::error::Result;
use crate::fault::Fault;
use crate::guarded::{GuardOptions, Guarded, Watcher};
use commands::Batch;
use node::Node;
use options::Parsed;
pub use options::RedisOptions;
use slots::Cluster;

/// Values in Redis. It is used through `Guarded`.
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
    /// Redis by its options. Nothing is connected before the first call.
    pub fn new(options: &RedisOptions) -> Result<Self> {
        let Parsed { addresses, access, ttl_millis } = options.parse()?;
        let connections = options.connections;
        let layout = match addresses.first() {
            Some(address) if !options.is_cluster => Layout::Single(Node::new(address.clone(), access, connections)),
            _ => Layout::Cluster(Cluster::new(addresses, access, connections)),
        };
        Ok(Redis { layout, prefix: options.prefix.clone(), ttl_millis })
    }

    /// The same as a store that never fails.
    pub fn guarded(
        options: &RedisOptions,
        guard: GuardOptions,
        runtime: Handle,
        watcher: Option<Watcher>,
    ) -> Result<Guarded<Self>> {
        Guarded::watched(Self::new(options)?, guard, runtime, watcher)
    }

    /// The answers to a batch, in its order.
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
            // What is not there is empty.
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
            // It was there before.
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
