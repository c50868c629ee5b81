//! The threads of large operations, and the form of the kernels.

use kvtide_tensor::Kernels;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::handle::guard;
use crate::border::number::count;

/// Says how many threads large operations use from now on.
#[napi]
pub fn set_threads(env: &Env, threads: f64) -> Result<()> {
    guard(env, || Ok(kvtide_tensor::set_threads(count("n", threads)? as usize)?))
}

/// How many threads large operations use.
#[napi]
pub fn threads(env: &Env) -> Result<f64> {
    guard(env, || Ok(kvtide_tensor::threads()? as f64))
}

/// The form of the kernels that runs.
#[napi]
pub fn kernels(env: &Env) -> Result<&'static str> {
    guard(env, || Ok(Kernels::current()?.name()))
}
