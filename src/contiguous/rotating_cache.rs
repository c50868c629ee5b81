//! Both rotating caches (one tensor, or K and V) and their snapshots.

use kvtide_tensor::buffers::Source;
use kvtide_tensor::runtime::{device, device_name};
use kvtide_tensor::{Kv, RotatingCache, RotatingCacheOptions, RotatingKvCache, RotatingSnapshot};
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{ArrayArg, count, optional, positive, whole};
use crate::border::handle::{Handle, budget, guard};
use crate::border::process::NativeStats;
use crate::border::refusal::Outcome;
use crate::border::tensor::{CacheViews, NativeBuffer, NativeView, TensorArg, source};

/// All options of the cache; the TypeScript layer has filled in the defaults.
#[napi(object)]
pub struct NativeRotatingOptions {
    /// 1 for one tensor, or 2 for K and V.
    pub parts: f64,
    pub dim: f64,
    pub max_seq_len: f64,
    #[napi(ts_type = "number | undefined")]
    pub capacity_seq_len: Option<f64>,
    pub sinks: f64,
    #[napi(ts_type = "number | undefined")]
    pub slack: Option<f64>,
    pub device: String,
    #[napi(ts_type = "number | undefined")]
    pub memory_limit_bytes: Option<f64>,
}

pub(crate) enum EitherCache {
    Single(RotatingCache),
    Pair(RotatingKvCache),
}

#[napi]
pub struct NativeRotatingCache {
    pub(crate) cache: Handle<EitherCache>,
    pub(crate) views: CacheViews,
}

#[napi]
impl NativeRotatingCache {
    #[napi(constructor)]
    pub fn new(env: &Env, options: NativeRotatingOptions) -> Result<Self> {
        guard(env, || {
            let made = RotatingCacheOptions {
                dim: count("dim", options.dim)? as usize,
                max_seq_len: positive("maxSeqLen", options.max_seq_len)?,
                capacity_seq_len: optional("capacitySeqLen", options.capacity_seq_len, count)?,
                sinks: count("sinks", options.sinks)?,
                slack: optional("slack", options.slack, count)?,
                device: device(&options.device)?,
                memory_limit_bytes: optional("memoryLimitBytes", options.memory_limit_bytes, whole)?,
                budget: Some(budget()),
            };
            Ok(handle(if options.parts == 2.0 {
                EitherCache::Pair(RotatingKvCache::new(made)?)
            } else {
                EitherCache::Single(RotatingCache::new(made)?)
            }))
        })
    }

