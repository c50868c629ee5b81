//! The memory budget of a JavaScript thread, and what V8 is told of it.

use std::cell::Cell;
use std::sync::Arc;

use kvtide_tensor::Budget;
use napi::Env;

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

/// Tells V8 how much native memory this thread's objects keep, when that has changed.
pub(crate) fn report(env: &Env) {
    let used = i64::try_from(THREAD.with(|budget| budget.used())).unwrap_or(i64::MAX);
    let change = used - REPORTED.get();
    // If this fails, V8 collects garbage later than it could; nothing else depends on it.
    if change != 0 && env.adjust_external_memory(change).is_ok() {
        REPORTED.set(used);
    }
}
