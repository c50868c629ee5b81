//! The subscribers of a publisher: one task each, which reads subscriptions and sends the batches that the subscriber
//! has not received yet.
//!
//! A publisher has one topic, so only subscriptions to a prefix of that topic count. Others are not stored: a peer's
//! state is bounded by the length of the topic, however many topics it subscribes to.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::shared::Shared;
use crate::zmtp::{COMMAND_BYTES_MAX, Command, Incoming, Limits, Listener, Outgoing, Received, SocketType};

/// A subscription is a message of one part; messages with more parts are ignored.
const LIMITS: Limits = Limits { parts: 16, bytes: COMMAND_BYTES_MAX };

/// Serves subscribers until the publisher ends.
pub(super) async fn serve(listener: Listener, shared: Arc<Shared>) {
    let end = shared.clone();
    let end = std::pin::pin!(async move { end.closing().await });
    listener
        .serve(SocketType::Pub, LIMITS, end, |incoming, outgoing| {
            let shared = shared.clone();
            async move {
                let subscriber = Subscriber { shared: &shared, state: Mutex::default(), wake: Notify::new() };
                tokio::select! {
                    ended = subscriber.receive(incoming) => ended,
                    ended = subscriber.send(outgoing) => ended,
                }
            }
        })
        .await;
}

struct Subscriber<'a> {
    shared: &'a Shared,
    state: Mutex<State>,
    /// Wakes the sending half to answer a heartbeat.
    wake: Notify,
}

#[derive(Default)]
struct State {
    subscriptions: Subscriptions,
    /// The number of the next batch to send, while the peer is subscribed.
    next: Option<u64>,
    /// The context of the last unanswered heartbeat.
    heartbeat: Option<Bytes>,
}

impl Subscriber<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds this lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn receive(&self, mut incoming: Incoming) -> io::Result<()> {
        loop {
            match incoming.next().await? {
                Received::Message(parts) => match (parts.as_slice(), parts[0].first()) {
                    ([part], Some(1)) => self.change(|of| of.subscribe(&self.shared.topic, &part[1..])),
                    ([part], Some(0)) => self.change(|of| of.cancel(&self.shared.topic, &part[1..])),
                    _ => {}
                },
                Received::Command(command) => match Command::parse(&command)? {
                    Command::Subscribe(topic) => self.change(|of| of.subscribe(&self.shared.topic, topic)),
                    Command::Cancel(topic) => self.change(|of| of.cancel(&self.shared.topic, topic)),
                    Command::Ping(context) => {
                        self.state().heartbeat = Some(Bytes::copy_from_slice(context));
                        self.wake.notify_one();
                    }
                    _ => {}
                },
            }
        }
    }

    /// Changes the subscriptions. A peer gets the batches published from its first subscription on.
    fn change(&self, change: impl FnOnce(&mut Subscriptions)) {
        let mut state = self.state();
        change(&mut state.subscriptions);
        let is_subscribed = !state.subscriptions.counts.is_empty();
        if is_subscribed != state.next.is_some() {
            state.next = is_subscribed.then(|| self.shared.state().next);
        }
    }

    async fn send(&self, mut outgoing: Outgoing) -> io::Result<()> {
        let mut progress = self.shared.progress();
        loop {
            let is_closing = progress.borrow_and_update().is_closing;
            while let Some((number, batch)) = self.take() {
                outgoing.send(&[&self.shared.topic, &number.to_be_bytes(), &batch]).await?;
            }
            let heartbeat = self.state().heartbeat.take();
            if let Some(context) = heartbeat {
                outgoing.pong(&context).await?;
            }
            outgoing.flush().await?;
            if is_closing {
                return outgoing.end().await;
            }
            tokio::select! {
                _ = progress.changed() => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// The next batch to send, if it is still kept.
    fn take(&self) -> Option<(u64, Bytes)> {
        let mut state = self.state();
        let (number, batch) = self.shared.state().queue.from(state.next?)?;
        state.next = Some(number + 1);
        Some((number, batch))
    }
}

/// The number of subscriptions to each prefix of the topic, by its length.
#[derive(Debug, Default, PartialEq, Eq)]
struct Subscriptions {
    counts: BTreeMap<usize, u64>,
}

impl Subscriptions {
    fn subscribe(&mut self, topic: &[u8], to: &[u8]) {
        if topic.starts_with(to) {
            *self.counts.entry(to.len()).or_default() += 1;
        }
    }

    fn cancel(&mut self, topic: &[u8], to: &[u8]) {
        if topic.starts_with(to)
            && let Some(count) = self.counts.get_mut(&to.len())
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&to.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_beginnings_of_the_topic_are_counted() {
        let (topic, mut of) = (b"kv@pod", Subscriptions::default());
        for to in [&b"kv@"[..], b"kv@", b"", b"x", b"kv@pod@model", b"pod"] {
            of.subscribe(topic, to);
        }
        assert_eq!(of.counts, BTreeMap::from([(0, 1), (3, 2)]));
        for to in [&b"kv@"[..], b"x", b"k", b""] {
            of.cancel(topic, to);
        }
        assert_eq!(of.counts, BTreeMap::from([(3, 1)]));
        of.cancel(topic, b"kv@");
        of.cancel(topic, b"kv@");
        assert_eq!(of, Subscriptions::default());
    }
}
