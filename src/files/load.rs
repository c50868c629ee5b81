//! Loads of files: a file is opened and read on a thread of Node's pool, and its pages are taken over on the
//! cache's thread.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_core::paged::PageLayout;
use kvtide_files::{CacheFile, CacheLoad, SequenceFile, Source};
use kvtide_tensor::Error;
use kvtide_tensor::pages::NewBlocks;
use napi::bindgen_prelude::{AsyncTask, Uint32Array};
use napi::{Env, Result};
use napi_derive::napi;

use super::watch::NativeWatch;
use crate::border::argument::{ArrayArg, whole};
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;
use crate::sequences::cache::NativePagedKvCache;
use crate::sequences::prefix::{NativeExtra, Prompt};

/// The source of a load: a file, or JavaScript memory, which is copied.
#[napi]
pub struct NativeSource {
    source: Origin,
}

#[derive(Clone)]
pub(super) enum Origin {
    Path(String),
    Bytes(Arc<Vec<u8>>),
}

#[napi]
impl NativeSource {
    #[napi(catch_unwind, factory)]
    pub fn file(path: String) -> Self {
        NativeSource { source: Origin::Path(path) }
    }

    #[napi(factory)]
    pub fn memory(env: &Env, bytes: ArrayArg) -> Result<Self> {
        guard(env, || {
            let bytes = bytes.memory("source")?.bytes();
            let mut copy = Vec::new();
            let refused = |_| kvtide_tensor::runtime::Budget::process().refusal(bytes.len() as u64);
            copy.try_reserve_exact(bytes.len()).map_err(refused)?;
            copy.extend_from_slice(bytes);
            Ok(NativeSource { source: Origin::Bytes(copy.into()) })
        })
    }

    #[napi(catch_unwind, ts_return_type = "Promise<NativeCacheFile>")]
    pub fn open_cache(&self) -> AsyncTask<PoolTask<CacheFile, NativeCacheFile>> {
        let source = self.source.clone();
        PoolTask::of(move || Ok(CacheFile::open(source.open()?)?), NativeCacheFile::new)
    }

    #[napi(catch_unwind, ts_return_type = "Promise<NativeSequenceFile>")]
    pub fn open_sequence(&self) -> AsyncTask<PoolTask<SequenceFile, NativeSequenceFile>> {
        let source = self.source.clone();
        PoolTask::of(move || Ok(SequenceFile::open(source.open()?)?), NativeSequenceFile::new)
    }
}

impl NativeSource {
    pub(super) fn origin(&self) -> Origin {
        self.source.clone()
    }
}

impl Origin {
    pub(super) fn open(self) -> Outcome<Source> {
        match self {
            Origin::Path(path) => Ok(Source::file(Path::new(&path))?),
            Origin::Bytes(bytes) => Ok(Source::bytes(bytes)),
        }
    }
}

/// A load that waits for its next call; it is taken out while a call uses it.
type Waiting<T> = Arc<Mutex<Option<T>>>;

fn take<T>(waiting: &Waiting<T>) -> Outcome<T> {
    let taken = waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.ok_or_else(|| Error::Disposed { object: "load" }.into())
}

fn opened<T>(file: T) -> Waiting<Arc<T>> {
    Arc::new(Mutex::new(Some(Arc::new(file))))
}

/// The open file of a load.
fn shared<T>(file: &Waiting<Arc<T>>) -> Outcome<Arc<T>> {
    let file = file.lock().unwrap_or_else(PoisonError::into_inner).clone();
    file.ok_or_else(|| Error::Disposed { object: "load" }.into())
}

fn put<T>(waiting: &Waiting<T>, value: T) {
    *waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
}

/// Runs work with the load, which ends unless the work fails.
fn with<T, R>(waiting: &Waiting<T>, work: impl FnOnce(&T) -> Outcome<R>) -> Outcome<R> {
    let taken = take(waiting)?;
    let done = work(&taken);
    if done.is_err() {
        put(waiting, taken);
    }
    done
}

/// The file of a cache, and the blocks into which its pages are read.
#[napi]
pub struct NativeCacheFile {
    /// Closed by `dispose`: a process has a limited number of open files.
    file: Waiting<Arc<CacheFile>>,
    load: Waiting<CacheLoad>,
}

impl NativeCacheFile {
    fn new(file: CacheFile) -> Self {
        NativeCacheFile { file: opened(file), load: Arc::default() }
    }
}

#[napi]
impl NativeCacheFile {
    /// Returns the options to create a cache like the saved one, as JSON.
    #[napi]
    pub fn description(&self, env: &Env) -> Result<String> {
        guard(env, || Ok(shared(&self.file)?.description()))
    }

    /// Returns the number of blocks to load in the group with the most. `since` is how often prefixes had been
    /// forgotten when the load was requested.
    #[napi]
    pub fn begin(&self, env: &Env, cache: &mut NativePagedKvCache, since: f64) -> Result<f64> {
        cache.cache.change(env, |cache| {
            let load = shared(&self.file)?.begin(cache)?.since(whole("since", since)?);
            let blocks = load.blocks();
            put(&self.load, load);
            Ok(blocks.into())
        })
    }

