//! Stores that others run: called from here, or by JavaScript through the same gate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtide_remote::{
    Answered, Event, Fault, FaultKind, Gate, GateOptions, Health, Outcome as Settled, Permit, Refusal, State, Store,
};
use napi_derive::napi;

use crate::border::refusal::Outcome;

/// How a store has done so far.
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

/// A change: the store is not asked any more, and why, or it answers again.
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

/// Whether a store that JavaScript calls is asked.
#[napi]
pub struct NativeGate {
    gate: Gate,
    start: Instant,
}

#[napi]
impl NativeGate {
    #[napi(constructor)]
    pub fn new() -> Self {
        let gate = Gate::new(GateOptions::default()).expect("the limits that a gate has by itself");
        NativeGate { gate, start: Instant::now() }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The number of an operation that may begin; -1 where the store is not asked, -2 where too much is in flight.
    #[napi]
    pub fn admit(&mut self, bytes: f64) -> f64 {
        match self.gate.admit(self.now(), bytes as u64) {
            Ok(Permit(number)) => number as f64,
            Err(Refusal::Busy) => -2.0,
            Err(_) => -1.0,
        }
    }

    /// For how many milliseconds the store is not asked yet; -1 where it is available.
    #[napi]
    pub fn unavailable_for(&self) -> f64 {
        self.gate.unavailable_for(self.now()).map_or(-1.0, |pause| pause.as_secs_f64() * 1000.0)
    }

    #[napi]
    pub fn answered(&mut self, permit: f64, hits: f64, misses: f64, bytes_in: f64, bytes_out: f64) {
        let [hits, misses, bytes_in, bytes_out] = [hits, misses, bytes_in, bytes_out].map(|number| number as u64);
        let answered = Answered { hits, misses, bytes_in, bytes_out, fault: None };
        self.gate.settle(Permit(permit as u64), Settled::Answered(answered), self.now());
    }

    /// `kind` is the public name of a fault.
    #[napi]
    pub fn failed(&mut self, permit: f64, kind: String, about: String) {
        let kind = FaultKind::ALL.into_iter().find(|of| of.as_str() == kind).unwrap_or(FaultKind::Unreachable);
        self.gate.settle(Permit(permit as u64), Settled::Failed(Fault::new(kind, about)), self.now());
    }

    #[napi]
    pub fn health(&self) -> NativeHealth {
        self.gate.health().into()
    }

    /// The next change that was not fetched yet.
    #[napi]
    pub fn next_event(&mut self) -> Option<NativeStoreEvent> {
        self.gate.next_event().map(NativeStoreEvent::from)
    }
}

/// A store, and what is asked of it by the way.
pub(super) trait Watched: Store {
    fn health(&self) -> Health;
    fn next_event(&self) -> Option<Event>;
}

/// A store. Once it is disposed of no cache takes it any more; tiers that use it go on, and are told how it does.
#[napi]
pub struct NativeSharedStore {
    name: &'static str,
    store: Arc<dyn Watched>,
    is_disposed: bool,
}

impl NativeSharedStore {
    #[cfg(feature = "net")]
    pub(super) fn new(name: &'static str, store: impl Watched + 'static) -> Self {
        NativeSharedStore { name, store: Arc::new(store), is_disposed: false }
    }

    pub(super) fn store(&self) -> Outcome<Arc<dyn Store>> {
        match self.is_disposed {
            true => Err(kvtide_tensor::Error::Disposed { object: self.name }.into()),
            false => Ok(self.store.clone()),
        }
    }
}

#[napi]
impl NativeSharedStore {
    #[napi]
    pub fn health(&self) -> NativeHealth {
        (&self.store.health()).into()
    }

    /// The next change that was not fetched yet.
    #[napi]
    pub fn next_event(&self) -> Option<NativeStoreEvent> {
        self.store.next_event().map(NativeStoreEvent::from)
    }

    #[napi]
    pub fn dispose(&mut self) {
        self.is_disposed = true;
    }
}
