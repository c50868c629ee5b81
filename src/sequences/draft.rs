//! Transactions of sequences; both are referred to by number.

use kvtide_tensor::BeginOptions;
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use crate::border::argument::{count, optional, whole};
use crate::border::handle::budget;
use crate::border::tensor::{Children, NativeView};
use crate::contiguous::transaction::{id, positions};

#[napi]
impl NativePagedKvCache {
    /// Opens a transaction on a sequence, or inside its transaction `parent`. Returns its number.
    #[napi]
    pub fn begin_draft(
        &mut self,
        env: &Env,
        sequence: f64,
        parent: Option<f64>,
        max_tokens: Option<f64>,
    ) -> Result<f64> {
        self.cache.change(env, |cache| {
            let parent = parent.map(id).transpose()?;
            let options = BeginOptions { max_tokens: optional("maxTokens", max_tokens, count)? };
            Ok(cache.begin(whole("seq", sequence)?, parent, options)?.to_raw() as f64)
        })
    }

    /// The number of the innermost open transaction of a sequence.
    #[napi]
    pub fn innermost_draft(&self, env: &Env, sequence: f64) -> Result<Option<f64>> {
        self.cache.read(env, |cache| Ok(cache.innermost(whole("seq", sequence)?)?.map(|id| id.to_raw() as f64)))
    }

    #[napi]
    pub fn commit_draft(&mut self, env: &Env, sequence: f64, draft: f64, tokens: Option<f64>) -> Result<()> {
        self.cache.change(env, |cache| {
            Ok(cache.commit(whole("seq", sequence)?, id(draft)?, optional("n", tokens, whole)?)?)
        })
    }

    #[napi]
    pub fn commit_draft_path(&mut self, env: &Env, sequence: f64, draft: f64, path: &[u32]) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.commit_path(whole("seq", sequence)?, id(draft)?, path)?))
    }

    #[napi]
    pub fn rollback_draft(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.commit(whole("seq", sequence)?, id(draft)?, Some(0))?))
    }

    /// Rolls back a transaction that is still open. Does nothing if the cache or the sequence has ended.
    #[napi]
    pub fn drop_draft(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<()> {
        if self.cache.get().is_err() {
            return Ok(());
        }
        self.cache.change(env, |cache| {
            cache.rollback(whole("seq", sequence)?, id(draft)?);
            Ok(())
        })
    }

    #[napi]
    pub fn drafted(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.drafted(whole("seq", sequence)?, id(draft)?)?.into()))
    }

    /// The attention mask of a transaction's tokens in a layer.
    #[napi]
    pub fn draft_mask(&mut self, env: &Env, sequence: f64, draft: f64, layer: f64) -> Result<NativeView> {
        self.cache.change(env, |cache| {
            let (sequence, layer) = (whole("seq", sequence)?, count("layer", layer)?);
            let mask = cache.draft_mask(sequence, id(draft)?, layer, &budget())?;
            Ok(NativeView::of(mask, &Children::default()))
        })
    }

    #[napi]
    pub fn draft_positions(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<Vec<i32>> {
        self.cache.change(env, |cache| positions(cache.draft_positions(whole("seq", sequence)?, id(draft)?)?))
    }
}