    #[napi(catch_unwind, ts_return_type = "Promise<void>")]
    pub fn read(&self, watch: &NativeWatch) -> AsyncTask<PoolTask<(), ()>> {
        let (file, load, watch) = (self.file.clone(), self.load.clone(), watch.shared());
        let read = move || {
            let begun = take(&load)?;
            shared(&file)?.read(&begun, &watch)?;
            put(&load, begun);
            Ok(())
        };
        PoolTask::of(read, |()| ())
    }

    /// Returns true if prompts find the blocks: false if prefixes were forgotten since.
    #[napi]
    pub fn end(&self, env: &Env, cache: &mut NativePagedKvCache) -> Result<bool> {
        cache.cache.change(env, |cache| with(&self.load, |load| Ok(shared(&self.file)?.end(cache, load)?)))
    }

    /// Ends the load, frees its blocks, and closes the file.
    #[napi(catch_unwind)]
    pub fn dispose(&self) {
        let _ = (take(&self.load), take(&self.file));
    }
}

/// The file of a sequence, and the blocks into which its pages are read.
#[napi]
pub struct NativeSequenceFile {
    /// Closed by `dispose`: a process has a limited number of open files.
    file: Waiting<Arc<SequenceFile>>,
    layouts: Waiting<Vec<PageLayout>>,
    new: Waiting<NewBlocks>,
}

impl NativeSequenceFile {
    fn new(file: SequenceFile) -> Self {
        NativeSequenceFile { file: opened(file), layouts: Arc::default(), new: Arc::default() }
    }
}

#[napi]
impl NativeSequenceFile {
    /// Returns the ids of all tokens, and of those that are to follow, if they are known.
    #[napi]
    pub fn ids(&self, env: &Env) -> Result<Option<Uint32Array>> {
        guard(env, || Ok(shared(&self.file)?.ids().map(|ids| Uint32Array::new(ids.to_vec()))))
    }

    /// Refuses a cache of another identity. Returns true if cached blocks would be evicted for the sequence: then the
    /// file is verified first.
    #[napi]
    pub fn check(
        &self,
        env: &Env,
        cache: &mut NativePagedKvCache,
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<bool> {
        cache.cache.change(env, |cache| {
            let file = shared(&self.file)?;
            file.check(cache, Prompt::read(salt, salt_from, extra)?.options())?;
            put(&self.layouts, cache.layouts().collect());
            Ok(file.evicts(cache))
        })
    }

    #[napi(catch_unwind, ts_return_type = "Promise<void>")]
    pub fn verify(&self, watch: &NativeWatch) -> AsyncTask<PoolTask<(), ()>> {
        let (file, layouts, watch) = (self.file.clone(), self.layouts.clone(), watch.shared());
        let verify = move || {
            let own = take(&layouts)?;
            shared(&file)?.verify_pages(&own, &watch)?;
            put(&layouts, own);
            Ok(())
        };
        PoolTask::of(verify, |()| ())
    }

    /// Takes blocks for the sequence. `since` is how often prefixes had been forgotten when the load was requested: if
    /// they were forgotten since, prompts do not find the sequence.
    #[napi]
    pub fn begin(&self, env: &Env, cache: &mut NativePagedKvCache, since: f64) -> Result<()> {
        cache.cache.change(env, |cache| {
            put(&self.new, shared(&self.file)?.begin(cache)?.since(whole("since", since)?));
            Ok(())
        })
    }

    #[napi(catch_unwind, ts_return_type = "Promise<void>")]
    pub fn read(&self, watch: &NativeWatch) -> AsyncTask<PoolTask<(), ()>> {
        let (file, layouts, new, watch) = (self.file.clone(), self.layouts.clone(), self.new.clone(), watch.shared());
        let read = move || {
            let (own, begun) = (take(&layouts)?, take(&new)?);
            shared(&file)?.read_pages(&own, &begun, &watch)?;
            put(&new, begun);
            Ok(())
        };
        PoolTask::of(read, |()| ())
    }

    /// Returns the number of the new sequence.
    #[napi]
    pub fn end(
        &self,
        env: &Env,
        cache: &mut NativePagedKvCache,
        salt: &[u8],
        salt_from: f64,
        extra: Option<Vec<NativeExtra>>,
    ) -> Result<f64> {
        cache.cache.change(env, |cache| {
            let prompt = Prompt::read(salt, salt_from, extra)?;
            with(&self.new, |new| Ok(shared(&self.file)?.end(cache, new, prompt.options())? as f64))
        })
    }

    /// Ends the load, frees its blocks, and closes the file.
    #[napi(catch_unwind)]
    pub fn dispose(&self) {
        let _ = (take(&self.new), take(&self.file));
    }
}
