//! The progress of work on files, which JavaScript polls.

use std::sync::Arc;

use kvtide_files::Watch;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::handle::guard;
use crate::border::refusal::Refusal;
use crate::border::stop::NativeStop;

impl From<kvtide_files::Error> for Refusal {
    fn from(error: kvtide_files::Error) -> Self {
        match error {
            kvtide_files::Error::Cache(error) => error.into(),
            error => Refusal { code: error.code(), message: error.to_string(), details: error.details() },
        }
    }
}

#[napi]
pub struct NativeWatch {
    watch: Arc<Watch>,
}

#[napi]
impl NativeWatch {
    /// Creates a watch; work ends early once `stop` is set.
    #[napi(catch_unwind, constructor)]
    pub fn new(stop: Option<&NativeStop>) -> Self {
        NativeWatch { watch: stop.map_or_else(Watch::default, |stop| Watch::until(stop.flag())).into() }
    }

    /// Returns an error once `stop` is set.
    #[napi]
    pub fn check(&self, env: &Env) -> Result<()> {
        guard(env, || Ok(self.watch.check()?))
    }

    /// Returns the bytes that are done, and the bytes in total.
    #[napi(catch_unwind)]
    pub fn progress(&self) -> Vec<f64> {
        let (done, total) = self.watch.progress();
        vec![done as f64, total as f64]
    }
}

impl NativeWatch {
    pub(super) fn shared(&self) -> Arc<Watch> {
        self.watch.clone()
    }
}
