//! What happened to blocks in the tiers, for those who follow a cache from outside: of the one group of layers that they follow.
//!
//! A bounded log that is taken out piece by piece. Where nobody takes it, or more happens than it holds, the rest is missed, and said to be.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::entry::StoreKey;
use kvtide_core::paged::BlockKey;

const KEPT_MAX: usize = 1 << 16;

/// A block is in a tier now, or is not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierEvent {
    /// The tier's place: 0 is memory.
    pub place: usize,
    /// The block's name.
    pub key: BlockKey,
    /// Its tokens, where it is there now.
    pub tokens: Option<Vec<u32>>,
}

/// The log, while somebody follows.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Option<Log>>);

#[derive(Debug)]
struct Log {
    group: u16,
    events: Vec<TierEvent>,
    is_missed: bool,
}

impl Told {
    fn log(&self) -> MutexGuard<'_, Option<Log>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes events of a group from now on.
    pub fn follow(&self, group: u16) {
        *self.log() = Some(Log { group, events: Vec::new(), is_missed: false });
    }

    pub fn stored(&self, place: usize, key: &StoreKey, tokens: &[u32]) {
        self.note(place, key, Some(tokens));
    }

    pub fn removed(&self, place: usize, key: &StoreKey) {
        self.note(place, key, None);
    }

    fn note(&self, place: usize, key: &StoreKey, tokens: Option<&[u32]>) {
        let mut log = self.log();
        let Some(log) = log.as_mut().filter(|log| log.group == key.group) else { return };
        if log.events.len() >= KEPT_MAX || log.events.try_reserve(1).is_err() {
            log.is_missed = true;
            return;
        }
        log.events.push(TierEvent { place, key: key.block, tokens: tokens.map(<[u32]>::to_vec) });
    }

    /// What happened since the last call, in order, and whether more did that is not told.
    pub fn take(&self) -> (Vec<TierEvent>, bool) {
        match &mut *self.log() {
            Some(log) => (std::mem::take(&mut log.events), std::mem::take(&mut log.is_missed)),
            None => (Vec::new(), false),
        }
    }
}
