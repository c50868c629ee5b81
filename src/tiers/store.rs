//! Stores that this crate calls, and the health of any store.

use std::sync::Arc;

use kvtide_tiers::{Event, Health, State, Store};
use napi_derive::napi;

use crate::border::refusal::Outcome;

/// The health of a store.
#[napi(object, object_from_js = false)]
pub struct NativeHealth {
    #[napi(ts_type = "'available' | 'unavailable' | 'probing'")]
    pub state: &'static str,
    pub hits: f64,
    pub misses: f64,
    pub refused: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    #[napi(ts_type = "string | undefined")]
    pub last_fault: Option<String>,
}

impl From<&Health> for NativeHealth {
    fn from(of: &Health) -> Self {
        let state = match of.state {
            State::Available => "available",
            State::Unavailable => "unavailable",
            State::Probing => "probing",
        };
        let [hits, misses, refused, bytes_in, bytes_out] =
            [of.hits, of.misses, of.refused, of.bytes_in, of.bytes_out].map(|number| number as f64);
        let last_fault = of.last_fault.as_ref().map(ToString::to_string);
        NativeHealth { state, hits, misses, refused, bytes_in, bytes_out, last_fault }
    }
}

/// A change: the store is unreachable, for this reason, or reachable again.
#[napi(object, object_from_js = false)]
pub struct NativeStoreEvent {
    #[napi(ts_type = "string | undefined")]
    pub kind: Option<&'static str>,
    #[napi(ts_type = "string | undefined")]
    pub about: Option<String>,
}

impl From<Event> for NativeStoreEvent {
    fn from(event: Event) -> Self {
        match event {
            Event::Unavailable(fault) => NativeStoreEvent { kind: Some(fault.kind.as_str()), about: Some(fault.about) },
            Event::Available => NativeStoreEvent { kind: None, about: None },
        }
    }
}

/// A store. After it is disposed of, no cache can take it; tiers that already use it keep working.
#[napi]
pub struct NativeStore {
    name: &'static str,
    store: Arc<dyn Store>,
    is_disposed: bool,
}

impl NativeStore {
    #[cfg(feature = "net")]
    pub(super) fn new(name: &'static str, store: impl Store + 'static) -> Self {
        NativeStore { name, store: Arc::new(store), is_disposed: false }
    }

    pub(super) fn store(&self) -> Outcome<Arc<dyn Store>> {
        match self.is_disposed {
            true => Err(kvtide_tensor::Error::Disposed { object: self.name }.into()),
            false => Ok(self.store.clone()),
        }
    }
}

#[napi]
impl NativeStore {
    #[napi(catch_unwind)]
    pub fn dispose(&mut self) {
        self.is_disposed = true;
    }
}
