//! Prompts: cached prefixes, the keys of blocks, admission, and the events of cached blocks.

use std::fmt::Write as _;

use kvtide_core::Error;
use kvtide_core::paged::{
    AdmissionRequest, BlockKey, Event, Explanation, Extra, Growth, GrowthRequest, Lacking, MissReason,
};
use kvtide_tensor::{BlockContent, PagedPrefix, PrefixNamer, PromptOptions, UnseenCacheEvents};
use napi::bindgen_prelude::Uint8Array;
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use super::options::{NativeModelOptions, NativePagedOptions};
use crate::border::argument::{count, whole};
use crate::border::handle::{Handle, guard};
use crate::border::refusal::{Outcome, number};

/// A dependency of a range of tokens besides their ids.
#[napi(object, object_to_js = false)]
pub struct NativeExtra {
    pub start: f64,
    pub end: f64,
    pub key: Uint8Array,
}

/// The length of a prompt's cached prefix, and the reason why it is not longer.
#[napi(object, object_from_js = false)]
pub struct NativeExplanation {
    pub matched: f64,
    #[napi(ts_type = "number | undefined")]
    pub block: Option<f64>,
    #[napi(ts_type = "string | undefined")]
    pub reason: Option<&'static str>,
    /// The tokens that would be found with a state at each block, in a cache with states.
    #[napi(ts_type = "number | undefined")]
    pub cached: Option<f64>,
    /// The next length, up to `cached`, at which there is a state.
    #[napi(ts_type = "number | undefined")]
    pub above: Option<f64>,
}

/// The admitted sequence, or the shortage that prevented admission.
#[napi(object, object_from_js = false)]
pub struct NativeAdmission {
    #[napi(ts_type = "number | undefined")]
    pub sequence: Option<f64>,
    #[napi(ts_type = "NativeLacking | undefined")]
    pub lacking: Option<NativeLacking>,
}

/// A shortage of blocks in a group.
#[napi(object, object_from_js = false)]
pub struct NativeLacking {
    pub group: f64,
    pub needed: f64,
    pub free: f64,
    pub total: f64,
}

impl From<Lacking> for NativeLacking {
    fn from(of: Lacking) -> Self {
        NativeLacking {
            group: of.group as f64,
            needed: number(of.needed),
            free: of.free.into(),
            total: of.total.into(),
        }
    }
}

/// A cached prefix: a match, which holds its blocks.
#[napi]
pub struct NativePagedPrefix {
    prefix: Handle<PagedPrefix>,
}

/// The salt and the extras of a prompt.
pub(crate) struct Prompt<'a> {
    salt: &'a [u8],
    salt_from: u32,
    extra: Vec<Extra>,
}

impl<'a> Prompt<'a> {
    pub fn read(salt: &'a [u8], salt_from: f64, extra: Option<Vec<NativeExtra>>) -> Outcome<Self> {
        let extras = extra.unwrap_or_default().into_iter().map(|NativeExtra { start, end, key }| {
            Ok(Extra { start: count("extra.start", start)?, end: count("extra.end", end)?, key: key.to_vec() })
        });
        Ok(Prompt { salt, salt_from: count("saltFrom", salt_from)?, extra: extras.collect::<Outcome<_>>()? })
    }

    pub fn options(&self) -> PromptOptions<'_> {
        PromptOptions { salt: self.salt, salt_from: self.salt_from, extra: &self.extra }
    }
}

impl NativePagedPrefix {
    pub(crate) fn new(prefix: PagedPrefix) -> Self {
        NativePagedPrefix { prefix: Handle::new("PrefixMatch", prefix) }
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
    pub fn create_sequence(
        &mut self,
        env: &Env,
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<f64> {
        self.cache
            .change(env, |cache| Ok(cache.create_sequence_of(Prompt::read(salt, salt_from, extra)?.options())? as f64))
    }

    /// Gives a sequence without tokens another salt and other extras.
    #[napi]
    pub fn rename_sequence(
        &mut self,
        env: &Env,
        sequence: f64,
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            Ok(cache.rename(whole("seq", sequence)?, Prompt::read(salt, salt_from, extra)?.options())?)
        })
    }

