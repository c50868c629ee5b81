//! The memory limit of the process, and what is in use under it.

use kvtide_tensor::Budget;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::handle::guard;
use crate::border::number::whole;
use crate::border::refusal::number;

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
