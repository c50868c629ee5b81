//! Names of prompts without a cache.

use kvtide_tensor::PrefixNamer;
use napi::{Env, Result};
use napi_derive::napi;

use super::events::names;
use super::model::NativeModelOptions;
use super::options::NativePagedOptions;
use super::prefix::{NativeExtra, Prompt};
use crate::border::handle::{Handle, guard};
use crate::border::refusal::Outcome;

/// What names as a cache does.
#[napi]
pub struct NativePrefixNamer {
    namer: Handle<PrefixNamer>,
}

#[napi]
impl NativePrefixNamer {
    /// As a paged cache of these options; what names do not depend on is not looked at.
    #[napi(factory)]
    pub fn of_pages(env: &Env, options: NativePagedOptions) -> Result<Self> {
        Self::named(env, || Ok(PrefixNamer::of_pages(&options.read()?)?))
    }

    /// As a cache of a model's layers.
    #[napi(factory)]
    pub fn of_model(env: &Env, options: NativeModelOptions) -> Result<Self> {
        Self::named(env, || Ok(PrefixNamer::of_model(&options.read()?)?))
    }

    /// The names of a prompt's whole blocks.
    #[napi]
    pub fn keys(&self, env: &Env, tokens: &[u32], salt: &[u8], extra: Option<Vec<NativeExtra>>) -> Result<Vec<String>> {
        self.namer.read(env, |namer| Ok(names(&namer.keys(tokens, Prompt::read(salt, extra)?.options())?)))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.namer.dispose(env, |_| ());
    }

    fn named(env: &Env, make: impl FnOnce() -> Outcome<PrefixNamer>) -> Result<Self> {
        guard(env, || Ok(NativePrefixNamer { namer: Handle::new("PrefixNamer", make()?) }))
    }
}
