//! Native memory, as JavaScript is told of it.

use std::cell::Cell;
use std::sync::Arc;

use kvtide_tensor::Budget;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::guard::guard;
use crate::border::number::whole;
use crate::border::raise::number;

thread_local! {
    /// What this JavaScript thread's objects use, under the limit of the process.
    static THREAD: Arc<Budget> = Budget::new(None);
    /// What V8 was told.
    static REPORTED: Cell<i64> = const { Cell::new(0) };
}

/// The budget of this thread's objects.
pub(crate) fn budget() -> Arc<Budget> {
    THREAD.with(Arc::clone)
}

/// Tells V8 how much native memory this thread's objects keep, when it has changed.
pub(crate) fn report(env: &Env) {
    let used = i64::try_from(THREAD.with(|budget| budget.used())).unwrap_or(i64::MAX);
    let change = used - REPORTED.get();
    // Without an answer V8 collects garbage later than it could; nothing else depends on it.
    if change != 0 && env.adjust_external_memory(change).is_ok() {
        REPORTED.set(used);
    }
}

/// Native memory of the process.
#[napi(object)]
pub struct NativeMemoryStats {
    /// Bytes in use.
    pub used_bytes: f64,
    /// Bytes of these that only views and snapshots keep.
    pub held_bytes: f64,
    /// The limit.
    pub limit_bytes: f64,
}

/// Sets the limit of the process.
#[napi]
pub fn set_memory_limit(env: &Env, bytes: f64) -> Result<()> {
    guard(env, || {
        Budget::process().set_limit(whole("bytes", bytes)?);
        Ok(())
    })
}

/// What the process uses.
#[napi]
pub fn memory_stats(env: &Env) -> Result<NativeMemoryStats> {
    guard(env, || {
        let budget = Budget::process();
        Ok(NativeMemoryStats {
            used_bytes: number(budget.used()),
            held_bytes: number(budget.held()),
            limit_bytes: number(budget.limit()),
        })
    })
}