    /// Makes a cache from a snapshot of `parts` tensors and the accepted tokens, `keep_len` tokens in all.
    #[napi(factory)]
    pub fn restore_from_snapshot(
        env: &Env,
        parts: f64,
        snapshot: &NativeRotatingSnapshot,
        k: Option<TensorArg>,
        v: Option<TensorArg>,
        meta: &[f64],
        keep_len: f64,
    ) -> Result<Self> {
        guard(env, || {
            let keep_len = whole("keepLen", keep_len)?;
            fn part<'a>(value: &'a Option<TensorArg>, meta: &[f64], place: usize) -> Outcome<Option<Source<'a>>> {
                value.as_ref().map(|value| source("accepted", value, meta, place)).transpose()
            }
            Ok(handle(match snapshot.snapshot.get()? {
                EitherSnapshot::Single(snapshot) if parts == 1.0 => {
                    EitherCache::Single(RotatingCache::restore_from_snapshot(snapshot, part(&k, meta, 0)?, keep_len)?)
                }
                EitherSnapshot::Pair(snapshot) if parts == 2.0 => {
                    let accepted = part(&k, meta, 0)?.zip(part(&v, meta, 1)?);
                    EitherCache::Pair(RotatingKvCache::restore_from_snapshot(snapshot, accepted, keep_len)?)
                }
                _ => return other_kind(),
            }))
        })
    }

    #[napi]
    pub fn current_seq_len(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(either!(EitherCache, cache, cache => cache.current_seq_len()) as f64))
    }

    #[napi]
    pub fn capacity_seq_len(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(either!(EitherCache, cache, cache => cache.capacity_seq_len()).into()))
    }

    #[napi]
    pub fn retained_len(&self, env: &Env) -> Result<f64> {
        self.cache.read(env, |cache| Ok(either!(EitherCache, cache, cache => cache.retained_len()).into()))
    }

    #[napi]
    pub fn device(&self, env: &Env) -> Result<String> {
        self.cache.read(env, |cache| Ok(device_name(either!(EitherCache, cache, cache => cache.device()))))
    }

    #[napi]
    pub fn dtype(&self, env: &Env) -> Result<Option<&'static str>> {
        self.cache.read(env, |cache| Ok(either!(EitherCache, cache, cache => cache.dtype()).map(|dtype| dtype.name())))
    }

    #[napi]
    pub fn append(&mut self, env: &Env, k: TensorArg, v: TensorArg, meta: ArrayArg) -> Result<Option<NativeBuffer>> {
        self.cache.change(env, |cache| {
            let meta = meta.numbers()?;
            let shown = match cache {
                EitherCache::Single(cache) => cache.append_shown(source("src", &k, meta, 0)?)?,
                EitherCache::Pair(cache) => cache.append_shown(source("k", &k, meta, 0)?, source("v", &v, meta, 1)?)?,
            };
            self.views.show(&shown, meta)
        })
    }

    #[napi]
    pub fn current_data(&mut self, env: &Env, meta: ArrayArg) -> Result<Option<NativeBuffer>> {
        self.cache.change(env, |cache| {
            let shown = either!(EitherCache, cache, cache => cache.current_shown()?);
            self.views.show_optional(shown.as_ref(), meta.numbers()?)
        })
    }

    #[napi]
    pub fn last_append_result(&mut self, env: &Env, meta: ArrayArg) -> Result<Option<NativeBuffer>> {
        self.cache.change(env, |cache| {
            let shown = either!(EitherCache, cache, cache => cache.last_append_shown());
            self.views.show_optional(shown.as_ref(), meta.numbers()?)
        })
    }

    #[napi]
    pub fn all_data(&mut self, env: &Env, meta: ArrayArg) -> Result<Option<NativeBuffer>> {
        self.cache.change(env, |cache| {
            let shown = either!(EitherCache, cache, cache => cache.all_shown()?);
            self.views.show_optional(shown.as_ref(), meta.numbers()?)
        })
    }

    #[napi]
    pub fn try_set_len(&self, env: &Env, len: f64) -> Result<()> {
        self.cache.read(env, |cache| either!(EitherCache, cache, cache => Ok(cache.try_set_len(whole("len", len)?)?)))
    }

    #[napi]
    pub fn set_len(&mut self, env: &Env, len: f64) -> Result<()> {
        self.cache.change(env, |cache| either!(EitherCache, cache, cache => Ok(cache.set_len(whole("len", len)?)?)))
    }

    #[napi]
    pub fn reset(&mut self, env: &Env) -> Result<()> {
        self.cache.change(env, |cache| either!(EitherCache, cache, cache => Ok(cache.reset()?)))
    }

    #[napi]
    pub fn snapshot(&self, env: &Env) -> Result<NativeRotatingSnapshot> {
        let snapshot = self.cache.read(env, |cache| {
            Ok(match cache {
                EitherCache::Single(cache) => EitherSnapshot::Single(cache.snapshot()?),
                EitherCache::Pair(cache) => EitherSnapshot::Pair(cache.snapshot()?),
            })
        })?;
        Ok(NativeRotatingSnapshot { snapshot: Handle::new("RotatingSnapshot", snapshot) })
    }

    #[napi]
    pub fn restore(&mut self, env: &Env, snapshot: &NativeRotatingSnapshot) -> Result<()> {
        self.cache.change(env, |cache| match (cache, snapshot.snapshot.get()?) {
            (EitherCache::Single(cache), EitherSnapshot::Single(snapshot)) => Ok(cache.restore(snapshot)?),
            (EitherCache::Pair(cache), EitherSnapshot::Pair(snapshot)) => Ok(cache.restore(snapshot)?),
            _ => other_kind(),
        })
    }

    #[napi]
    pub fn can_append_from_snapshot(&self, env: &Env, snapshot: &NativeRotatingSnapshot, tokens: f64) -> Result<bool> {
        self.cache.read(env, |cache| {
            let tokens = whole("n", tokens)?;
            match (cache, snapshot.snapshot.get()?) {
                (EitherCache::Single(cache), EitherSnapshot::Single(snapshot)) => {
                    Ok(cache.can_append_from_snapshot(snapshot, tokens))
                }
                (EitherCache::Pair(cache), EitherSnapshot::Pair(snapshot)) => {
                    Ok(cache.can_append_from_snapshot(snapshot, tokens))
                }
                _ => other_kind(),
            }
        })
    }

    /// One view, or those of K and V; `None` if no token was accepted.
    #[napi]
    pub fn accepted_append_from_batched_append(
        &self,
        env: &Env,
        snapshot: &NativeRotatingSnapshot,
        keep_len: f64,
        row_idx: f64,
        batch_len: f64,
    ) -> Result<Option<Vec<NativeView>>> {
        self.cache.read(env, |cache| {
            let (keep, row, batch) =
                (whole("keepLen", keep_len)?, whole("rowIdx", row_idx)?, whole("batchLen", batch_len)?);
            let views = match (cache, snapshot.snapshot.get()?) {
                (EitherCache::Single(cache), EitherSnapshot::Single(snapshot)) => {
                    cache.accepted_append_from_batched_append(snapshot, keep, row, batch)?.map(|view| vec![view])
                }
                (EitherCache::Pair(cache), EitherSnapshot::Pair(snapshot)) => {
                    cache.accepted_append_from_batched_append(snapshot, keep, row, batch)?.map(|Kv { k, v }| vec![k, v])
                }
                _ => return other_kind(),
            };
            let native = |view| NativeView::of(view, &self.views.children);
            Ok(views.map(|views| views.into_iter().map(native).collect()))
        })
    }

    #[napi]
    pub fn stats(&self, env: &Env) -> Result<NativeStats> {
        self.cache.read(env, |cache| Ok(either!(EitherCache, cache, cache => cache.stats()).into()))
    }

    /// True if JavaScript keeps a buffer that the cache no longer has. JavaScript then drops it.
    #[napi(catch_unwind)]
    pub fn let_go(&mut self) -> bool {
        self.cache.get().is_ok_and(|cache| self.views.let_go(either!(EitherCache, cache, cache => cache.buffer_id())))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.views.children.release();
        self.cache.dispose(env, |cache| either!(EitherCache, cache, cache => cache.close()));
    }
}

