//! Sends what happened to a worker's blocks to whoever listens, and again to whoever missed some.
//!
//! ```text
//! publish ──number──> history ─────────────> ROUTER   a task for each request
//!                └──> queue (bytes bounded) ─> PUB     zeromq keeps 100,000 messages for each subscriber and drops those that come then
//! ```
//!
//! `publish` waits for nobody: it encodes, counts and leaves. Where the queue is full, the oldest goes, and subscribers see a gap in the
//! numbers. O(bytes of the batch).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use kvtide_core::Error as CoreError;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterRecvHalf, RouterSendHalf, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::history::History;
use super::{END, io};
use crate::error::{Error, Result};
use crate::wire::{Batch, Event, encode};

/// How many requests for a replay are answered at a time.
const REPLAYS_MAX: usize = 8;

/// How long one answer of a replay may take to be sent.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Where and how to publish.
#[derive(Clone, Debug)]
pub struct PublisherOptions {
    /// Where subscribers connect: `tcp://host:port`; port 0 takes a free one.
    pub endpoint: String,
    /// Where replays are asked for, if anywhere.
    pub replay_endpoint: Option<String>,
    /// The first part of each message, for instance `kv@pod@model`.
    pub topic: String,
    /// Which of the workers that serve one model together.
    pub rank: Option<u32>,
    /// The number of the first batch, 0 as in vLLM. Dynamo's indexer passes over numbers that it has seen: a publisher that is started again
    /// on the same endpoint begins behind the last one's, and with `Event::Cleared`.
    pub first: u64,
    /// The most batches that are kept for replays.
    pub history_batches: usize,
    /// The most bytes of them.
    pub history_bytes: usize,
    /// The most bytes that wait to be sent.
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

/// A publisher of events. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    endpoint: String,
    replay_endpoint: Option<String>,
    rank: Option<u32>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake: Notify,
    closing: Notify,
    /// Whether somebody asked for batches that are not kept any more.
    is_behind: AtomicBool,
    /// The number of the first batch.
    first: u64,
}

#[derive(Debug)]
struct State {
    next: u64,
    history: History,
    queue: History,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher {
    /// Binds the endpoints; tasks run on that runtime.
    pub async fn bind(runtime: &Handle, options: PublisherOptions) -> Result<Self> {
        let PublisherOptions { endpoint, replay_endpoint, topic, rank, first, .. } = options;
        let state = State {
            next: first,
            history: History::new(options.history_batches, options.history_bytes),
            queue: History::new(usize::MAX, options.queue_bytes),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            wake: Notify::new(),
            closing: Notify::new(),
            is_behind: AtomicBool::new(false),
            first,
        });
        // Sockets are made on the runtime that they will live on.
        let bind = async move {
            let mut events = PubSocket::new();
            let bound = events.bind(&endpoint).await.map_err(|reason| io("bind", &endpoint, reason))?;
            let mut replays = None;
            if let Some(endpoint) = replay_endpoint {
                let mut socket = RouterSocket::new();
                let bound = socket.bind(&endpoint).await.map_err(|reason| io("bind", &endpoint, reason))?;
                replays = Some((socket, bound.to_string()));
            }
            Ok::<_, Error>((events, bound.to_string(), replays))
        };
        let (events, endpoint, replays) = runtime.spawn(bind).await.map_err(|reason| io("bind", "", reason))??;
        let topic = Bytes::from(topic.into_bytes());
        let mut tasks = vec![runtime.spawn(send(events, shared.clone(), topic))];
        let mut replay_endpoint = None;
        if let Some((socket, bound)) = replays {
            tasks.push(runtime.spawn(answer(socket, shared.clone())));
            replay_endpoint = Some(bound);
        }
        Ok(Publisher { shared, endpoint, replay_endpoint, rank, tasks })
    }

    /// Publishes what happened just now, in order, as one batch; answers the batch's number. Waits for nobody.
    pub fn publish(&self, events: Vec<Event>) -> Result<u64> {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        if events.len() > u32::MAX as usize {
            return Err(CoreError::argument("events.length", events.len() as u64, "of 32 bits").into());
        }
        let batch = Bytes::from(encode(&Batch { time, events, rank: self.rank }));
        let number = {
            let mut state = self.shared.state();
            let number = state.next;
            state.next += 1;
            state.history.push(number, batch.clone());
            state.queue.push(number, batch);
            number
        };
        self.shared.wake.notify_one();
        Ok(number)
    }

