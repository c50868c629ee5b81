//! Receives a publisher's batches, complete and in order, or reports that some are lost.
//!
//! ```text
//! SUB ──> cursor ──Next──> queue (bounded) ──> next()
//!            └──Gap, a new connection, or silence──> replay from the last batch that was seen
//!                    if it continues from there: nothing was missed     otherwise: Lost, then the kept batches
//! ```
//!
//! After `Lost`, nothing is known about the worker's blocks until new batches report them: an index drops all of them.
//! If the caller takes no batches from the queue, the task waits, the connection fills up, the publisher drops
//! messages, and a replay or `Lost` follows. The queue is bounded in batches and bytes.
//!
//! A batch that cannot be decoded counts as lost. The follower reconnects for as long as it lives.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvtide_core::Error as CoreError;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::cursor::{Cursor, Place};
use super::replay::Replay;
use super::{EVENTS, io};
use crate::error::Result;
use crate::wire::{Batch, decode};
use crate::zmtp::{
    Command, Endpoint, Incoming, Outgoing, Received, SocketType, TOPIC_BYTES_MAX, connect, subscription,
};

/// The delay before reconnecting: the first one and the longest. It doubles until a connection delivers a message.
const RETRY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Options of a follower.
#[derive(Clone, Debug)]
pub struct FollowerOptions {
    /// The publisher's endpoint: `tcp://host:port`.
    pub endpoint: String,
    /// The publisher's endpoint for replays, if it has one. Without it, batches published earlier are lost.
    pub replay_endpoint: Option<String>,
    /// The prefix of topics to subscribe to.
    pub topic: String,
    /// Deadline for an answer to a replay request.
    pub patience: Duration,
    /// Time without a message after which a replay checks whether one was missed.
    pub silence: Duration,
    /// The most batches in the queue.
    pub queue: usize,
    /// The most bytes in the queue; a single batch may have more.
    pub queue_bytes: usize,
}

impl Default for FollowerOptions {
    fn default() -> Self {
        FollowerOptions {
            endpoint: String::new(),
            replay_endpoint: None,
            topic: String::new(),
            patience: Duration::from_secs(5),
            silence: Duration::from_secs(5),
            queue: 1024,
            queue_bytes: 64 << 20,
        }
    }
}

/// The next item that a follower receives.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    /// The next batch.
    Batch {
        /// Its number.
        number: u64,
        /// Its content.
        batch: Batch,
    },
    /// Events were lost and will not be sent again: everything known about the worker's blocks is invalid.
    Lost,
}

/// Follows a publisher. Its task ends when it is dropped.
#[derive(Debug)]
pub struct Follower {
    queue: mpsc::Receiver<Queued>,
    task: JoinHandle<()>,
}

/// A received batch, or `None` for a loss.
#[derive(Debug)]
struct Queued {
    batch: Option<(u64, Bytes)>,
    /// The batch's share of the queue's byte limit.
    _bytes: Option<OwnedSemaphorePermit>,
}

impl Follower {
    /// Starts following on this runtime. The publisher may start later.
    pub fn start(runtime: &Handle, options: FollowerOptions) -> Result<Self> {
        let parse = |endpoint: &String| parse(endpoint);
        let endpoint = parse(&options.endpoint)?;
        let replay_endpoint = options.replay_endpoint.as_ref().map(parse).transpose()?;
        if options.topic.len() > TOPIC_BYTES_MAX {
            let expected = format!("at most {TOPIC_BYTES_MAX} bytes");
            return Err(CoreError::argument("topic.length", options.topic.len() as u64, expected).into());
        }
        let (sender, queue) = mpsc::channel(options.queue.max(1));
        let room = options.queue_bytes.clamp(1, u32::MAX as usize);
        let bytes = Arc::new(Semaphore::new(room));
        let cursor = Cursor::default();
        let task = Task { options, endpoint, replay_endpoint, cursor, is_lost: false, sender, bytes, room };
        Ok(Follower { queue, task: runtime.spawn(task.run()) })
    }

