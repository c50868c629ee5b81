//! Steps: slots in all layers, which are written and attended to layer by layer.
//!
//! `prepare_step` begins a step and fills the tables in JavaScript's arrays, in one call:
//!
//! ```text
//! blockTables  slotMapping  positions  lengths  queryOffsets      for one group of layers after the other
//! ```
//!
//! If a step has fewer rows than the arrays, the remaining rows have no tokens, so the arrays can be passed to
//! attention as they are. O(tokens + rows + blocks added); see `kvtide_core::paged::StepTableRows`.

use kvtide_core::Error;
use kvtide_core::paged::{StepTableRows, StepTables};
use kvtide_tensor::{PagedStep, StepTokens};
use napi::bindgen_prelude::Int32Array;
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use crate::border::argument::{ArrayArg, apart, count, whole};
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::border::tensor::{TensorArg, source};

/// A step; `None` inside once it has ended.
#[napi]
pub struct NativePagedStep {
    step: Option<PagedStep>,
}

impl NativePagedStep {
    pub(crate) fn of(step: PagedStep) -> Self {
        NativePagedStep { step: Some(step) }
    }

    /// The open step. Returns an error if it has ended.
    pub(super) fn get(&self) -> Outcome<&PagedStep> {
        Ok(self.step.as_ref().ok_or(Error::StepClosed)?)
    }

    /// Like [`NativePagedStep::get`], mutable.
    pub(super) fn get_mut(&mut self) -> Outcome<&mut PagedStep> {
        Ok(self.step.as_mut().ok_or(Error::StepClosed)?)
    }
}

#[napi]
impl NativePagedKvCache {
    /// Begins a step. `batch` has the form of an append's.
    #[napi]
    pub fn begin_step(
        &mut self,
        env: &Env,
        batch: &[f64],
        numbers: f64,
        parents: Option<&[i32]>,
    ) -> Result<NativePagedStep> {
        self.cache.change(env, |cache| {
            let batch = SequenceBatch::read(batch, numbers)?;
            Ok(NativePagedStep::of(cache.begin_step(batch.step(parents))?))
        })
    }

    #[napi]
    pub fn write_layer(
        &mut self,
        env: &Env,
        step: &mut NativePagedStep,
        layer: f64,
        k: TensorArg,
        v: TensorArg,
        meta: &[f64],
    ) -> Result<()> {
        self.cache.change(env, |cache| {
            let step = step.get_mut()?;
            let (k, v) = (source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
            Ok(cache.write_layer(step, count("layer", layer)?, k, v)?)
        })
    }

    /// Writes the states of a sequence, by its index in the step, after the step's tokens.
    #[napi]
    pub fn write_states(&mut self, env: &Env, step: &mut NativePagedStep, index: f64, bytes: ArrayArg) -> Result<()> {
        self.cache.change(env, |cache| {
            let (index, bytes) = (count("index", index)? as usize, bytes.memory("bytes")?);
            Ok(cache.write_states(step.get_mut()?, index, bytes.bytes())?)
        })
    }

    /// Copies the states that a sequence of the step had before it.
    #[napi]
    pub fn read_states(&self, env: &Env, step: &NativePagedStep, index: f64, out: ArrayArg) -> Result<()> {
        self.cache.read(env, |cache| {
            let (index, out) = (count("index", index)? as usize, out.memory("out")?);
            Ok(cache.read_states_into(step.get()?, index, out.bytes_mut())?)
        })
    }

    /// The position of each token of the step.
    #[napi]
    pub fn step_positions(&self, env: &Env, step: &NativePagedStep) -> Result<Int32Array> {
        self.cache.read(env, |cache| Ok(cache.step_positions(step.get()?)?.into()))
    }

    /// Returns an error if the step has ended, or if one of its sequences was dropped.
    #[napi]
    pub fn check_step(&self, env: &Env, step: &NativePagedStep) -> Result<()> {
        self.cache.read(env, |cache| Ok(cache.check_step(step.get()?)?))
    }

    #[napi]
    pub fn commit_step(&mut self, env: &Env, step: &mut NativePagedStep, tokens: Option<&[u32]>) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.commit_step(step.get_mut()?, tokens)?;
            step.step = None;
            Ok(())
        })
    }

    #[napi]
    pub fn undo_step(&mut self, env: &Env, step: &mut NativePagedStep) -> Result<()> {
        self.cache.change(env, |cache| {
            cache.undo_step(step.get_mut()?)?;
            step.step = None;
            Ok(())
        })
    }

    /// Undoes a step if it is open. Never fails.
    #[napi]
    pub fn release_step(&mut self, env: &Env, step: &mut NativePagedStep) -> Result<()> {
        let Some(step) = step.step.take() else { return Ok(()) };
        if self.cache.get().is_err() {
            return Ok(());
        }
        self.cache.change(env, |cache| {
            cache.release_step(step);
            Ok(())
        })
    }
}

