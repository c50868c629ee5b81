//! Snapshots of both kinds of rotating caches.

use kvtide_tensor::RotatingSnapshot;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::handle::Handle;
use crate::border::refusal::Outcome;

/// A snapshot of either kind.
pub(crate) enum EitherSnapshot {
    Single(RotatingSnapshot<1>),
    Pair(RotatingSnapshot<2>),
}

/// Does the same with a cache, or a snapshot, of either kind.
macro_rules! either {
    ($kind:ident, $value:expr, $bound:ident => $work:expr) => {
        match $value {
            $kind::Single($bound) => $work,
            $kind::Pair($bound) => $work,
        }
    };
}
pub(crate) use either;

/// A snapshot.
#[napi]
pub struct NativeRotatingSnapshot {
    pub(crate) snapshot: Handle<EitherSnapshot>,
}

/// The refusal of a snapshot of the other kind of cache.
pub(crate) fn other_kind<T>() -> Outcome<T> {
    Err(kvtide_core::Error::SnapshotInvalid { reason: "it is of the other kind of rotating cache" }.into())
}

#[napi]
impl NativeRotatingSnapshot {
    #[napi]
    pub fn current_seq_len(&self, env: &Env) -> Result<f64> {
        self.snapshot
            .read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.current_seq_len()) as f64))
    }

    #[napi]
    pub fn max_seq_len(&self, env: &Env) -> Result<f64> {
        self.snapshot
            .read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.max_seq_len()).into()))
    }

    #[napi]
    pub fn retained_len(&self, env: &Env) -> Result<f64> {
        self.snapshot
            .read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.retained_len()).into()))
    }

    #[napi]
    pub fn sinks(&self, env: &Env) -> Result<f64> {
        self.snapshot.read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.sinks()).into()))
    }

    #[napi]
    pub fn dim(&self, env: &Env) -> Result<f64> {
        self.snapshot.read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.dim()) as f64))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.snapshot.dispose(env, |_| ());
    }
}
