//! A step that begins and is written down in arrays of JavaScript's, in one call: block tables, slots, positions, lengths and offsets.
//!
//! ```text
//! arrays    blockTables  slotMapping  positions  lengths  queryOffsets      of one group of layers after the other
//! ```
//!
//! Rows behind those of a short step have no tokens, so that the arrays can be handed to attention as they are. O(tokens + rows +
//! blocks added); see `kvtide_core::paged::StepTableRows`.

use kvtide_core::Error;
use kvtide_core::paged::{StepTableRows, StepTables};
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use super::sequence_batch::SequenceBatch;
use super::step::NativePagedStep;
use crate::border::array::{ArrayArg, apart};
use crate::border::handle::guard;
use crate::border::number::count;
use crate::border::refusal::Outcome;

const NAMES: [&str; 5] = ["blockTables", "slotMapping", "positions", "lengths", "queryOffsets"];

/// What is known of the rows that were written, for each group of layers.
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

    /// The next call writes every row anew.
    #[napi]
    pub fn forget(&mut self) {
        self.groups.iter_mut().for_each(StepTableRows::forget);
    }
}

/// The arrays of one group.
struct GroupArrays([&'static mut [i32]; 5]);

impl GroupArrays {
    /// Those of each group; refused when two arrays share memory.
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

    /// Gives the rows behind those of the step no tokens.
    fn end(&mut self, sequences: usize, tokens: u32) {
        let [.., lengths, query_offsets] = &mut self.0;
        lengths[sequences..].fill(0);
        query_offsets[sequences + 1..].fill(tokens as i32);
    }
}

#[napi]
impl NativePagedKvCache {
    /// As `begin_step`, and writes it down for each group; where that is refused, nothing has begun.
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