pub(crate) struct SequenceBatch {
    pub sequences: Vec<u64>,
    /// The offset at which the tokens of each sequence begin, and the end of the last one; `None` if each gets one
    /// token.
    pub offsets: Option<Vec<u32>>,
}

impl SequenceBatch {
    /// Reads a batch of `numbers` numbers: the number of sequences, their ids, and their offsets.
    pub fn read(batch: &[f64], numbers: f64) -> Outcome<Self> {
        let refused = || Error::argument("sequences", batch.len(), "at least as many numbers as the call declares");
        let batch = batch.get(..count("sequences", numbers)? as usize).ok_or_else(refused)?;
        let (&sequences, rest) = batch.split_first().ok_or_else(refused)?;
        let (ids, offsets) = rest.split_at_checked(count("sequences", sequences)? as usize).ok_or_else(refused)?;
        let sequences = ids.iter().map(|&id| whole("sequences", id)).collect::<Outcome<_>>()?;
        let offsets = offsets.iter().map(|&offset| count("offsets", offset)).collect::<Outcome<Vec<_>>>()?;
        Ok(SequenceBatch { sequences, offsets: (!offsets.is_empty()).then_some(offsets) })
    }

    pub fn step<'a>(&'a self, parents: Option<&'a [i32]>) -> StepTokens<'a> {
        StepTokens { sequences: &self.sequences, offsets: self.offsets.as_deref(), parents }
    }
}

const NAMES: [&str; 5] = ["blockTables", "slotMapping", "positions", "lengths", "queryOffsets"];

/// The rows written by the last call, for each group of layers.
#[napi]
pub struct NativeStepBatch {
    groups: Vec<StepTableRows>,
}

#[napi]
impl NativeStepBatch {
    #[napi(constructor)]
    pub fn new(env: &Env, width: f64, groups: f64) -> Result<Self> {
        guard(env, || {
            let width = count("maxBlocks", width)?;
            let groups = (0..count("groups", groups)?).map(|_| Ok(StepTableRows::new(width)?));
            Ok(NativeStepBatch { groups: groups.collect::<Outcome<_>>()? })
        })
    }

    /// Makes the next call write every row again.
    #[napi(catch_unwind)]
    pub fn forget(&mut self) {
        self.groups.iter_mut().for_each(StepTableRows::forget);
    }
}

struct GroupArrays([&'static mut [i32]; 5]);

impl GroupArrays {
    /// The arrays of each group. Returns an error if two arrays overlap.
    fn read(arrays: &[ArrayArg]) -> Outcome<Vec<Self>> {
        let named: Vec<_> = arrays.iter().zip(NAMES.into_iter().cycle()).map(|(array, name)| (name, *array)).collect();
        let mut memory = apart(&named)?.into_iter().zip(&named);
        let mut groups = Vec::with_capacity(arrays.len() / NAMES.len());
        for _ in 0..arrays.len() / NAMES.len() {
            let mut tables: [&mut [i32]; 5] = Default::default();
            for (table, (memory, (name, _))) in tables.iter_mut().zip(memory.by_ref()) {
                let refused = |_| Error::argument(name, "an array that is not aligned", "an Int32Array");
                *table = bytemuck::try_cast_slice_mut(memory.bytes_mut()).map_err(refused)?;
            }
            groups.push(GroupArrays(tables));
        }
        Ok(groups)
    }

    fn borrow(&mut self) -> StepTables<'_> {
        let [block_tables, slot_mapping, positions, lengths, query_offsets] = &mut self.0;
        StepTables { block_tables, slot_mapping, positions, lengths, query_offsets }
    }

    /// Gives the remaining rows no tokens.
    fn end(&mut self, sequences: usize, tokens: u32) {
        let [.., lengths, query_offsets] = &mut self.0;
        lengths[sequences..].fill(0);
        query_offsets[sequences + 1..].fill(tokens as i32);
    }
}

#[napi]
impl NativePagedKvCache {
    /// Like `begin_step`, and also writes the tables of each group. If that fails, no step has begun.
    #[napi]
    pub fn prepare_step(
        &mut self,
        env: &Env,
        batch: &[f64],
        numbers: f64,
        parents: Option<&[i32]>,
        rows: &mut NativeStepBatch,
        arrays: Vec<ArrayArg>,
    ) -> Result<NativePagedStep> {
        self.cache.change(env, |cache| {
            let batch = SequenceBatch::read(batch, numbers)?;
            let mut groups = GroupArrays::read(&arrays)?;
            let tables = groups.iter_mut().map(GroupArrays::borrow).collect();
            let step = cache.prepare_step(batch.step(parents), &mut rows.groups, tables)?;
            groups.iter_mut().for_each(|arrays| arrays.end(batch.sequences.len(), step.tokens()));
            Ok(NativePagedStep::of(step))
        })
    }
}
