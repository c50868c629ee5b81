//! Receives what a publisher sends, complete and in order, or says that some of it is lost.
//!
//! ```text
//! SUB ──> cursor ──Next──> queue (bounded) ──> next()
//!            └──Gap, a new connection, or silence──> replay from the last batch that was seen
//!                    goes on from there: as if nothing was missed          otherwise: Lost, and on with what there is
//! ```
//!
//! After `Lost` nothing is known of the worker's blocks until batches tell: an index drops them. Who does not take batches out stops the
//! task, the connection fills up, the publisher drops messages, and a replay or `Lost` follows: memory is bounded.
//!
//! A batch that cannot be decoded is lost. The connection is made again for as long as the follower lives.

use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeromq::{Socket, SocketOptions, SocketRecv, SubSocket};

use super::cursor::{Cursor, Place};
use super::io;
use super::replay::Replay;
use crate::error::Result;
use crate::wire::{Batch, decode};

/// How long to wait before a connection is tried again, at first and at most.
const RETRY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Whom to follow.
#[derive(Clone, Debug)]
pub struct FollowerOptions {
    /// Where the publisher is bound: `tcp://host:port`.
    pub endpoint: String,
    /// Where it answers replays, if it does. Without one, whatever was published before is lost.
    pub replay_endpoint: Option<String>,
    /// What topics begin with.
    pub topic: String,
    /// How long an answer to a replay may take.
    pub patience: Duration,
    /// After how long without a message a replay shows whether one was missed.
    pub silence: Duration,
    /// The most batches that wait to be taken.
    pub queue: usize,
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
        }
    }
}

/// What a follower learns.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    /// What happened next.
    Batch {
        /// Its number.
        number: u64,
        /// What it has.
        batch: Batch,
    },
    /// Something happened that will not be told: what is known of the worker's blocks is worth nothing.
    Lost,
}

/// Someone who follows a publisher. Its task ends when it is dropped.
#[derive(Debug)]
pub struct Follower {
    queue: mpsc::Receiver<Followed>,
    task: JoinHandle<()>,
}

impl Follower {
    /// Follows from now on, on that runtime; the publisher may come later.
    pub fn start(runtime: &Handle, options: FollowerOptions) -> Result<Self> {
        for endpoint in [Some(&options.endpoint), options.replay_endpoint.as_ref()].into_iter().flatten() {
            zeromq::TryIntoEndpoint::try_into(endpoint.as_str()).map_err(|reason| io("connect", endpoint, reason))?;
        }
        let (sender, queue) = mpsc::channel(options.queue.max(1));
        let task = Task { options, cursor: Cursor::default(), is_lost: false, sender };
        Ok(Follower { queue, task: runtime.spawn(task.run()) })
    }

    /// What comes next; waits for it. None only when the runtime has ended.
    pub async fn next(&mut self) -> Option<Followed> {
        self.queue.recv().await
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The follower is gone.
struct Gone;

struct Task {
    options: FollowerOptions,
    cursor: Cursor,
    /// It was said, and no batch since.
    is_lost: bool,
    sender: mpsc::Sender<Followed>,
}

impl Task {
    async fn run(mut self) {
        let mut wait = RETRY[0];
        while !self.sender.is_closed() {
            match self.connect().await {
                Some(socket) => {
                    wait = RETRY[0];
                    if self.receive(socket).await.is_err() {
                        return;
                    }
                }
                None => wait = (wait * 2).min(RETRY[1]),
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn connect(&self) -> Option<SubSocket> {
        let mut options = SocketOptions::default();
        options.connect_timeout(self.options.patience);
        let mut socket = SubSocket::with_options(options);
        socket.subscribe(&self.options.topic).await.ok()?;
        timeout(self.options.patience, socket.connect(&self.options.endpoint)).await.ok()?.ok()?;
        Some(socket)
    }

    /// Receives until the connection breaks.
    async fn receive(&mut self, mut socket: SubSocket) -> Result<(), Gone> {
        let mut events = socket.monitor();
        self.replay().await?;
        loop {
            let received = tokio::select! {
                message = timeout(self.options.silence, socket.recv()) => message,
                event = next_event(&mut events) => {
                    // What was received before is in the socket still, and is no loss: a replay has it.
                    if matches!(event, None | Some(zeromq::SocketEvent::Disconnected(_))) { return Ok(()) }
                    continue;
                }
            };
            let message = match received {
                Ok(Ok(message)) => message,
                Ok(Err(_)) => return Ok(()),
                Err(_) => {
                    self.replay().await?;
                    continue;
                }
            };
            let frames = message.into_vec();
            if let [_, number, batch] = frames.as_slice()
                && let Ok(number) = <[u8; 8]>::try_from(&number[..])
            {
                self.live(u64::from_be_bytes(number), batch).await?;
            }
        }
    }

    /// A batch that was published just now.
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
            // The replay had it.
            Place::Seen => return Ok(()),
            Place::Gap | Place::Anew => self.lose().await?,
        }
        self.take(number, batch).await
    }

    /// Asks for everything from the last batch that was seen on, if somebody answers.
    async fn replay(&mut self) -> Result<(), Gone> {
        let Some(endpoint) = self.options.replay_endpoint.clone() else { return Ok(()) };
        while !self.replay_once(&endpoint).await? {}
        Ok(())
    }

    /// Whether that was all: after a loss there is one more to ask for, from the beginning.
    async fn replay_once(&mut self, endpoint: &str) -> Result<bool, Gone> {
        let asked = self.cursor.last();
        let Some(mut replay) = Replay::ask(endpoint, asked.unwrap_or(0), self.options.patience).await else {
            return Ok(true);
        };
        let mut is_proven = asked.is_none();
        while let Ok(answer) = replay.next().await {
            let place = answer.as_ref().map(|(number, batch)| self.cursor.place(*number, batch));
            if !is_proven && place != Some(Place::Seen) {
                // Whoever published that batch is not who answers, or does not keep it any more.
                self.lose().await?;
                return Ok(false);
            }
            is_proven = true;
            let Some((number, batch)) = answer else { break };
            self.again(number, &batch).await?;
        }
        Ok(true)
    }

    /// A batch of a replay.
    async fn again(&mut self, number: u64, batch: &Bytes) -> Result<(), Gone> {
        match self.cursor.place(number, batch) {
            Place::Next => {}
            Place::Seen => return Ok(()),
            Place::Gap | Place::Anew => self.lose().await?,
        }
        self.cursor.catch_up(true);
        self.take(number, batch).await
    }

    async fn take(&mut self, number: u64, bytes: &Bytes) -> Result<(), Gone> {
        self.cursor.take(number, bytes);
        self.is_lost = false;
        let followed = decode(bytes).map_or(Followed::Lost, |batch| Followed::Batch { number, batch });
        self.sender.send(followed).await.map_err(|_| Gone)
    }

    async fn lose(&mut self) -> Result<(), Gone> {
        self.cursor.forget();
        if std::mem::replace(&mut self.is_lost, true) {
            return Ok(());
        }
        self.sender.send(Followed::Lost).await.map_err(|_| Gone)
    }
}

async fn next_event(events: &mut futures_channel::mpsc::Receiver<zeromq::SocketEvent>) -> Option<zeromq::SocketEvent> {
    std::future::poll_fn(|context| futures_core::Stream::poll_next(std::pin::Pin::new(&mut *events), context)).await
}
