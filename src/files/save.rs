//! Saves: begun and read on the cache's thread, written on a thread of Node's pool.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_files::{Save, Sink};
use kvtide_tensor::Error;
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use super::watch::NativeWatch;
use crate::border::argument::whole;
use crate::border::external_array::ExternalArray;
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;
use crate::sequences::cache::NativePagedKvCache;

#[napi]
pub struct NativeSave {
    state: Arc<Mutex<State>>,
}

enum State {
    Begun(Box<Save>),
    /// The bytes, if the save was to memory.
    Finished(Vec<u8>),
    Ended,
}

impl NativeSave {
    pub(super) fn new(save: Save) -> Self {
        NativeSave { state: Arc::new(Mutex::new(State::Begun(save.into()))) }
    }

    /// Takes the save out, so that no other call uses it meanwhile.
    fn take(state: &Mutex<State>) -> State {
        std::mem::replace(&mut state.lock().unwrap_or_else(PoisonError::into_inner), State::Ended)
    }

    fn put(state: &Mutex<State>, to: State) {
        *state.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    fn begun(state: &Mutex<State>) -> Outcome<Box<Save>> {
        match NativeSave::take(state) {
            State::Begun(save) => Ok(save),
            _ => Err(Error::Disposed { object: "save" }.into()),
        }
    }
}

#[napi]
impl NativePagedKvCache {
    /// Notes the cached blocks.
    #[napi]
    pub fn begin_save(&mut self, env: &Env) -> Result<NativeSave> {
        self.cache.change(env, |cache| Ok(NativeSave::new(Save::cache(cache)?)))
    }

    /// Holds the blocks of a sequence; `ids` are those of its tokens and of others that are to follow.
    #[napi]
    pub fn begin_save_of(&mut self, env: &Env, sequence: f64, ids: Option<&[u32]>) -> Result<NativeSave> {
        self.cache.change(env, |cache| Ok(NativeSave::new(Save::sequence(cache, whole("seq", sequence)?, ids)?)))
    }
}

#[napi]
impl NativeSave {
    /// Writes the pages into a temporary file next to `path`, or into memory.
    #[napi(catch_unwind, ts_return_type = "Promise<void>")]
    pub fn write(&self, path: Option<String>, watch: &NativeWatch) -> AsyncTask<PoolTask<(), ()>> {
        let (state, watch) = (self.state.clone(), watch.shared());
        let write = move || {
            let mut save = NativeSave::begun(&state)?;
            let sink = path.map_or_else(|| Ok(Sink::memory()), |path| Sink::file(Path::new(&path)))?;
            save.write(sink, &watch)?;
            NativeSave::put(&state, State::Begun(save));
            Ok(())
        };
        PoolTask::of(write, |()| ())
    }

    /// Looks up the blocks that were evicted meanwhile.
    #[napi]
    pub fn leave_out(&self, env: &Env, cache: &NativePagedKvCache) -> Result<()> {
        guard(env, || {
            let mut save = NativeSave::begun(&self.state)?;
            save.leave_out(cache.cache.get()?)?;
            NativeSave::put(&self.state, State::Begun(save));
            Ok(())
        })
    }

    /// Moves the file to its final path, and returns its length in bytes.
    #[napi(catch_unwind, ts_return_type = "Promise<number>")]
    pub fn finish(&self) -> AsyncTask<PoolTask<f64, f64>> {
        let state = self.state.clone();
        let finish = move || {
            let (bytes, memory) = NativeSave::begun(&state)?.finish()?;
            NativeSave::put(&state, State::Finished(memory));
            Ok(bytes as f64)
        };
        PoolTask::of(finish, |bytes| bytes)
    }

    /// Returns the saved bytes, if the save was to memory.
    #[napi(ts_return_type = "Uint8Array")]
    pub fn take_bytes(&self, env: &Env) -> Result<ExternalArray> {
        guard(env, || match NativeSave::take(&self.state) {
            State::Finished(bytes) => Ok(ExternalArray::bytes(bytes)),
            _ => Err(Error::Disposed { object: "save" }.into()),
        })
    }

    /// Ends the save; an unfinished one leaves no file behind.
    #[napi(catch_unwind)]
    pub fn dispose(&self) {
        drop(NativeSave::take(&self.state));
    }
}
