//! Transactions of the contiguous caches, by number: JavaScript's objects cannot borrow a cache.
//!
//! One set of calls, written once for the classes that have them. A number that JavaScript holds is that of one transaction of
//! one cache, and of no other later.

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

/// The transaction of a number.
pub(crate) fn id(number: f64) -> Outcome<TransactionId> {
    Ok(TransactionId::from_raw(whole("transaction", number)?))
}

/// Positions as JavaScript has them.
pub(crate) fn positions(found: Vec<u64>) -> Outcome<Vec<i32>> {
    let whole = |position: u64| match i32::try_from(position) {
        Ok(position) => Ok(position),
        Err(_) => {
            let expected = format!("at most {COUNT_MAX}, what an Int32Array holds");
            Err(kvtide_core::Error::argument("position", position, expected).into())
        }
    };
    found.into_iter().map(whole).collect()
}

/// The calls of one class; `$read` and `$change` give the cache that has transactions.
macro_rules! transactions {
    ($class:ident, $read:expr, $change:expr) => {
        #[napi]
        impl $class {
            /// Opens a transaction on the cache, or on the transaction `parent`; answers its number.
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

            /// Rolls back what is still open; nothing when the cache has ended.
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
