//! Numbered events of the prefix index, for followers outside the cache.
//!
//! ```text
//! numbers   0 .. 40   41  42  43      next is 44
//!           gone      kept            since(39) returns 41, 42, 43, and reports that 2 were missed
//! ```
//!
//! A reader keeps the number behind the last event that it has seen. A reader that missed events starts again from the
//! index's content. With a capacity of 0, no event is kept or numbered. An event for which there is no memory counts as
//! missed. O(1) per event and its tokens.
//!
//! Logs of several indexes can be joined: they draw their numbers from one counter, so that their events have one order.
//! Each log then has gaps in its numbers, and together they have none.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::key::BlockKey;

/// One change of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was added: prompts can find it now.
    Stored {
        /// The block's key.
        key: BlockKey,
        /// The key of the prefix before it.
        parent: BlockKey,
        /// Its tokens.
        tokens: Box<[u32]>,
        /// True if the block is the first of its prompts: no block has the parent key.
        is_first: bool,
    },
    /// A block was removed: prompts cannot find it any more.
    Removed {
        /// The block's key.
        key: BlockKey,
    },
    /// All blocks were removed.
    Cleared,
}

/// The events that a reader has not seen yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenEvents<'a> {
    /// Number of events that are gone.
    pub missed: u64,
    /// The number of the first event returned.
    pub first: u64,
    /// The events, oldest first, in two consecutive slices.
    pub events: [&'a [Event]; 2],
    /// The number to pass to the next call.
    pub next: u64,
    /// The number of each event, in as many slices, which may be cut elsewhere.
    numbers: [&'a [u64]; 2],
}

impl<'a> UnseenEvents<'a> {
    /// The events with their numbers, oldest first.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &'a Event)> + use<'a> {
        self.numbers.into_iter().flatten().copied().zip(self.events.into_iter().flatten())
    }
}

/// A bounded log of events.
#[derive(Debug, Default)]
pub struct EventLog {
    capacity: usize,
    events: VecDeque<Event>,
    /// The number of each event.
    numbers: VecDeque<u64>,
    /// The number behind the last event that is gone.
    gone: u64,
    /// The number of the next event; joined logs share it.
    next: Arc<AtomicU64>,
    /// True if another log says when all blocks were removed.
    is_joined: bool,
}

impl EventLog {
    /// Returns a log of the latest `capacity` events; 0 keeps none. Memory is allocated as events arrive.
    pub fn new(capacity: u32) -> Self {
        EventLog { capacity: capacity as usize, ..Self::default() }
    }

    /// Numbers the events of this empty log together with those of another one. `Cleared` is left to the other log: both
    /// indexes are cleared at once.
    pub fn join(&mut self, other: &EventLog) {
        assert!(self.events.is_empty(), "events have numbers already");
        (self.next, self.is_joined) = (other.next.clone(), true);
    }

    /// The number that the next event will have.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the events from a number on; none if the number is beyond all events.
    pub fn since(&self, number: u64) -> UnseenEvents<'_> {
        let (gone, next) = (self.gone, self.next());
        let skip = self.numbers.partition_point(|&own| own < number);
        UnseenEvents {
            missed: gone.saturating_sub(number),
            first: number.clamp(gone, next),
            events: after(&self.events, skip),
            next,
            numbers: after(&self.numbers, skip),
        }
    }

    pub(super) fn stored(&mut self, key: &BlockKey, parent: &BlockKey, tokens: &[u32], is_first: bool) {
        if self.capacity > 0 {
            let mut copy = Vec::new();
            let fits = copy.try_reserve_exact(tokens.len()).is_ok();
            copy.extend_from_slice(if fits { tokens } else { &[] });
            let event = Event::Stored { key: *key, parent: *parent, tokens: copy.into(), is_first };
            if fits { self.push(event) } else { self.miss() }
        }
    }

    pub(super) fn removed(&mut self, key: &BlockKey) {
        self.push(Event::Removed { key: *key });
    }

    pub(super) fn cleared(&mut self) {
        if !self.is_joined {
            self.push(Event::Cleared);
        }
    }

    /// Counts an event that is lost at once, and drops the events before it, so that numbers have no gaps.
    fn miss(&mut self) {
        self.events.clear();
        self.numbers.clear();
        self.gone = self.take_number() + 1;
    }

    fn take_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn push(&mut self, event: Event) {
        if self.capacity == 0 {
            return;
        }
        if self.events.len() == self.capacity {
            self.events.pop_front();
            self.gone = self.numbers.pop_front().map_or(self.gone, |number| number + 1);
        }
        if self.events.try_reserve(1).is_err() || self.numbers.try_reserve(1).is_err() {
            return self.miss();
        }
        self.numbers.push_back(self.take_number());
        self.events.push_back(event);
    }
}

