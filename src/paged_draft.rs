//! Transactions of a paged cache's sequences, by the numbers of both.

use kvtide_core::Error;
use kvtide_tensor::{BeginOptions, Transactional};
use napi::{Env, Result};
use napi_derive::napi;

use crate::memory::budget;
use crate::number::{count, optional, whole};
use crate::paged_kv_cache::NativePagedKvCache;
use crate::shown::Children;
use crate::source::{TensorArg, source};
use crate::tensor::NativeView;
use crate::transaction::{id, positions};

#[napi]
impl NativePagedKvCache {
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
            let parent = parent.map(id).transpose()?;
            let options = BeginOptions { max_tokens: optional("maxTokens", max_tokens, count)? };
            let mut sequence = cache.sequence(whole("seq", sequence)?)?;
            Ok(sequence.begin_draft(parent, options)?.to_raw() as f64)
        })
    }

    /// `at` is the sequence and the transaction.
    #[napi]
    pub fn append_draft(
        &mut self,
        env: &Env,
        at: &[f64],
        k: TensorArg,
        v: TensorArg,
        meta: &[f64],
        parents: Option<&[i32]>,
        tokens: Option<&[u32]>,
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let &[sequence, draft] = at else {
                return Err(Error::argument("at", at.len(), "a sequence and a transaction").into());
            };
            let (k, v) = (source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
            let mut sequence = cache.sequence(whole("seq", sequence)?)?;
            Ok(sequence.append_draft_known(id(draft)?, k, v, parents, tokens)?)
        })
    }

    #[napi]
    pub fn commit_draft(&mut self, env: &Env, sequence: f64, draft: f64, tokens: Option<f64>) -> Result<()> {
        self.cache.change(env, |cache| {
            let mut sequence = cache.sequence(whole("seq", sequence)?)?;
            Ok(sequence.commit_draft(id(draft)?, optional("n", tokens, whole)?)?)
        })
    }

    #[napi]
    pub fn commit_draft_path(&mut self, env: &Env, sequence: f64, draft: f64, path: &[u32]) -> Result<()> {
        self.cache
            .change(env, |cache| Ok(cache.sequence(whole("seq", sequence)?)?.commit_draft_path(id(draft)?, path)?))
    }

    #[napi]
    pub fn rollback_draft(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.sequence(whole("seq", sequence)?)?.rollback_draft(id(draft)?)?))
    }

    /// Rolls back what is still open; nothing when the cache or the sequence has ended.
    #[napi]
    pub fn drop_draft(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<()> {
        if self.cache.get().is_err() {
            return Ok(());
        }
        self.cache.change(env, |cache| {
            if let Ok(mut sequence) = cache.sequence(whole("seq", sequence)?) {
                sequence.drop_draft(id(draft)?);
            }
            Ok(())
        })
    }

    #[napi]
    pub fn drafted(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<f64> {
        self.cache.change(env, |cache| {
            let sequence = cache.sequence(whole("seq", sequence)?)?;
            Ok(sequence.drafted(id(draft)?)?.into())
        })
    }

    #[napi]
    pub fn draft_mask(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<NativeView> {
        self.cache.change(env, |cache| {
            let sequence = cache.sequence(whole("seq", sequence)?)?;
            Ok(NativeView::of(sequence.draft_mask(id(draft)?, &budget())?, &Children::default()))
        })
    }

    #[napi]
    pub fn draft_positions(&mut self, env: &Env, sequence: f64, draft: f64) -> Result<Vec<i32>> {
        self.cache.change(env, |cache| positions(cache.sequence(whole("seq", sequence)?)?.draft_positions(id(draft)?)?))
    }
}
