//! Sends the events of a worker's blocks to all subscribers, and sends them again to subscribers that missed some.
//!
//! ```text
//! publish ──number──> history ──────> ROUTER   a peer requests batches from a number on, and gets those that are kept
//!                └──> queue ────────> PUB      subscribers read at their own pace; slow ones miss the oldest batches
//! ```
//!
//! Both are bounded in batches and bytes, and all peers share them: a publisher's memory depends neither on the number
//! of peers nor on their pace. `publish` never waits: it encodes the batch and numbers it. O(bytes of the batch).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use kvtide_core::Error as CoreError;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::history::History;
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

/// State shared by the tasks of all peers.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) topic: Bytes,
    /// Notifies tasks of each batch, and of the end.
    progress: watch::Sender<Progress>,
    /// True if a peer requested batches that are no longer kept.
    is_behind: AtomicBool,
    /// The number of the first batch.
    pub(super) first: u64,
}

#[derive(Debug)]
pub(super) struct State {
    /// The number of the next batch.
    pub(super) next: u64,
    /// Batches for replays.
    pub(super) history: History,
    /// Batches for subscribers.
    pub(super) queue: History,
}

/// The progress of a publisher.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    batches: u64,
    pub(super) is_closing: bool,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds this lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies of new batches, and of the end.
    pub(super) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Waits for the end.
    pub(super) async fn closing(&self) {
        // This cannot fail, because the sender lives in this struct.
        let _ = self.progress().wait_for(|progress| progress.is_closing).await;
    }

    /// Records that a peer requested batches that are no longer kept.
    pub(super) fn note_behind(&self) {
        self.is_behind.store(true, Ordering::Release);
    }
}

impl Publisher {
    /// Binds the endpoints. Tasks run on this runtime.
    pub async fn bind(runtime: &Handle, options: PublisherOptions) -> Result<Self> {
        let PublisherOptions { endpoint, replay_endpoint, topic, rank, first, .. } = options;
        if topic.len() > TOPIC_BYTES_MAX {
            let expected = format!("at most {TOPIC_BYTES_MAX} bytes");
            return Err(CoreError::argument("topic.length", topic.len() as u64, expected).into());
        }
        let state = State {
            next: first,
            history: History::new(options.history_batches, options.history_bytes),
            queue: History::new(QUEUE_BATCHES, options.queue_bytes),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            topic: topic.into(),
            progress: watch::Sender::default(),
            is_behind: AtomicBool::new(false),
            first,
        });
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
        let number = {
            let mut state = self.shared.state();
            let number = state.next;
            state.next += 1;
            state.history.push(number, batch.clone());
            state.queue.push(number, batch);
            number
        };
        self.shared.progress.send_modify(|progress| progress.batches += 1);
        Ok(number)
    }

    /// Returns true if, since the last call, a peer requested batches that are no longer kept. The caller should then
    /// publish the entire content again, after [`Event::Cleared`], so that this peer can follow as well.
    #[must_use]
    pub fn take_behind(&self) -> bool {
        self.shared.is_behind.swap(false, Ordering::AcqRel)
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
        self.shared.progress.send_modify(|progress| progress.is_closing = true);
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