    /// Whether somebody has asked since the last call for batches that are not kept any more: who publishes everything anew, after
    /// [`Event::Cleared`], is followed by that one as well.
    #[must_use]
    pub fn take_behind(&self) -> bool {
        self.shared.is_behind.swap(false, Ordering::AcqRel)
    }

    /// Where it is bound.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where replays are asked for.
    #[must_use]
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.replay_endpoint.as_deref()
    }

    /// The number that the next batch gets.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.shared.state().next
    }

    /// Sends what waits, as far as subscribers take it, and gives the endpoints free.
    pub async fn close(mut self) {
        self.shared.closing.notify_waiters();
        // For tasks that have not come to wait for it yet.
        self.shared.closing.notify_one();
        self.shared.wake.notify_one();
        for task in std::mem::take(&mut self.tasks) {
            self.shared.closing.notify_one();
            let _ = task.await;
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn send(mut socket: PubSocket, shared: Arc<Shared>, topic: Bytes) {
    loop {
        while let Some((number, batch)) = { shared.state().queue.pop() } {
            let mut message = ZmqMessage::from(topic.clone());
            message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
            message.push_back(batch);
            // It cannot fail for others than this message, and never waits: zeromq drops what a subscriber does not take.
            let _ = socket.send(message).await;
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            () = shared.closing.notified() => break,
        }
    }
    // What zeromq has taken goes out from its own tasks; they end with the socket.
    tokio::time::sleep(Duration::from_millis(20)).await;
    socket.unbind_all().await;
}

async fn answer(mut socket: RouterSocket, shared: Arc<Shared>) {
    let binds: Vec<_> = socket.binds().keys().cloned().collect();
    let stops: Vec<_> = binds.iter().filter_map(|endpoint| socket.binds().remove(endpoint)).collect();
    let (sender, mut receiver): (RouterSendHalf, RouterRecvHalf) = socket.split();
    let replays = Arc::new(Semaphore::new(REPLAYS_MAX));
    loop {
        let message = tokio::select! {
            message = receiver.recv() => message,
            () = shared.closing.notified() => break,
        };
        let Ok(message) = message else {
            // Nobody is connected; it is no reason to end.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let frames = message.into_vec();
        let (peer, first) = match frames.as_slice() {
            [peer, delimiter, first] if delimiter.is_empty() => (peer, first),
            [peer, first] => (peer, first),
            _ => continue,
        };
        let Ok(first) = <[u8; 8]>::try_from(&first[..]) else { continue };
        // Where all are taken, a request is dropped: who asked asks again.
        let Ok(permit) = replays.clone().try_acquire_owned() else { continue };
        let replay = replay(sender.clone(), shared.clone(), peer.clone(), u64::from_be_bytes(first));
        tokio::spawn(async move {
            replay.await;
            drop(permit);
        });
    }
    drop((sender, receiver, stops));
}

/// Sends what is kept from a number on, up to what there was when it was asked for.
async fn replay(mut sender: RouterSendHalf, shared: Arc<Shared>, peer: Bytes, first: u64) {
    let (behind, oldest) = {
        let state = shared.state();
        (state.next, state.history.from(first).map_or(state.next, |(number, _)| number))
    };
    if first.max(shared.first) < oldest.min(behind) {
        shared.is_behind.store(true, Ordering::Release);
    }
    let mut next = first;
    while let Some((number, batch)) = { shared.state().history.from(next) }.filter(|&(number, _)| number < behind) {
        if !send_answer(&mut sender, &peer, number.to_be_bytes(), batch).await {
            return;
        }
        next = number + 1;
    }
    send_answer(&mut sender, &peer, END, Bytes::new()).await;
}

/// Whether it went out.
async fn send_answer(sender: &mut RouterSendHalf, peer: &Bytes, number: [u8; 8], batch: Bytes) -> bool {
    let mut message = ZmqMessage::from(peer.clone());
    for frame in [Bytes::new(), Bytes::copy_from_slice(&number), batch] {
        message.push_back(frame);
    }
    matches!(tokio::time::timeout(ANSWER_TIME, sender.send(message)).await, Ok(Ok(())))
}
