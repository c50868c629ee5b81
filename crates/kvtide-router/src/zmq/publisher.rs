//! Sends the events of a worker's blocks to all subscribers, and sends them again to subscribers that missed some.
//!
//! ```text
//! publish ──number──> history ──────> ROUTER   a peer requests batches from a number on, and gets those that are kept
//!                └──> queue ────────> PUB      subscribers read at their own pace; slow ones miss the oldest batches
//! ```
//!
//! Both are bounded in batches and bytes, and all peers share them: a publisher's memory depends neither on the number
//! of peers nor on their pace. `publish` never waits: it encodes the batch and numbers it. O(bytes of the batch).

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use kvtide_core::Error as CoreError;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::history::History;
use super::shared::Shared;
use super::{io, replays, subscriber};
use crate::error::{Error, Result};
use crate::wire::{Batch, Event, encode};
use crate::zmtp::{Listener, MESSAGE_BYTES_MAX, TOPIC_BYTES_MAX};

/// The most batches that are queued for subscribers.
const QUEUE_BATCHES: usize = 10_000;

/// Options of a publisher.
#[derive(Clone, Debug)]
pub struct PublisherOptions {
    /// The endpoint for subscribers: `tcp://host:port`; port 0 picks a free one.
    pub endpoint: String,
    /// The endpoint for replay requests, if any.
    pub replay_endpoint: Option<String>,
    /// The first part of each message, for instance `kv@pod@model`.
    pub topic: String,
    /// The worker's rank among those that serve one model together.
    pub rank: Option<u32>,
    /// The number of the first batch, 0 as in vLLM. Dynamo's indexer ignores numbers that it has seen. So a publisher
    /// that restarts on the same endpoint should continue after the last number, beginning with `Event::Cleared`.
    pub first: u64,
    /// The most batches that are kept for replays.
    pub history_batches: usize,
    /// The most bytes that are kept for replays.
    pub history_bytes: usize,
    /// The most bytes that are queued for subscribers; slow subscribers miss older batches.
    pub queue_bytes: usize,
}

impl Default for PublisherOptions {
    fn default() -> Self {
        PublisherOptions {
            endpoint: "tcp://127.0.0.1:0".to_owned(),
            replay_endpoint: None,
            topic: String::new(),
            rank: None,
            first: 0,
            history_batches: 10_000,
            history_bytes: 64 << 20,
            queue_bytes: 64 << 20,
        }
    }
}

/// Publishes events. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    endpoint: String,
    replay_endpoint: Option<String>,
    rank: Option<u32>,
    tasks: Vec<JoinHandle<()>>,
}

impl Publisher {
    /// Binds the endpoints. Tasks run on this runtime.
    pub async fn bind(runtime: &Handle, options: PublisherOptions) -> Result<Self> {
        let PublisherOptions { endpoint, replay_endpoint, topic, rank, first, .. } = options;
        if topic.len() > TOPIC_BYTES_MAX {
            let expected = format!("at most {TOPIC_BYTES_MAX} bytes");
            return Err(CoreError::argument("topic.length", topic.len() as u64, expected).into());
        }
        let history = History::new(options.history_batches, options.history_bytes);
        let queue = History::new(QUEUE_BATCHES, options.queue_bytes);
        let shared = Arc::new(Shared::new(topic.into(), first, history, queue));
        // Sockets must be created on the runtime that uses them.
        let bind = async move {
            let events = listen(&endpoint).await?;
            let replays = match replay_endpoint {
                Some(endpoint) => Some(listen(&endpoint).await?),
                None => None,
            };
            Ok::<_, Error>((events, replays))
        };
        let (events, replays) = runtime.spawn(bind).await.map_err(|reason| io("bind", "", reason))??;
        let endpoint = events.endpoint().to_string();
        let replay_endpoint = replays.as_ref().map(|listener| listener.endpoint().to_string());
        let mut tasks = vec![runtime.spawn(subscriber::serve(events, shared.clone()))];
        tasks.extend(replays.map(|listener| runtime.spawn(replays::serve(listener, shared.clone()))));
        Ok(Publisher { shared, endpoint, replay_endpoint, rank, tasks })
    }

    /// Publishes events, in order, as one batch of at most 16 MiB. Returns the batch's number. Never waits.
    pub fn publish(&self, events: Vec<Event>) -> Result<u64> {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        if events.len() > u32::MAX as usize {
            return Err(CoreError::argument("events.length", events.len() as u64, "a number of 32 bits").into());
        }
        let batch = Bytes::from(encode(&Batch { time, events, rank: self.rank }));
        let bytes = self.shared.topic.len() + size_of::<u64>() + batch.len();
        if bytes > MESSAGE_BYTES_MAX {
            let expected = format!("a batch of at most {MESSAGE_BYTES_MAX} bytes");
            return Err(CoreError::argument("events", bytes as u64, expected).into());
        }
        Ok(self.shared.add(batch))
    }

    /// Returns true if, since the last call, a peer requested batches that are no longer kept. The caller should then
    /// publish the entire content again, after [`Event::Cleared`], so that this peer can follow as well.
    #[must_use]
    pub fn take_behind(&self) -> bool {
        self.shared.take_behind()
    }

    /// The bound endpoint for subscribers.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The bound endpoint for replay requests.
    #[must_use]
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.replay_endpoint.as_deref()
    }

    /// The number of the next batch.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.shared.state().next
    }

    /// Sends queued batches for up to a second, then closes the endpoints.
    pub async fn close(mut self) {
        self.shared.close();
        for task in std::mem::take(&mut self.tasks) {
            let _ = task.await;
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn listen(endpoint: &str) -> Result<Listener> {
    Listener::bind(endpoint).await.map_err(|reason| io("bind", endpoint, reason))
}
