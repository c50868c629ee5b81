//! Tokens of a model's sequences in all layers at once, and transactions on them, by the numbers of both.

use kvtide_tensor::{BeginOptions, ModelTokens, Source};
use napi::{Env, Result};
use napi_derive::napi;

use crate::guard::Outcome;
use crate::memory::budget;
use crate::model_cache::NativeModelCache;
use crate::number::{count, optional, whole};
use crate::shown::Children;
use crate::source::{TensorArg, source};
use crate::tensor::NativeView;
use crate::transaction::{id, positions};

#[napi]
impl NativeModelCache {
    /// Appends tokens to a sequence, or drafts them: K and V of each layer with its own, one behind the other. `tokens` are
    /// their ids.
    #[napi]
    pub fn append_to(
        &mut self,
        env: &Env,
        sequence: f64,
        draft: Option<f64>,
        kv: Vec<TensorArg>,
        meta: &[f64],
        parents: Option<&[i32]>,
        tokens: Option<&[u32]>,
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let named = |place: usize| if place.is_multiple_of(2) { "k" } else { "v" };
            let sources = kv.iter().enumerate().map(|(place, of)| source(named(place), of, meta, place));
            let sources = sources.collect::<Outcome<Vec<Source<'_>>>>()?;
            let (layers, _) = sources.as_chunks::<2>();
            let tokens = ModelTokens { layers, parents, ids: tokens };
            Ok(cache.append_to(whole("sequence", sequence)?, draft.map(id).transpose()?, tokens)?)
        })
    }

    /// Opens a transaction on a sequence, or on the transaction `parent` of it; answers its number.
    #[napi]
    pub fn begin_draft(
        &mut self,
        env: &Env,
        sequence: f64,
        parent: Option<f64>,
        max_tokens: Option<f64>,
    ) -> Result<f64> {
        self.cache.change(env, |cache| {
            let (sequence, parent) = (whole("sequence", sequence)?, parent.map(id).transpose()?);
            let options = BeginOptions { max_tokens: optional("maxTokens", max_tokens, count)? };
            Ok(cache.begin(sequence, parent, options)?.to_raw() as f64)
        })
    }

    #[napi]
    pub fn commit_draft(&mut self, env: &Env, sequence: f64, draft: f64, tokens: Option<f64>) -> Result<()> {
        self.cache.change(env, |cache| {
            let tokens = optional("n", tokens, whole)?;
            Ok(cache.commit(whole("sequence", sequence)?, id(draft)?, tokens)?)
        })
    }

    #[napi]
    pub fn commit_draft_path(&mut self, env: &Env, sequence: f64, draft: f64, path: &[u32]) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.commit_path(whole("sequence", sequence)?, id(draft)?, path)?))
    }

    #[napi]
    pub fn rollback_draft(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<()> {
        self.cache.change(env, |cache| {
            let (sequence, draft) = (whole("sequence", sequence)?, id(draft)?);
            cache.check_draft(sequence, draft)?;
            cache.rollback(sequence, draft);
            Ok(())
        })
    }

    /// Rolls back what is still open; nothing when the cache or the sequence has ended.
    #[napi]
    pub fn drop_draft(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<()> {
        if self.cache.get().is_err() {
            return Ok(());
        }
        self.cache.change(env, |cache| {
            cache.rollback(whole("sequence", sequence)?, id(draft)?);
            Ok(())
        })
    }

    #[napi]
    pub fn drafted(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.drafted(whole("sequence", sequence)?, id(draft)?)?.into()))
    }

    #[napi]
    pub fn draft_mask(&mut self, env: &Env, sequence: f64, draft: f64, layer: f64) -> Result<NativeView> {
        self.cache.change(env, |cache| {
            let (sequence, layer) = (whole("sequence", sequence)?, count("layer", layer)?);
            let mask = cache.draft_mask(sequence, id(draft)?, layer, &budget())?;
            Ok(NativeView::of(mask, &Children::default()))
        })
    }

    #[napi]
    pub fn draft_positions(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<Vec<i32>> {
        self.cache.change(env, |cache| positions(cache.draft_positions(whole("sequence", sequence)?, id(draft)?)?))
    }
}
