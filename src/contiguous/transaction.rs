//! Transactions of the contiguous caches, by number: JavaScript's objects cannot borrow a cache.
//!
//! One set of calls, written once for the classes that have them. A number that JavaScript holds is that of one transaction of
//! one cache, and of no other later.

use kvtide_core::{COUNT_MAX, TransactionId};
use kvtide_tensor::{BeginOptions, KvCache, RollbackCache, RotatingKvCache, Shown, Transactional};
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::array::ArrayArg;
use crate::border::budget::budget;
use crate::border::cache_views::{CacheViews, NativeBuffer};
use crate::border::children::Children;
use crate::border::number::{count, optional, whole};
use crate::border::refusal::Outcome;
use crate::border::tensor::NativeView;
use crate::border::tensor_arg::{TensorArg, source};
use crate::contiguous::kv_cache::NativeKvCache;
use crate::contiguous::rollback_cache::NativeRollbackCache;
use crate::contiguous::rotating_cache::{NativeRotatingCache, pair, pair_mut};

/// A class whose cache has transactions.
trait Drafting {
    type Cache: Transactional<Shown = Shown>;

    fn is_live(&self) -> bool;

    fn read<R>(&self, env: &Env, work: impl FnOnce(&Self::Cache) -> Outcome<R>) -> Result<R>;

    fn change<R>(&mut self, env: &Env, work: impl FnOnce(&mut Self::Cache, &mut CacheViews) -> Outcome<R>)
    -> Result<R>;
}

impl Drafting for NativeKvCache {
    type Cache = KvCache;

    fn is_live(&self) -> bool {
        self.cache.get().is_ok()
    }

    fn read<R>(&self, env: &Env, work: impl FnOnce(&KvCache) -> Outcome<R>) -> Result<R> {
        self.cache.read(env, work)
    }

    fn change<R>(&mut self, env: &Env, work: impl FnOnce(&mut KvCache, &mut CacheViews) -> Outcome<R>) -> Result<R> {
        self.cache.change(env, |cache| work(cache, &mut self.views))
    }
}

impl Drafting for NativeRollbackCache {
    type Cache = RollbackCache;

    fn is_live(&self) -> bool {
        self.cache.get().is_ok()
    }

    fn read<R>(&self, env: &Env, work: impl FnOnce(&RollbackCache) -> Outcome<R>) -> Result<R> {
        self.cache.read(env, work)
    }

    fn change<R>(
        &mut self,
        env: &Env,
        work: impl FnOnce(&mut RollbackCache, &mut CacheViews) -> Outcome<R>,
    ) -> Result<R> {
        self.cache.change(env, |cache| work(cache, &mut self.views))
    }
}

impl Drafting for NativeRotatingCache {
    type Cache = RotatingKvCache;

    fn is_live(&self) -> bool {
        self.cache.get().is_ok()
    }

    fn read<R>(&self, env: &Env, work: impl FnOnce(&RotatingKvCache) -> Outcome<R>) -> Result<R> {
        self.cache.read(env, |cache| work(pair(cache)?))
    }

    fn change<R>(
        &mut self,
        env: &Env,
        work: impl FnOnce(&mut RotatingKvCache, &mut CacheViews) -> Outcome<R>,
    ) -> Result<R> {
        self.cache.change(env, |cache| work(pair_mut(cache)?, &mut self.views))
    }
}

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

macro_rules! transactions {
    ($class:ident) => {
        #[napi]
        impl $class {
            /// Opens a transaction on the cache, or on the transaction `parent`; answers its number.
            #[napi]
            pub fn begin_draft(&mut self, env: &Env, parent: Option<f64>, max_tokens: Option<f64>) -> Result<f64> {
                self.change(env, |cache, _| {
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
                self.change(env, |cache, views| {
                    let meta = meta.numbers()?;
                    let (k, v) = (source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
                    views.show(&cache.append_draft(id(draft)?, k, v, parents)?, meta)
                })
            }

            #[napi]
            pub fn commit_draft(&mut self, env: &Env, draft: f64, tokens: Option<f64>) -> Result<()> {
                self.change(env, |cache, _| Ok(cache.commit_draft(id(draft)?, optional("n", tokens, whole)?)?))
            }

            #[napi]
            pub fn commit_draft_path(&mut self, env: &Env, draft: f64, path: &[u32]) -> Result<()> {
                self.change(env, |cache, _| Ok(cache.commit_draft_path(id(draft)?, path)?))
            }

            #[napi]
            pub fn rollback_draft(&mut self, env: &Env, draft: f64) -> Result<()> {
                self.change(env, |cache, _| Ok(cache.rollback_draft(id(draft)?)?))
            }

            /// Rolls back what is still open; nothing when the cache has ended.
            #[napi]
            pub fn drop_draft(&mut self, env: &Env, draft: f64) -> Result<()> {
                if !self.is_live() {
                    return Ok(());
                }
                self.change(env, |cache, _| {
                    cache.drop_draft(id(draft)?);
                    Ok(())
                })
            }

            #[napi]
            pub fn drafted(&self, env: &Env, draft: f64) -> Result<f64> {
                self.read(env, |cache| Ok(Transactional::drafted(cache, id(draft)?)?.into()))
            }

            #[napi]
            pub fn draft_mask(&self, env: &Env, draft: f64) -> Result<NativeView> {
                self.read(env, |cache| {
                    Ok(NativeView::of(cache.draft_mask(id(draft)?, &budget())?, &Children::default()))
                })
            }

            #[napi]
            pub fn draft_positions(&self, env: &Env, draft: f64) -> Result<Vec<i32>> {
                self.read(env, |cache| positions(cache.draft_positions(id(draft)?)?))
            }
        }
    };
}

transactions!(NativeKvCache);
transactions!(NativeRotatingCache);
transactions!(NativeRollbackCache);
