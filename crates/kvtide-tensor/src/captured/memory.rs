//! What a captured step holds on its device: lengths, and the tables of each group, for all steps that there may be.
//!
//! ```text
//! lengths   [ before the step | with its token ]    one 32-bit number for each sequence, moved on by the last launch of a step
//! tables    a row of blocks for each sequence       as long as the longest can become
//! ```

use std::sync::Arc;

use candle_core::{Device, Tensor};
use kvtide_core::paged::Window;

use super::{CaptureOptions, LayerAt};
use crate::base::error::Result;
use crate::base::memory::{Budget, Lease};
use crate::paged::PageGroup;
use crate::paged::{GroupStep, Slab};

/// Numbers of a step on its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepNumbers<'a> {
    pub lengths: &'a Tensor,
    pub tables: &'a Tensor,
    pub sequences: usize,
    /// Entries of a row of tables.
    pub row_blocks: usize,
    /// The most tokens that a sequence can have.
    pub keys_max: usize,
}

/// What launches read and write.
#[derive(Debug)]
pub(super) struct StepMemory {
    pub groups: Vec<Group>,
    pub layers: Vec<LayerAt>,
    pub lengths: Tensor,
    pub sequences: usize,
    pub keys_max: usize,
    _leases: Vec<Lease>,
}

/// A group of layers.
#[derive(Debug)]
pub(super) struct Group {
    pub slab: Arc<Slab>,
    pub tables: Tensor,
    pub row_blocks: usize,
    pub window: Option<Window>,
    pub layers: usize,
    /// What K and V are to be.
    pub expected: [crate::paged::Expected; 2],
}

impl StepMemory {
    /// Puts the numbers of an open step on its device.
    pub fn new(
        groups: &[PageGroup],
        steps: &[GroupStep],
        layers: Vec<LayerAt>,
        options: &CaptureOptions<'_>,
    ) -> Result<Self> {
        let before: Vec<u32> = options.sequences.iter().map(|&of| groups[0].sequence_length(of)).collect();
        let keys_max = before.iter().max().unwrap_or(&0) + options.steps;
        let lengths: Vec<u32> = before.iter().copied().chain(before.iter().map(|length| length + 1)).collect();
        let mut leases = Vec::new();
        let sequences = before.len();
        let mut put = |numbers: Vec<u32>, rows: usize, of: &PageGroup| {
            leases.push(of.budget.take(4 * numbers.len() as u64)?);
            let columns = numbers.len() / rows;
            numbers_on(of.slab.tensor.device(), numbers, (rows, columns), &of.budget)
        };
        let lengths = put(lengths, 2, &groups[0])?;
        let mut all = Vec::with_capacity(groups.len());
        for (group, step) in groups.iter().zip(steps) {
            let row_blocks = keys_max.div_ceil(group.block_size());
            let tables = group.horizon_tables(step, row_blocks)?;
            all.push(Group {
                slab: group.slab.clone(),
                tables: put(tables, sequences, group)?,
                row_blocks: row_blocks as usize,
                window: group.planner.window(),
                layers: group.planner.num_layers() as usize,
                expected: group.expected_rows(),
            });
        }
        Ok(StepMemory { groups: all, layers, lengths, sequences, keys_max: keys_max as usize, _leases: leases })
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

fn numbers_on(device: &Device, numbers: Vec<u32>, shape: (usize, usize), budget: &Arc<Budget>) -> Result<Tensor> {
    let bytes = 4 * numbers.len() as u64;
    Tensor::from_vec(numbers, shape, device).map_err(|_| budget.refusal(bytes))
}