    /// Waits for the next batch or loss. Returns `None` only after the runtime has ended.
    pub async fn next(&mut self) -> Option<Followed> {
        let queued = self.queue.recv().await?;
        // Decoded only here: events take more memory than their bytes, so just one batch is decoded at a time.
        let Some((number, bytes)) = queued.batch else { return Some(Followed::Lost) };
        Some(decode(&bytes).map_or(Followed::Lost, |batch| Followed::Batch { number, batch }))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Parses an address to connect to.
fn parse(endpoint: &str) -> Result<Endpoint> {
    let parsed = Endpoint::parse(endpoint).map_err(|reason| io("connect", endpoint, reason))?;
    if parsed.host == "*" { Err(io("connect", endpoint, "expected a host before the port")) } else { Ok(parsed) }
}

/// The follower was dropped.
struct Gone;

struct Task {
    options: FollowerOptions,
    endpoint: Endpoint,
    replay_endpoint: Option<Endpoint>,
    cursor: Cursor,
    /// A loss was reported, and no batch since.
    is_lost: bool,
    sender: mpsc::Sender<Queued>,
    /// The remaining byte limit of the queue, and the limit of an empty queue.
    bytes: Arc<Semaphore>,
    room: usize,
}

impl Task {
    async fn run(mut self) {
        let mut wait = RETRY[0];
        while !self.sender.is_closed() {
            let mut has_received = false;
            if let Some((incoming, outgoing)) = self.connect().await
                && self.receive(incoming, outgoing, &mut has_received).await.is_err()
            {
                return;
            }
            wait = if has_received { RETRY[0] } else { wait };
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY[1]);
        }
    }

    async fn connect(&self) -> Option<(Incoming, Outgoing)> {
        let patience = self.options.patience;
        let (incoming, mut outgoing) = connect(&self.endpoint, SocketType::Sub, EVENTS, patience).await.ok()?;
        outgoing.send(&[&subscription(&self.options.topic)]).await.ok()?;
        timeout(patience, outgoing.flush()).await.ok()?.ok()?;
        Some((incoming, outgoing))
    }

    /// Receives until the connection breaks.
    async fn receive(
        &mut self,
        mut incoming: Incoming,
        mut outgoing: Outgoing,
        has_received: &mut bool,
    ) -> Result<(), Gone> {
        self.replay().await?;
        // Heartbeats do not count as messages: they say nothing about messages that were missed.
        let mut heard = Instant::now();
        loop {
            let received = match timeout_at(heard + self.options.silence, incoming.next()).await {
                Ok(Ok(received)) => received,
                // A replay delivers the missed batches.
                Ok(Err(_)) => return Ok(()),
                Err(_) => {
                    self.replay().await?;
                    heard = Instant::now();
                    continue;
                }
            };
            match received {
                Received::Message(parts) => {
                    heard = Instant::now();
                    if let [_, number, batch] = parts.as_slice()
                        && let Ok(number) = <[u8; 8]>::try_from(&number[..])
                    {
                        *has_received = true;
                        self.live(u64::from_be_bytes(number), batch).await?;
                    }
                }
                Received::Command(command) => match Command::parse(&command) {
                    Ok(Command::Ping(context)) => {
                        if outgoing.pong(context).await.is_err() {
                            return Ok(());
                        }
                    }
                    Ok(_) => {}
                    Err(_) => return Ok(()),
                },
            }
        }
    }

    /// Handles a batch that was just published.
    async fn live(&mut self, number: u64, batch: &Bytes) -> Result<(), Gone> {
        match self.cursor.place(number, batch) {
            Place::Next => {
                self.cursor.catch_up(false);
                return self.take(number, batch).await;
            }
            Place::Seen => return Ok(()),
            Place::Gap => self.replay().await?,
            Place::Anew => {
                self.lose().await?;
                self.replay().await?;
            }
        }
        match self.cursor.place(number, batch) {
            Place::Next => {}
            // The replay contained it.
            Place::Seen => return Ok(()),
            Place::Gap | Place::Anew => self.lose().await?,
        }
        self.take(number, batch).await
    }

    /// Requests everything from the last seen batch on, if the publisher answers.
    async fn replay(&mut self) -> Result<(), Gone> {
        let Some(endpoint) = self.replay_endpoint.clone() else { return Ok(()) };
        while !self.replay_once(&endpoint).await? {}
        Ok(())
    }

    /// Requests one replay. Returns true if no other is needed: after a loss, one more is requested from the beginning.
    async fn replay_once(&mut self, endpoint: &Endpoint) -> Result<bool, Gone> {
        let asked = self.cursor.last();
        let Some(mut replay) = Replay::ask(endpoint, asked.unwrap_or(0), self.options.patience).await else {
            return Ok(true);
        };
        let mut is_proven = asked.is_none();
        let mut before = None;
        while let Ok(answer) = replay.next().await {
            // Numbers must ascend, so a replay cannot repeat seen batches for ever.
            let number = answer.as_ref().map(|(number, _)| *number);
            if number.is_some() && number <= before {
                break;
            }
            before = number;
            let place = answer.as_ref().map(|(number, batch)| self.cursor.place(*number, batch));
            if !is_proven && place != Some(Place::Seen) {
                // The answering publisher is another one, or no longer keeps that batch.
                self.lose().await?;
                return Ok(false);
            }
            is_proven = true;
            let Some((number, batch)) = answer else { break };
            self.again(number, &batch).await?;
        }
        Ok(true)
    }

    /// Handles a batch of a replay.
    async fn again(&mut self, number: u64, batch: &Bytes) -> Result<(), Gone> {
        match self.cursor.place(number, batch) {
            Place::Next => {}
            Place::Seen => return Ok(()),
            Place::Gap | Place::Anew => self.lose().await?,
        }
        self.cursor.catch_up(true);
        self.take(number, batch).await
    }

    async fn take(&mut self, number: u64, batch: &Bytes) -> Result<(), Gone> {
        self.cursor.take(number, batch);
        self.is_lost = false;
        self.queue(Some((number, batch.clone()))).await
    }

    async fn lose(&mut self) -> Result<(), Gone> {
        self.cursor.forget();
        if std::mem::replace(&mut self.is_lost, true) {
            return Ok(());
        }
        self.queue(None).await
    }

    /// Waits until the queue has room.
    async fn queue(&mut self, batch: Option<(u64, Bytes)>) -> Result<(), Gone> {
        let bytes = match &batch {
            Some((_, batch)) => {
                let count = batch.len().min(self.room) as u32;
                tokio::select! {
                    permit = self.bytes.clone().acquire_many_owned(count) => Some(permit.map_err(|_| Gone)?),
                    () = self.sender.closed() => return Err(Gone),
                }
            }
            None => None,
        };
        self.sender.send(Queued { batch, _bytes: bytes }).await.map_err(|_| Gone)
    }
}
