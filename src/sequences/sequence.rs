//! Sequences, by number, and their snapshots.

use kvtide_core::{Error, TransactionId};
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{PagedSnapshot, Tokens};
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use super::step::SequenceBatch;
use crate::border::argument::{count, whole};
use crate::border::handle::Handle;
use crate::border::refusal::Outcome;
use crate::border::tensor::{TensorArg, source};
use crate::contiguous::transaction::id;

#[napi]
pub struct NativePagedSnapshot {
    snapshot: Handle<PagedSnapshot>,
}

#[napi]
impl NativePagedSnapshot {
    #[napi]
    pub fn length(&self, env: &Env) -> Result<f64> {
        self.snapshot.read(env, |snapshot| Ok(snapshot.length().into()))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.snapshot.dispose(env, |_| ());
    }
}

#[napi]
impl NativePagedKvCache {
    #[napi]
    pub fn drop_sequence(&mut self, env: &Env, sequence: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.drop_sequence(whole("seq", sequence)?)?))
    }

    /// Ends a sequence, now or at the cache's next change. Does nothing if the sequence or the cache has ended already.
    #[napi]
    pub fn release_sequence(&mut self, env: &Env, sequence: f64) -> Result<()> {
        if self.cache.get().is_err() {
            return Ok(());
        }
        self.cache.change(env, |cache| {
            cache.release_sequence(whole("seq", sequence)?);
            Ok(())
        })
    }

    /// Returns an error if the sequence does not exist.
    #[napi]
    pub fn check_sequence(&mut self, env: &Env, sequence: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.sequence(whole("seq", sequence)?).map(drop)?))
    }

    /// Truncates a sequence to its longest common prefix with these tokens. Returns the length of that prefix.
    #[napi]
    pub fn resume(&mut self, env: &Env, sequence: f64, tokens: &[u32]) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.resume(whole("seq", sequence)?, tokens)?.into()))
    }

    /// Records the ids of the sequence's first tokens. Returns the number of tokens whose ids are known.
    #[napi]
    pub fn identify(&mut self, env: &Env, sequence: f64, tokens: &[u32]) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.identify(whole("seq", sequence)?, tokens)?.into()))
    }

    #[napi]
    pub fn sequence_length(&self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.sequence_length(whole("seq", sequence)?).into()))
    }

    #[napi]
    pub fn committed_length(&self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.read(env, |cache| Ok(cache.committed_length(whole("seq", sequence)?).into()))
    }

    #[napi]
    pub fn retained_length(&mut self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.retained_length(whole("seq", sequence)?).into()))
    }

    #[napi]
    pub fn sequence_capacity(&mut self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.sequence_capacity(whole("seq", sequence)?) as f64))
    }

    #[napi]
    pub fn sequence_ids(&self, env: &Env) -> Result<Vec<f64>> {
        self.cache.read(env, |cache| Ok(cache.sequence_ids().into_iter().map(|id| id as f64).collect()))
    }

    /// Appends tokens to one sequence, or drafts them. One tensor has K and another has V of all layers; `tokens` are
    /// their ids.
    #[napi]
    pub fn append_to(
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
            let kv = Tokens::of_all(source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
            let (sequence, draft) = place(at)?;
            Ok(cache.append_to(sequence, draft, Tokens { parents, ids: tokens, ..kv })?)
        })
    }

    /// Like `appendTo`, with one K and one V tensor per layer that has its own, in order.
    #[napi]
    pub fn append_layers(
        &mut self,
        env: &Env,
        at: &[f64],
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
            let (sequence, draft) = place(at)?;
            Ok(cache.append_to(sequence, draft, Tokens { parents, ids: tokens, ..Tokens::of_layers(layers) })?)
        })
    }

    /// Appends tokens to several sequences. `batch` contains the number of sequences, their ids, and then the offsets,
    /// if any; `tokens` are the ids of the tokens.
    #[napi]
    pub fn append(
        &mut self,
        env: &Env,
        batch: &[f64],
        numbers: f64,
        k: TensorArg,
        v: TensorArg,
        meta: &[f64],
        tokens: Option<&[u32]>,
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let batch = SequenceBatch::read(batch, numbers)?;
            let (k, v) = (source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
            Ok(cache.append_known(&batch.sequences, k, v, batch.offsets.as_deref(), tokens)?)
        })
    }

    #[napi]
    pub fn truncate(&mut self, env: &Env, sequence: f64, len: f64) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.truncate(whole("seq", sequence)?, count("len", len)?)?))
    }

    #[napi]
    pub fn fork(&mut self, env: &Env, sequence: f64) -> Result<f64> {
        self.cache.change(env, |cache| Ok(cache.fork(whole("seq", sequence)?)? as f64))
    }

    #[napi]
    pub fn snapshot(&mut self, env: &Env, sequence: f64) -> Result<NativePagedSnapshot> {
        let snapshot = self.cache.change(env, |cache| Ok(cache.snapshot(whole("seq", sequence)?)?))?;
        Ok(NativePagedSnapshot { snapshot: Handle::new("Snapshot", snapshot) })
    }

    #[napi]
    pub fn restore(&mut self, env: &Env, sequence: f64, snapshot: &NativePagedSnapshot) -> Result<()> {
        self.cache.change(env, |cache| Ok(cache.restore(whole("seq", sequence)?, snapshot.snapshot.get()?)?))
    }
}

/// A sequence, and the transaction that receives the drafted tokens, if any.
fn place(at: &[f64]) -> Outcome<(u64, Option<TransactionId>)> {
    match *at {
        [sequence] => Ok((whole("seq", sequence)?, None)),
        [sequence, draft] => Ok((whole("seq", sequence)?, Some(id(draft)?))),
        _ => Err(Error::argument("at", at.len(), "a sequence, or a sequence and a transaction").into()),
    }
}
