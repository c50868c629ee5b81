//! How far work on files is, which JavaScript looks at from time to time.

use std::sync::Arc;

use kvtide_store::Watch;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::handle::guard;
use crate::border::refusal::Refusal;
use crate::border::stop::NativeStop;

impl From<kvtide_store::Error> for Refusal {
    fn from(error: kvtide_store::Error) -> Self {
        match error {
            kvtide_store::Error::Cache(error) => error.into(),
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
    /// Work ends early once `stop` was raised.
    #[napi(constructor)]
    pub fn new(stop: Option<&NativeStop>) -> Self {
        NativeWatch { watch: stop.map_or_else(Watch::default, |stop| Watch::until(stop.flag())).into() }
    }

    /// Refuses to go on once `stop` was raised.
    #[napi]
    pub fn check(&self, env: &Env) -> Result<()> {
        guard(env, || Ok(self.watch.check()?))
    }

    /// Bytes that are done, and of how many.
    #[napi]
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