/// The elements behind the first `skip`, in two consecutive slices.
fn after<T>(all: &VecDeque<T>, skip: usize) -> [&[T]; 2] {
    let (front, back) = all.as_slices();
    let cut = skip.min(front.len());
    [&front[cut..], &back[skip - cut..]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: u8) -> BlockKey {
        BlockKey([name; 32])
    }

    fn removed(unseen: &UnseenEvents<'_>) -> Vec<u8> {
        let name = |event: &Event| match event {
            Event::Removed { key } => key.0[0],
            other => panic!("{other:?}"),
        };
        unseen.events.concat().iter().map(name).collect()
    }

    #[test]
    fn a_reader_learns_what_it_missed() {
        let mut log = EventLog::new(3);
        for name in 0..5 {
            log.removed(&key(name));
        }
        for (number, missed, seen) in [
            (0, 2, vec![2, 3, 4]),
            (1, 1, vec![2, 3, 4]),
            (2, 0, vec![2, 3, 4]),
            (4, 0, vec![4]),
            (5, 0, vec![]),
            (9, 0, vec![]),
        ] {
            let unseen = log.since(number);
            assert_eq!((unseen.missed, removed(&unseen), unseen.next), (missed, seen, 5), "since {number}");
            assert_eq!(unseen.first, number.clamp(2, 5));
        }
    }

    #[test]
    fn keeps_tokens_and_order() {
        let mut log = EventLog::new(8);
        log.stored(&key(1), &key(0), &[5, 6], true);
        log.cleared();
        let stored = Event::Stored { key: key(1), parent: key(0), tokens: [5, 6].into(), is_first: true };
        assert_eq!(log.since(0).events.concat(), [stored, Event::Cleared]);
    }

    #[test]
    fn off_keeps_and_counts_nothing() {
        let mut log = EventLog::default();
        log.removed(&key(1));
        log.stored(&key(1), &key(0), &[5, 6], true);
        assert_eq!((log.next(), log.since(0).missed, log.since(0).events.concat().len()), (0, 0, 0));
    }

    #[test]
    fn what_was_lost_is_missed_with_all_before_it() {
        let mut log = EventLog::new(8);
        log.removed(&key(1));
        log.miss();
        log.removed(&key(3));
        let unseen = log.since(0);
        assert_eq!((unseen.missed, removed(&unseen), unseen.next), (2, vec![3], 3));
    }

    #[test]
    fn joined_logs_have_one_order() {
        let (mut first, mut second) = (EventLog::new(2), EventLog::new(3));
        second.join(&first);
        second.removed(&key(0));
        for name in 1..4 {
            first.removed(&key(name));
        }
        second.removed(&key(4));
        second.cleared();
        first.cleared();
        let numbers = |log: &EventLog, since| log.since(since).numbered().map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!((numbers(&first, 0), first.since(0).missed, first.since(3).missed), (vec![3, 5], 3, 0));
        assert_eq!((numbers(&second, 0), second.since(0).missed), (vec![0, 4], 0));
        assert_eq!((numbers(&first, 4), numbers(&second, 4), numbers(&second, 5)), (vec![5], vec![4], vec![]));
        assert_eq!((first.next(), second.next()), (6, 6));
    }
}
