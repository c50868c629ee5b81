//! What a captured step holds on its device: lengths, and the tables of each group, for all steps that there may be.
//!
//! ```text
//! lengths   [ before the step | with its token ]    one 32-bit number for each sequence, moved on by the last launch of a step
//! tables    a row of blocks for each sequence       as long as the longest can become
//! ```

use std::sync::Arc;

use kvtide_core::paged::{KeyOrValue, StepTableRows, StepTables, Window};

use crate::base::error::Result;
use crate::base::memory::{Budget, Lease};
use crate::base::zeroed::zeroed_vec;
use crate::device::memory::{DeviceTensor, numbers};
use crate::paged::{Expected, PageGroup, Slab, StepNumbers};
use crate::sequences::{PagedKvCache, PagedStep, Rules};

/// What launches read and write.
#[derive(Debug)]
pub(super) struct StepMemory {
    pub groups: Vec<GroupMemory>,
    pub layers: Vec<LayerAt>,
    pub lengths: DeviceTensor,
    pub sequences: usize,
    pub keys_max: usize,
    _leases: Vec<Lease>,
}

/// The memory of a group of layers.
#[derive(Debug)]
pub(super) struct GroupMemory {
    pub slab: Arc<Slab>,
    pub tables: DeviceTensor,
    pub row_blocks: usize,
    pub window: Option<Window>,
    pub layers: usize,
    /// What K and V are to be.
    pub expected: [Expected; 2],
}

/// Where a layer's rows are, and what the model says of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerAt {
    pub group: usize,
    pub index: u32,
    /// Whether it is written: else it reads another layer's rows.
    pub is_own: bool,
    pub rules: Rules,
}

impl StepMemory {
    /// Puts the numbers of an open step, of `steps` tokens for each sequence, on its device.
    pub fn new(cache: &PagedKvCache, step: &PagedStep, steps: u32) -> Result<Self> {
        let before: Vec<u32> = step.sequences().iter().map(|&of| cache.sequence_length(of)).collect();
        let keys_max = before.iter().max().unwrap_or(&0) + steps;
        let lengths: Vec<u32> = before.iter().copied().chain(before.iter().map(|length| length + 1)).collect();
        let sequences = before.len();
        let mut leases = Vec::new();
        let mut put = |of_step: Vec<u32>, rows: usize, of: &PageGroup| {
            leases.push(of.budget().take(4 * of_step.len() as u64)?);
            let columns = of_step.len() / rows;
            numbers(of_step, (rows, columns), of.budget())
        };
        let lengths = put(lengths, 2, &cache.groups()[0])?;
        let row_blocks = keys_max.div_ceil(cache.block_size());
        let tables = block_tables(cache, step, row_blocks)?;
        let of_group = |(group, tables): (&PageGroup, Vec<u32>)| {
            Ok(GroupMemory {
                slab: group.slab().clone(),
                tables: put(tables, sequences, group)?,
                row_blocks: row_blocks as usize,
                window: group.planner().window(),
                layers: group.planner().num_layers() as usize,
                expected: KeyOrValue::BOTH.map(|part| group.expected(part, None)),
            })
        };
        let groups = cache.groups().iter().zip(tables).map(of_group).collect::<Result<_>>()?;
        let layers = (0..cache.model().layers().len() as u32).map(|layer| LayerAt::new(cache, layer));
        let layers = layers.collect::<Result<_>>()?;
        Ok(StepMemory { groups, layers, lengths, sequences, keys_max: keys_max as usize, _leases: leases })
    }

    /// The numbers of a group.
    pub fn numbers(&self, group: usize) -> StepNumbers<'_> {
        StepNumbers {
            lengths: &self.lengths,
            tables: &self.groups[group].tables,
            sequences: self.sequences,
            row_blocks: self.groups[group].row_blocks,
            keys_max: self.keys_max,
        }
    }
}

impl LayerAt {
    fn new(cache: &PagedKvCache, layer: u32) -> Result<Self> {
        let place = cache.place(layer)?;
        let (is_own, rules) = (cache.shared(layer).is_none(), Rules::of(cache.model(), layer));
        Ok(LayerAt { group: place.group as usize, index: place.index, is_own, rules })
    }
}

/// The blocks of each sequence of a step, `width` in a row, for each group.
fn block_tables(cache: &PagedKvCache, step: &PagedStep, width: u32) -> Result<Vec<Vec<u32>>> {
    let (sequences, tokens) = (step.sequences().len(), step.tokens() as usize);
    let memory = |count: usize| zeroed_vec::<i32>(count).ok_or_else(|| Budget::process().refusal(4 * count as u64));
    let (mut arrays, mut rows) = (Vec::new(), Vec::new());
    for _ in cache.groups() {
        let tables = memory(sequences * width as usize)?;
        arrays.push([tables, memory(tokens)?, memory(tokens)?, memory(sequences)?, memory(sequences + 1)?]);
        rows.push(StepTableRows::new(width)?);
    }
    let tables = arrays.iter_mut().map(|[block_tables, slot_mapping, positions, lengths, query_offsets]| StepTables {
        block_tables,
        slot_mapping,
        positions,
        lengths,
        query_offsets,
    });
    cache.fill_tables(step, &mut rows, tables.collect())?;
    Ok(arrays.into_iter().map(|[tables, ..]| tables.into_iter().map(|block| block as u32).collect()).collect())
}
