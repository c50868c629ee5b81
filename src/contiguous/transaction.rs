//! Transactions of the contiguous caches, referred to by number, because JavaScript objects cannot borrow a cache.
//!
//! One set of methods, written once for all classes that have transactions. A number refers to one transaction of one
//! cache and is never reused.

use kvtide_core::{COUNT_MAX, TransactionId};
use kvtide_tensor::{BeginOptions, Transactional};
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{ArrayArg, count, optional, whole};
use crate::border::handle::budget;
use crate::border::refusal::Outcome;
use crate::border::tensor::{Children, NativeBuffer, NativeView, TensorArg, source};
use crate::contiguous::kv_cache::NativeKvCache;
use crate::contiguous::rollback_cache::NativeRollbackCache;
use crate::contiguous::rotating_cache::{NativeRotatingCache, pair, pair_mut};

/// The id of the transaction with this number.
pub(crate) fn id(number: f64) -> Outcome<TransactionId> {
    Ok(TransactionId::from_raw(whole("transaction", number)?))
}

/// Converts positions to JavaScript's 32-bit integers.
pub(crate) fn positions(found: Vec<u64>) -> Outcome<Vec<i32>> {
    let whole = |position: u64| match i32::try_from(position) {
        Ok(position) => Ok(position),
        Err(_) => {
            let expected = format!("at most {COUNT_MAX}, the largest number in an Int32Array");
            Err(kvtide_core::Error::argument("position", position, expected).into())
        }
    };
    found.into_iter().map(whole).collect()
}

/// Defines the methods of one class; `$read` and `$change` return the cache that has the transactions.
macro_rules! transactions {
    ($class:ident, $read:expr, $change:expr) => {
        #[napi]
        impl $class {
            /// Opens a transaction on the cache, or inside the transaction `parent`. Returns its number.
            #[napi]
            pub fn begin_draft(&mut self, env: &Env, parent: Option<f64>, max_tokens: Option<f64>) -> Result<f64> {
                self.cache.change(env, |cache| {
                    let cache = $change(cache)?;
                    let parent = parent.map(id).transpose()?;
                    let options = BeginOptions { max_tokens: optional("maxTokens", max_tokens, count)? };
                    Ok(cache.begin_draft(parent, options)?.to_raw() as f64)
                })
            }

            #[napi]
            pub fn append_draft(
                &mut self,
                env: &Env,
                draft: f64,
                k: TensorArg,
                v: TensorArg,
                meta: ArrayArg,
                parents: Option<&[i32]>,
            ) -> Result<Option<NativeBuffer>> {
                self.cache.change(env, |cache| {
                    let cache = $change(cache)?;
                    let meta = meta.numbers()?;
                    let (k, v) = (source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
                    self.views.show(&cache.append_draft(id(draft)?, k, v, parents)?, meta)
                })
            }

            #[napi]
            pub fn commit_draft(&mut self, env: &Env, draft: f64, tokens: Option<f64>) -> Result<()> {
                self.cache
                    .change(env, |cache| Ok($change(cache)?.commit_draft(id(draft)?, optional("n", tokens, whole)?)?))
            }

            #[napi]
            pub fn commit_draft_path(&mut self, env: &Env, draft: f64, path: &[u32]) -> Result<()> {
                self.cache.change(env, |cache| Ok($change(cache)?.commit_draft_path(id(draft)?, path)?))
            }

            #[napi]
            pub fn rollback_draft(&mut self, env: &Env, draft: f64) -> Result<()> {
                self.cache.change(env, |cache| Ok($change(cache)?.rollback_draft(id(draft)?)?))
            }

            /// Rolls back a transaction that is still open. Does nothing if the cache was disposed of.
            #[napi]
            pub fn drop_draft(&mut self, env: &Env, draft: f64) -> Result<()> {
                if self.cache.get().is_err() {
                    return Ok(());
                }
                self.cache.change(env, |cache| {
                    let cache = $change(cache)?;
                    cache.drop_draft(id(draft)?);
                    Ok(())
                })
            }

            #[napi]
            pub fn drafted(&self, env: &Env, draft: f64) -> Result<f64> {
                self.cache.read(env, |cache| Ok(Transactional::drafted($read(cache)?, id(draft)?)?.into()))
            }

            #[napi]
            pub fn draft_mask(&self, env: &Env, draft: f64) -> Result<NativeView> {
                self.cache.read(env, |cache| {
                    Ok(NativeView::of($read(cache)?.draft_mask(id(draft)?, &budget())?, &Children::default()))
                })
            }

            #[napi]
            pub fn draft_positions(&self, env: &Env, draft: f64) -> Result<Vec<i32>> {
                self.cache.read(env, |cache| positions($read(cache)?.draft_positions(id(draft)?)?))
            }
        }
    };
}

fn itself<T>(cache: T) -> Outcome<T> {
    Ok(cache)
}

transactions!(NativeKvCache, itself, itself);
transactions!(NativeRotatingCache, pair, pair_mut);
transactions!(NativeRollbackCache, itself, itself);
