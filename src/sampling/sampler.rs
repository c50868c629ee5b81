//! A sampler, held by JavaScript. Drawing changes nothing, so a task shares the sampler as it was when the task was
//! made. Calls on the object continue meanwhile; the first one that changes the sampler makes a copy if a task still
//! uses the old state.

use std::cell::RefCell;
use std::sync::Arc;

use kvtide_core::{Code, Error, details};
use kvtide_sample::{Options, Sampler};
use kvtide_tensor::runtime::Budget;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{count, whole};
use crate::border::handle::{Handle, guard};
use crate::border::refusal::{Outcome, Refusal};

impl From<kvtide_sample::Error> for Refusal {
    fn from(error: kvtide_sample::Error) -> Self {
        use kvtide_sample::Error as Sample;
        match error {
            Sample::InvalidArgument { argument, value, expected } => Error::argument(argument, value, expected).into(),
            Sample::NotFinite { row, .. } => {
                Refusal { code: Code::NotFinite, message: error.to_string(), details: details![row: row as u64] }
            }
            Sample::NothingAllowed { vocabulary } => {
                let value = format!("no token of {vocabulary} that the bias permits");
                Error::argument("allowed", value, "at least one token with a finite logit").into()
            }
            Sample::InvalidGrammar { ref place, ref reason } => {
                let mut details = details![reason: reason];
                details.extend(place.as_ref().into_iter().flat_map(|place| details![place: place]));
                Refusal { code: Code::InvalidGrammar, message: format!("the grammar cannot be used: {error}"), details }
            }
            Sample::InvalidTokenizer { reason } => {
                Error::argument("tokenizer", reason, "the content of a tokenizer.json").into()
            }
            Sample::OutOfMemory { bytes } => Budget::process().refusal(bytes).into(),
        }
    }
}

/// The options as numbers, in the order of `lib/sampling/options.ts`:
///
/// ```text
/// temperature  topK (0: all)  topP  minP  repetition  presence  frequency  seed  logprobs (-1: none)
/// ```
fn options(numbers: &[f64], ids: &[u32], bias: &[f32]) -> Outcome<Options> {
    let &[temperature, top_k, top_p, min_p, repetition, presence, frequency, seed, logprobs] = numbers else {
        return Err(Error::argument("options", numbers.len() as u64, "9 numbers").into());
    };
    if ids.len() != bias.len() {
        return Err(Error::argument("bias", bias.len() as u64, "one number per token").into());
    }
    let top_k = count("topK", top_k)?;
    Ok(Options {
        temperature: temperature as f32,
        top_k: (top_k > 0).then_some(top_k),
        top_p: top_p as f32,
        min_p: min_p as f32,
        repetition_penalty: repetition as f32,
        presence_penalty: presence as f32,
        frequency_penalty: frequency as f32,
        bias: ids.iter().copied().zip(bias.iter().copied()).collect(),
        seed: whole("seed", seed)?,
        logprobs: if logprobs < 0.0 { None } else { Some(count("logprobs", logprobs)?) },
    })
}

#[napi]
pub struct NativeSampler {
    sampler: RefCell<Handle<Arc<Sampler>>>,
}

impl NativeSampler {
    fn of(sampler: Sampler) -> Self {
        NativeSampler { sampler: RefCell::new(Handle::new("Sampler", Arc::new(sampler))) }
    }

    /// The current state of the sampler.
    pub(crate) fn get(&self) -> Outcome<Arc<Sampler>> {
        self.sampler.borrow().get().cloned()
    }
}

#[napi]
impl NativeSampler {
    /// Makes a sampler that continues after the tokens of `prompt`. Each number of `bias` is added to the logit of the
    /// token in `ids`.
    #[napi(constructor)]
    pub fn new(env: &Env, numbers: &[f64], ids: &[u32], bias: &[f32], prompt: &[u32]) -> Result<Self> {
        guard(env, || Ok(NativeSampler::of(Sampler::new(options(numbers, ids, bias)?, prompt)?)))
    }

    /// Adds generated tokens.
    #[napi]
    pub fn push(&self, env: &Env, tokens: &[u32]) -> Result<()> {
        self.sampler.borrow_mut().change(env, |sampler| {
            Arc::make_mut(sampler).push(tokens);
            Ok(())
        })
    }

    /// Removes the generated tokens from a position on.
    #[napi]
    pub fn truncate(&self, env: &Env, position: f64) -> Result<()> {
        self.sampler.borrow_mut().change(env, |sampler| {
            let position = whole("position", position)?;
            Ok(Arc::make_mut(sampler).truncate(position)?)
        })
    }

    /// The position of the next token.
    #[napi]
    pub fn position(&self, env: &Env) -> Result<f64> {
        self.sampler.borrow().read(env, |sampler| Ok(sampler.position() as f64))
    }

    /// A copy of this sampler in its current state.
    #[napi]
    pub fn fork(&self, env: &Env) -> Result<NativeSampler> {
        self.sampler.borrow().read(env, |sampler| Ok(NativeSampler::of(Sampler::clone(sampler))))
    }

    /// A sampler for a second model, whose tokens are drafts.
    #[napi]
    pub fn drafter(&self, env: &Env) -> Result<NativeSampler> {
        self.sampler.borrow().read(env, |sampler| Ok(NativeSampler::of(sampler.drafter())))
    }

    #[napi]
    pub fn dispose(&self, env: &Env) {
        self.sampler.borrow_mut().dispose(env, |_| ());
    }
}
