//! Prompts of a model's cache: what of them is in all layers already, how long it stays, and what happens to it.

use kvtide_tensor::ModelPrefix;
use napi::{Env, Result};
use napi_derive::napi;

use crate::guard::Handle;
use crate::model_cache::NativeModelCache;
use crate::number::{count, optional, whole};
use crate::paged_events::{NativeEvents, NativePrefixKeys, names};
use crate::paged_pool::{capacities, rank};
use crate::paged_prefix::{NativeExplanation, NativeExtra, Prompt};

/// A prefix that was found.
#[napi]
pub struct NativeModelPrefix {
    prefix: Handle<ModelPrefix>,
}

#[napi]
impl NativeModelPrefix {
    #[napi]
    pub fn length(&self, env: &Env) -> Result<f64> {
        self.prefix.read(env, |prefix| Ok(prefix.length().into()))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.prefix.dispose(env, |_| ());
    }
}

#[napi]
impl NativeModelCache {
    #[napi]
    pub fn create_sequence(&mut self, env: &Env, salt: &[u8], extra: Option<Vec<NativeExtra>>) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.create_sequence(Prompt::read(salt, extra)?.options())? as f64))
    }

    /// A sequence that starts with a prefix, which it takes over.
    #[napi]
    pub fn create_sequence_from(&mut self, env: &Env, prefix: &mut NativeModelPrefix) -> Result<f64> {
        self.cache.change(env, |cache| {
            cache.check_prefix(prefix.prefix.get()?)?;
            Ok(cache.create_sequence_from(prefix.prefix.take()?)? as f64)
        })
    }

    #[napi]
    pub fn find_prefix(
        &mut self,
        env: &Env,
        tokens: &[u32],
        salt: &[u8],
        extra: Option<Vec<NativeExtra>>,
        partial: bool,
    ) -> Result<NativeModelPrefix> {
        let prefix = self
            .cache
            .change(env, |cache| Ok(cache.find_prefix(tokens, Prompt::read(salt, extra)?.options(), partial)?))?;
        Ok(NativeModelPrefix { prefix: Handle::new("PrefixMatch", prefix) })
    }

    /// Gives sequences room: a sequence and its tokens in total, one behind the other.
    #[napi]
    pub fn ensure_capacities(&mut self, env: &Env, wanted: &[f64]) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.ensure_capacities(&capacities(wanted)?)?))
    }

    #[napi]
    pub fn can_allocate(&mut self, env: &Env, tokens: f64, watermark: f64) -> Result<bool> {
        self.cache
            .change(env, |cache| Ok(cache.can_allocate(count("tokens", tokens)?, count("watermark", watermark)?)?))
    }

    #[napi]
    pub fn can_allocate_prompt(
        &mut self,
        env: &Env,
        tokens: &[u32],
        salt: &[u8],
        extra: Option<Vec<NativeExtra>>,
        watermark: f64,
    ) -> Result<bool> {
        self.cache.change(env, |cache| {
            let watermark = count("watermark", watermark)?;
            Ok(cache.can_allocate_prompt(tokens, Prompt::read(salt, extra)?.options(), watermark)?)
        })
    }

    #[napi]
    pub fn explain(
        &mut self,
        env: &Env,
        tokens: &[u32],
        salt: &[u8],
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<NativeExplanation> {
        self.cache.change(env, |cache| Ok(cache.explain(tokens, Prompt::read(salt, extra)?.options())?.into()))
    }

    /// Says how long the blocks of tokens are kept; for good without `until`.
    #[napi]
    pub fn retain(
        &mut self,
        env: &Env,
        sequence: f64,
        from: f64,
        to: f64,
        priority: f64,
        until: Option<f64>,
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let tokens = count("from", from)?..count("to", to)?;
            Ok(cache.retain(whole("sequence", sequence)?, tokens, rank(priority)?, optional("until", until, whole)?)?)
        })
    }

    #[napi]
    pub fn forget_prefixes(&mut self, env: &Env) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.forget_prefixes()?))
    }

    #[napi]
    pub fn advance_clock(&mut self, env: &Env, now: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.advance_clock(whole("now", now)?)?))
    }

    /// The events from a number on, at most so many.
    #[napi]
    pub fn events(&self, env: &Env, since: f64, most: f64) -> Result<NativeEvents> {
        self.cache.read(env, |cache| NativeEvents::of(cache.events(whole("since", since)?)?, most))
    }

    /// The names of a prompt's whole blocks.
    #[napi]
    pub fn keys(&self, env: &Env, tokens: &[u32], salt: &[u8], extra: Option<Vec<NativeExtra>>) -> Result<Vec<String>> {
        self.cache.read(env, |cache| Ok(names(&cache.keys(tokens, Prompt::read(salt, extra)?.options())?)))
    }

    /// The names of all blocks that prompts find.
    #[napi]
    pub fn indexed_keys(&self, env: &Env) -> Result<NativePrefixKeys> {
        self.cache.read(env, |cache| Ok(NativePrefixKeys::of(&cache.indexed_keys()?, &cache.events(0)?)))
    }
}
