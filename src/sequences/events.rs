//! What happened to the blocks that can be found, for those who follow it.

use std::fmt::Write as _;

use kvtide_core::paged::{BlockKey, Event, UnseenEvents};
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use super::prefix::{NativeExtra, Prompt};
use crate::border::number::{count, whole};
use crate::border::refusal::{Outcome, number};

/// One event.
#[napi(object, object_from_js = false)]
pub struct NativeEvent {
    #[napi(ts_type = "'stored' | 'removed' | 'cleared'")]
    pub kind: &'static str,
    #[napi(ts_type = "string | undefined")]
    pub key: Option<String>,
    #[napi(ts_type = "string | undefined")]
    pub parent: Option<String>,
    #[napi(ts_type = "number[] | undefined")]
    pub tokens: Option<Vec<u32>>,
}

/// What a reader has not seen yet.
#[napi(object, object_from_js = false)]
pub struct NativeEvents {
    /// Events that are gone.
    pub missed: f64,
    /// The number of the first one that is given.
    pub first: f64,
    pub events: Vec<NativeEvent>,
}

/// The blocks that prompts find.
#[napi(object, object_from_js = false)]
pub struct NativePrefixKeys {
    pub keys: Vec<String>,
    /// The number of the next event.
    pub next: f64,
}

#[napi]
impl NativePagedKvCache {
    /// The names of a prompt's whole blocks.
    #[napi]
    pub fn keys(&self, env: &Env, tokens: &[u32], salt: &[u8], extra: Option<Vec<NativeExtra>>) -> Result<Vec<String>> {
        self.cache.read(env, |cache| Ok(names(&cache.keys(tokens, Prompt::read(salt, extra)?.options())?)))
    }

    /// The names of all blocks that prompts find.
    #[napi]
    pub fn indexed_keys(&self, env: &Env) -> Result<NativePrefixKeys> {
        self.cache.read(env, |cache| Ok(NativePrefixKeys::of(&cache.indexed_keys()?, &cache.events(0))))
    }

    /// The events from a number on, at most so many.
    #[napi]
    pub fn events(&self, env: &Env, since: f64, most: f64) -> Result<NativeEvents> {
        self.cache.read(env, |cache| NativeEvents::of(cache.events(whole("since", since)?), most))
    }
}

impl NativeEvents {
    /// What was not seen yet, at most so many events.
    fn of(unseen: UnseenEvents<'_>, most: f64) -> Outcome<Self> {
        let most = count("most", most)? as usize;
        let events = unseen.events.into_iter().flatten().take(most).map(native).collect();
        Ok(NativeEvents { missed: number(unseen.missed), first: number(unseen.first), events })
    }
}

impl NativePrefixKeys {
    /// These names, and where the events after them begin.
    fn of(keys: &[BlockKey], events: &UnseenEvents<'_>) -> Self {
        NativePrefixKeys { keys: names(keys), next: number(events.next) }
    }
}

/// The digits of keys.
pub(crate) fn names(keys: &[BlockKey]) -> Vec<String> {
    keys.iter().map(hex).collect()
}

fn native(event: &Event) -> NativeEvent {
    let none = NativeEvent { kind: "cleared", key: None, parent: None, tokens: None };
    match event {
        Event::Stored { key, parent, tokens } => NativeEvent {
            kind: "stored",
            key: Some(hex(key)),
            parent: Some(hex(parent)),
            tokens: Some(tokens.to_vec()),
        },
        Event::Removed { key } => NativeEvent { kind: "removed", key: Some(hex(key)), ..none },
        Event::Cleared => none,
    }
}

/// The digits of a key.
fn hex(key: &BlockKey) -> String {
    key.0.iter().fold(String::with_capacity(64), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("a string takes what is written");
        digits
    })
}
