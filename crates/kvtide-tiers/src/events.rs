//! Events of blocks in the tiers, for followers of a cache. Only some groups of layers are followed.
//!
//! The log is bounded. If it is full, events are lost, and the next call says so.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::entry::StoreKey;
use kvtide_core::paged::BlockKey;

const KEPT_MAX: usize = 1 << 16;

/// A change: a block is now in a tier, or no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierEvent {
    /// The place of the tier; memory has place 0.
    pub place: usize,
    /// The group of layers.
    pub group: usize,
    /// The block's key.
    pub key: BlockKey,
    /// Its tokens, if it is now in the tier.
    pub tokens: Option<Vec<u32>>,
}

/// The log; empty until a follower asks for it.
#[derive(Debug, Default)]
pub(crate) struct TierLog(Mutex<Option<Log>>);

#[derive(Debug)]
struct Log {
    groups: Vec<u16>,
    events: Vec<TierEvent>,
    has_lost: bool,
}

impl TierLog {
    fn log(&self) -> MutexGuard<'_, Option<Log>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs events of these groups from now on.
    pub fn follow(&self, groups: Vec<u16>) {
        *self.log() = Some(Log { groups, events: Vec::new(), has_lost: false });
    }

    pub fn stored(&self, place: usize, key: &StoreKey, tokens: &[u32]) {
        self.note(place, key, Some(tokens));
    }

    pub fn removed(&self, place: usize, key: &StoreKey) {
        self.note(place, key, None);
    }

    fn note(&self, place: usize, key: &StoreKey, tokens: Option<&[u32]>) {
        let mut log = self.log();
        let Some(log) = log.as_mut().filter(|log| log.groups.contains(&key.group)) else { return };
        if log.events.len() >= KEPT_MAX || log.events.try_reserve(1).is_err() {
            log.has_lost = true;
            return;
        }
        let (group, tokens) = (key.group.into(), tokens.map(<[u32]>::to_vec));
        log.events.push(TierEvent { place, group, key: key.block, tokens });
    }

    /// Returns the events since the last call, in order, and true if some were lost.
    pub fn take(&self) -> (Vec<TierEvent>, bool) {
        match &mut *self.log() {
            Some(log) => (std::mem::take(&mut log.events), std::mem::take(&mut log.has_lost)),
            None => (Vec::new(), false),
        }
    }
}