/// The cache of K and V. A cache of one tensor has no transactions and is refused.
pub(crate) fn pair(cache: &EitherCache) -> Outcome<&RotatingKvCache> {
    match cache {
        EitherCache::Pair(cache) => Ok(cache),
        EitherCache::Single(_) => no_pair(),
    }
}

/// Like [`pair`], mutable.
pub(crate) fn pair_mut(cache: &mut EitherCache) -> Outcome<&mut RotatingKvCache> {
    match cache {
        EitherCache::Pair(cache) => Ok(cache),
        EitherCache::Single(_) => no_pair(),
    }
}

fn no_pair<T>() -> Outcome<T> {
    Err(kvtide_core::Error::argument("this", "a RotatingCache", "a RotatingKvCache").into())
}

pub(crate) fn handle(cache: EitherCache) -> NativeRotatingCache {
    let name = match cache {
        EitherCache::Single(_) => "RotatingCache",
        EitherCache::Pair(_) => "RotatingKvCache",
    };
    NativeRotatingCache { cache: Handle::new(name, cache), views: CacheViews::default() }
}

pub(crate) enum EitherSnapshot {
    Single(RotatingSnapshot<1>),
    Pair(RotatingSnapshot<2>),
}

/// Evaluates the same expression for either kind of cache or snapshot.
macro_rules! either {
    ($kind:ident, $value:expr, $bound:ident => $work:expr) => {
        match $value {
            $kind::Single($bound) => $work,
            $kind::Pair($bound) => $work,
        }
    };
}
pub(crate) use either;

#[napi]
pub struct NativeRotatingSnapshot {
    pub(crate) snapshot: Handle<EitherSnapshot>,
}

/// The error for a snapshot of the other kind of cache.
pub(crate) fn other_kind<T>() -> Outcome<T> {
    Err(kvtide_core::Error::SnapshotInvalid { reason: "it belongs to the other kind of rotating cache" }.into())
}

#[napi]
impl NativeRotatingSnapshot {
    #[napi]
    pub fn current_seq_len(&self, env: &Env) -> Result<f64> {
        self.snapshot
            .read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.current_seq_len()) as f64))
    }

    #[napi]
    pub fn max_seq_len(&self, env: &Env) -> Result<f64> {
        self.snapshot
            .read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.max_seq_len()).into()))
    }

    #[napi]
    pub fn retained_len(&self, env: &Env) -> Result<f64> {
        self.snapshot
            .read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.retained_len()).into()))
    }

    #[napi]
    pub fn sinks(&self, env: &Env) -> Result<f64> {
        self.snapshot.read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.sinks()).into()))
    }

    #[napi]
    pub fn dim(&self, env: &Env) -> Result<f64> {
        self.snapshot.read(env, |snapshot| Ok(either!(EitherSnapshot, snapshot, snapshot => snapshot.dim()) as f64))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.snapshot.dispose(env, |_| ());
    }
}
