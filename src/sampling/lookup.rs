//! Prompt lookup: drafts from the tokens so far, for JavaScript.

use kvtide_sample::PromptLookup;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::count;
use crate::border::handle::{Handle, guard};

#[napi]
pub struct NativePromptLookup {
    lookup: Handle<PromptLookup>,
}

#[napi]
impl NativePromptLookup {
    /// Makes a lookup that compares the last `shortest` to `longest` tokens with earlier ones.
    #[napi(constructor)]
    pub fn new(env: &Env, shortest: f64, longest: f64) -> Result<Self> {
        guard(env, || {
            let lookup = PromptLookup::new(count("shortest", shortest)?, count("longest", longest)?)?;
            Ok(NativePromptLookup { lookup: Handle::new("PromptLookup", lookup) })
        })
    }

    #[napi]
    pub fn push(&mut self, env: &Env, tokens: &[u32]) -> Result<()> {
        self.lookup.change(env, |lookup| {
            lookup.push(tokens);
            Ok(())
        })
    }

    /// The tokens that followed the most recent earlier occurrence of the last tokens: up to `most`, or none.
    #[napi]
    pub fn draft(&self, env: &Env, most: f64) -> Result<Vec<u32>> {
        self.lookup.read(env, |lookup| Ok(lookup.draft(count("most", most)? as usize)))
    }

    #[napi]
    pub fn truncate(&mut self, env: &Env, len: f64) -> Result<()> {
        self.lookup.change(env, |lookup| {
            lookup.truncate(count("len", len)? as usize);
            Ok(())
        })
    }

    #[napi]
    pub fn len(&self, env: &Env) -> Result<f64> {
        self.lookup.read(env, |lookup| Ok(lookup.len() as f64))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.lookup.dispose(env, |_| ());
    }
}