    /// Creates a sequence that takes over a match.
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
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
        partial: bool,
    ) -> Result<NativePagedPrefix> {
        let prefix = self.cache.change(env, |cache| {
            Ok(cache.find_prefix(tokens, Prompt::read(salt, salt_from, extra)?.options(), partial)?)
        })?;
        Ok(NativePagedPrefix::new(prefix))
    }

    #[napi]
    pub fn can_allocate_prompt(
        &mut self,
        env: &Env,
        tokens: &[u32],
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
        watermark: f64,
    ) -> Result<bool> {
        self.cache.change(env, |cache| {
            let watermark = count("watermark", watermark)?;
            Ok(cache.can_allocate_prompt(tokens, Prompt::read(salt, salt_from, extra)?.options(), watermark)?)
        })
    }

    /// Refuses the growth of sequences for which there are too few blocks. `growing` has the number of each sequence and the tokens that it
    /// appends. The last sequence first takes over what is cached of `prompt`, if that is more than it has. `room` has the most tokens that
    /// are appended at once, and the blocks that stay free; -1 if the last sequence may take everything.
    #[napi]
    pub fn check_growth(
        &mut self,
        env: &Env,
        growing: &[f64],
        room: &[f64],
        prompt: Option<&[u32]>,
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let [step, watermark] = room else {
                return Err(Error::argument("room", room.len(), "two numbers").into());
            };
            let (pairs, rest) = growing.as_chunks::<2>();
            if !rest.is_empty() {
                return Err(Error::argument("growing", growing.len(), "two numbers for each sequence").into());
            }
            let growing = pairs.iter().map(|&[sequence, tokens]| {
                Ok(Growth { sequence: whole("sequence", sequence)?, tokens: count("tokens", tokens)? })
            });
            let growing = growing.collect::<Outcome<Vec<_>>>()?;
            let watermark = if *watermark < 0.0 { None } else { Some(count("watermark", *watermark)?) };
            let asked = GrowthRequest { growing: &growing, prompt: None, step: count("step", *step)?, watermark };
            let read = Prompt::read(salt, salt_from, extra)?;
            Ok(cache.check_growth(asked, prompt.map(|tokens| (tokens, read.options())))?)
        })
    }

    /// Creates a sequence that starts with a prompt's cached prefix and has room for the rest. `room` is the number of
    /// answer tokens, the most tokens that are appended at once (0: the whole rest), and the number of blocks that stay
    /// free.
    #[napi]
    pub fn admit(
        &mut self,
        env: &Env,
        tokens: &[u32],
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
        room: &[f64],
    ) -> Result<NativeAdmission> {
        self.cache.change(env, |cache| {
            let [answer, step, watermark] = room else {
                return Err(Error::argument("room", room.len(), "three numbers").into());
            };
            let (answer, step, watermark) =
                (count("answerTokens", *answer)?, count("stepTokens", *step)?, count("watermark", *watermark)?);
            let asked = AdmissionRequest { tokens, answer, step: (step > 0).then_some(step), watermark };
            let prompt = Prompt::read(salt, salt_from, extra)?;
            Ok(match cache.admit(asked, prompt.options())? {
                Ok(sequence) => NativeAdmission { sequence: Some(number(sequence)), lacking: None },
                Err(lacking) => NativeAdmission { sequence: None, lacking: Some(lacking.into()) },
            })
        })
    }

    #[napi]
    pub fn explain(
        &mut self,
        env: &Env,
        tokens: &[u32],
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<NativeExplanation> {
        self.cache.change(env, |cache| {
            let prompt = Prompt::read(salt, salt_from, extra)?;
            let found = cache.explain(tokens, prompt.options())?;
            let mut explained = NativeExplanation::from(found);
            explained.cached = cache.keeps_states().then_some(explained.matched);
            // Only then attention has more tokens.
            if let Some((_, MissReason::NoStateHere)) = found.missing
                && let Some(states) = cache.prompt_states(tokens, prompt.options())?
            {
                explained.cached = Some(states.cached.into());
                explained.above = states.above.map(f64::from);
            }
            Ok(explained)
        })
    }
}

impl From<Explanation> for NativeExplanation {
    fn from(found: Explanation) -> Self {
        let (block, reason) = found.missing.map(|(block, reason)| (block.into(), name(reason))).unzip();
        NativeExplanation { matched: found.matched.into(), block, reason, cached: None, above: None }
    }
}

fn name(reason: MissReason) -> &'static str {
    match reason {
        MissReason::NotCommitted => "not-committed",
        MissReason::Evicted => "evicted",
        MissReason::OtherSalt => "other-salt",
        MissReason::NeverSeen => "never-seen",
        MissReason::WindowGone => "window-gone",
        MissReason::NoStateHere => "no-state-here",
    }
}

#[napi(object, object_from_js = false)]
pub struct NativeEvent {
    #[napi(ts_type = "'stored' | 'removed' | 'cleared' | 'state-stored' | 'state-removed'")]
    pub kind: &'static str,
    #[napi(ts_type = "string | undefined")]
    pub key: Option<String>,
    #[napi(ts_type = "string | undefined")]
    pub parent: Option<String>,
    #[napi(ts_type = "number[] | undefined")]
    pub tokens: Option<Vec<u32>>,
    pub is_first: bool,
}

/// The events that a reader has not seen yet.
#[napi(object, object_from_js = false)]
pub struct NativeEvents {
    /// The number of events that are no longer available.
    pub missed: f64,
    /// The number of the first event in this list.
    pub first: f64,
    pub events: Vec<NativeEvent>,
}

