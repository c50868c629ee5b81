//! Prompts: what of them is in the cache already, and sequences that start with that.

use kvtide_core::paged::{Explanation, Extra, MissReason};
use kvtide_tensor::{PagedPrefix, PromptOptions};
use napi::bindgen_prelude::Uint8Array;
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use crate::border::handle::Handle;
use crate::border::number::count;
use crate::border::refusal::Outcome;

/// What a range of tokens depends on beside themselves.
#[napi(object, object_to_js = false)]
pub struct NativeExtra {
    pub start: f64,
    pub end: f64,
    pub key: Uint8Array,
}

/// How far a prompt is found, and why no further.
#[napi(object, object_from_js = false)]
pub struct NativeExplanation {
    pub matched: f64,
    #[napi(ts_type = "number | undefined")]
    pub block: Option<f64>,
    #[napi(ts_type = "string | undefined")]
    pub reason: Option<&'static str>,
}

/// A prefix that was found.
#[napi]
pub struct NativePagedPrefix {
    prefix: Handle<PagedPrefix>,
}

/// Whose tokens a prompt's are.
pub(crate) struct Prompt<'a> {
    salt: &'a [u8],
    extra: Vec<Extra>,
}

impl<'a> Prompt<'a> {
    pub fn read(salt: &'a [u8], extra: Option<Vec<NativeExtra>>) -> Outcome<Self> {
        let extras = extra.unwrap_or_default().into_iter().map(|NativeExtra { start, end, key }| {
            Ok(Extra { start: count("extra.start", start)?, end: count("extra.end", end)?, key: key.to_vec() })
        });
        Ok(Prompt { salt, extra: extras.collect::<Outcome<_>>()? })
    }

    pub fn options(&self) -> PromptOptions<'_> {
        PromptOptions { salt: self.salt, extra: &self.extra }
    }
}

#[napi]
impl NativePagedPrefix {
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
impl NativePagedKvCache {
    #[napi]
    pub fn create_sequence(&mut self, env: &Env, salt: &[u8], extra: Option<Vec<NativeExtra>>) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.create_sequence_of(Prompt::read(salt, extra)?.options())? as f64))
    }

    /// A sequence that starts with a prefix, which it takes over.
    #[napi]
    pub fn create_sequence_from(&mut self, env: &Env, prefix: &mut NativePagedPrefix) -> Result<f64> {
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
    ) -> Result<NativePagedPrefix> {
        let prefix = self
            .cache
            .change(env, |cache| Ok(cache.find_prefix(tokens, Prompt::read(salt, extra)?.options(), partial)?))?;
        Ok(NativePagedPrefix { prefix: Handle::new("PrefixMatch", prefix) })
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
}

impl From<Explanation> for NativeExplanation {
    fn from(found: Explanation) -> Self {
        let (block, reason) = found.missing.map(|(block, reason)| (block.into(), name(reason))).unzip();
        NativeExplanation { matched: found.matched.into(), block, reason }
    }
}

fn name(reason: MissReason) -> &'static str {
    match reason {
        MissReason::NotCommitted => "not-committed",
        MissReason::Evicted => "evicted",
        MissReason::OtherSalt => "other-salt",
        MissReason::NeverSeen => "never-seen",
        MissReason::WindowGone => "window-gone",
    }
}
