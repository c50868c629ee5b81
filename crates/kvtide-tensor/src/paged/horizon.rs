//! Steps for as many tokens as may come: slots are taken ahead, so that a device writes one token after the other without asking.
//!
//! ```text
//! cache.begin_step(..)?                  of n tokens for each sequence; their blocks are taken, nobody else has them
//! cache.horizon_tables(&step, width)?    the blocks of each sequence, those to come included
//! cache.shorten_horizon(&mut step, m)?   m tokens came: all layers count as written, what is left is given back
//! cache.commit_step(&mut step, ids)?
//! ```
//!
//! Opening and shortening cost O(blocks).

use kvtide_core::paged::{StepTableRows, StepTables};

use super::step::GroupStep;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_vec;
use crate::paged::PageGroup;

/// Refuses pages that a device cannot write token by token.
pub(crate) fn check_rows_of_floats(cache: &PageGroup) -> Result<()> {
    let shape = cache.shape.pages.shape();
    for (argument, format) in [("keyFormat", shape.key_format), ("valueFormat", shape.value_format)] {
        if format.is_low_bit() {
            return Err(Error::argument(
                argument,
                format.name(),
                "f32, f16 or bf16: a captured step quantises no page",
            ));
        }
    }
    Ok(())
}

impl PageGroup {
    /// Refuses sequences that cannot have a captured step, and zeroes what it would see of others.
    pub(crate) fn settle_horizon(&mut self, sequences: &[u64]) -> Result<()> {
        self.change()?;
        for &sequence in sequences {
            self.planner.check_idle(sequence)?;
            for layer in 0..self.planner.num_layers() {
                self.settle(sequence, layer)?;
            }
        }
        Ok(())
    }

    /// The blocks of each sequence of a step, `width` in a row.
    pub(crate) fn horizon_tables(&self, step: &GroupStep, width: u32) -> Result<Vec<u32>> {
        let (sequences, tokens) = (step.sequences().len(), step.tokens() as usize);
        let memory = |count: usize| zeroed_vec::<i32>(count).ok_or_else(|| Budget::process().refusal(4 * count as u64));
        let (mut tables, mut lengths) = (memory(sequences * width as usize)?, memory(sequences)?);
        let (mut slots, mut positions, mut offsets) = (memory(tokens)?, memory(tokens)?, memory(sequences + 1)?);
        let out = StepTables {
            block_tables: &mut tables,
            slot_mapping: &mut slots,
            positions: &mut positions,
            lengths: &mut lengths,
            query_offsets: &mut offsets,
        };
        self.fill_tables(step, &mut StepTableRows::new(width)?, out)?;
        Ok(tables.into_iter().map(|block| block as u32).collect())
    }

    /// Makes a step one of the first `tokens` tokens of each sequence, written in all layers.
    pub(crate) fn shorten_horizon(&mut self, step: &mut GroupStep, tokens: u32) -> Result<()> {
        self.change()?;
        self.check_step(step)?;
        let plan = step.plan.as_mut().ok_or(kvtide_core::Error::StepClosed)?;
        self.planner.shorten_step(plan, tokens)?;
        self.planner.mark_layers(plan, 0..self.planner.num_layers())?;
        step.written.fill(true);
        Ok(())
    }
}

/// Where the tokens of each sequence begin.
pub(crate) fn horizon_offsets(sequences: usize, steps: u32) -> Result<Vec<u32>> {
    let all = u64::from(steps) * sequences as u64;
    if all >= 1 << 31 {
        return Err(Error::argument("steps", steps, "fewer than 2^31 tokens of all sequences"));
    }
    Ok((0..=sequences as u32).map(|at| at * steps).collect())
}