/// The keys of all cached blocks.
#[napi(object, object_from_js = false)]
pub struct NativePrefixKeys {
    pub keys: Vec<String>,
    /// The keys of the blocks at whose end there is a state, in a cache with states.
    #[napi(ts_type = "string[] | undefined")]
    pub states: Option<Vec<String>>,
    /// The number of the next event.
    pub next: f64,
}

#[napi]
impl NativePagedKvCache {
    /// The keys of a prompt's full blocks.
    #[napi]
    pub fn keys(
        &self,
        env: &Env,
        tokens: &[u32],
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<Vec<String>> {
        self.cache.read(env, |cache| Ok(names(&cache.keys(tokens, Prompt::read(salt, salt_from, extra)?.options())?)))
    }

    /// The keys of all cached blocks.
    #[napi]
    pub fn indexed_keys(&self, env: &Env) -> Result<NativePrefixKeys> {
        self.cache.read(env, |cache| {
            let states = cache.state_keys()?.map(|keys| names(&keys));
            Ok(NativePrefixKeys { keys: names(&cache.indexed_keys()?), states, next: number(cache.events(0).next) })
        })
    }

    /// The events from a number on, at most `most`.
    #[napi]
    pub fn events(&self, env: &Env, since: f64, most: f64) -> Result<NativeEvents> {
        self.cache.read(env, |cache| NativeEvents::of(cache.events(whole("since", since)?), most))
    }
}

#[napi]
impl NativePagedKvCache {
    /// The cache's current content as events; `first` is the number of the next event.
    #[napi]
    pub fn found_events(&mut self, env: &Env) -> Result<NativeEvents> {
        self.cache.change(env, |cache| {
            let (events, next) = cache.found_events()?;
            Ok(NativeEvents {
                missed: 0.0,
                first: number(next),
                events: events.iter().map(|(kept, event)| native(*kept, event)).collect(),
            })
        })
    }
}

impl NativeEvents {
    /// The unseen events, at most `most`.
    fn of(unseen: UnseenCacheEvents<'_>, most: f64) -> Outcome<Self> {
        let most = count("most", most)? as usize;
        let events = unseen.iter().take(most).map(|(kept, event)| native(kept, event)).collect();
        Ok(NativeEvents { missed: number(unseen.missed), first: number(unseen.first), events })
    }
}

/// Keys as hexadecimal digits.
pub(crate) fn names(keys: &[BlockKey]) -> Vec<String> {
    keys.iter().map(hex).collect()
}

fn native(kept: BlockContent, event: &Event) -> NativeEvent {
    let none = NativeEvent { kind: "cleared", key: None, parent: None, tokens: None, is_first: false };
    match event {
        Event::Stored { key, .. } if kept == BlockContent::States => {
            NativeEvent { kind: "state-stored", key: Some(hex(key)), ..none }
        }
        Event::Removed { key } if kept == BlockContent::States => {
            NativeEvent { kind: "state-removed", key: Some(hex(key)), ..none }
        }
        Event::Stored { key, parent, tokens, is_first } => NativeEvent {
            kind: "stored",
            key: Some(hex(key)),
            parent: Some(hex(parent)),
            tokens: Some(tokens.to_vec()),
            is_first: *is_first,
        },
        Event::Removed { key } => NativeEvent { kind: "removed", key: Some(hex(key)), ..none },
        Event::Cleared => none,
    }
}

/// A key as hexadecimal digits.
fn hex(key: &BlockKey) -> String {
    key.0.iter().fold(String::with_capacity(64), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("a string takes what is written");
        digits
    })
}

/// Computes the block keys of prompts, without a cache.
#[napi]
pub struct NativePrefixNamer {
    namer: Handle<PrefixNamer>,
}

#[napi]
impl NativePrefixNamer {
    /// Computes keys like a cache with these options. Only the options that keys depend on matter.
    #[napi(factory)]
    pub fn of_pages(env: &Env, options: NativePagedOptions) -> Result<Self> {
        Self::named(env, || Ok(PrefixNamer::of_pages(&options.read()?)?))
    }

    /// Computes keys like a cache of a model.
    #[napi(factory)]
    pub fn of_model(env: &Env, options: NativeModelOptions) -> Result<Self> {
        Self::named(env, || Ok(PrefixNamer::of_model(&options.read()?)?))
    }

    /// The keys of a prompt's full blocks.
    #[napi]
    pub fn keys(
        &self,
        env: &Env,
        tokens: &[u32],
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<Vec<String>> {
        self.namer.read(env, |namer| Ok(names(&namer.keys(tokens, Prompt::read(salt, salt_from, extra)?.options())?)))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.namer.dispose(env, |_| ());
    }

    fn named(env: &Env, make: impl FnOnce() -> Outcome<PrefixNamer>) -> Result<Self> {
        guard(env, || Ok(NativePrefixNamer { namer: Handle::new("PrefixNamer", make()?) }))
    }
}
