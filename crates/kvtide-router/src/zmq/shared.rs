//! The state of a publisher that the tasks of its peers share: batches, topic, progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

use super::history::History;

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
    /// The state of a publisher before its first batch, which has the number `first`.
    pub(super) fn new(topic: Bytes, first: u64, history: History, queue: History) -> Self {
        Shared {
            state: Mutex::new(State { next: first, history, queue }),
            topic,
            progress: watch::Sender::default(),
            is_behind: AtomicBool::new(false),
            first,
        }
    }

    /// Numbers a batch and adds it to both lists, then notifies tasks. Returns the number.
    pub(super) fn add(&self, batch: Bytes) -> u64 {
        let number = {
            let mut state = self.state();
            let number = state.next;
            state.next += 1;
            state.history.push(number, batch.clone());
            state.queue.push(number, batch);
            number
        };
        self.progress.send_modify(|progress| progress.batches += 1);
        number
    }

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

    /// Returns true if, since the last call, a peer requested batches that are no longer kept.
    pub(super) fn take_behind(&self) -> bool {
        self.is_behind.swap(false, Ordering::AcqRel)
    }

    /// Tells all tasks to end once they have sent their batches.
    pub(super) fn close(&self) {
        self.progress.send_modify(|progress| progress.is_closing = true);
    }
}
