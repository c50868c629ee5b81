//! The tables of steps, in arrays that are kept from step to step.

use kvtide_core::Code;
use kvtide_core::paged::{NO_BLOCK, PagedPlanner, StepTableRows, StepTables, WritePlan};
use proptest::prelude::*;

use super::{Done, World};

/// Blocks of the longest row.
const WIDTH: usize = 256;
/// Sequences and tokens of the largest step.
const MOST: usize = 64;

pub struct Tables {
    rows: StepTableRows,
    blocks: Vec<i32>,
    slots: Vec<i32>,
    positions: Vec<i32>,
    lengths: Vec<i32>,
    offsets: Vec<i32>,
}

impl Tables {
    pub fn new() -> Self {
        let of = |length| vec![-7; length];
        let rows = StepTableRows::new(WIDTH as u32).unwrap();
        Tables {
            rows,
            blocks: of(MOST * WIDTH),
            slots: of(MOST),
            positions: of(MOST),
            lengths: of(MOST),
            offsets: of(MOST),
        }
    }

    fn fill(&mut self, planner: &PagedPlanner, plan: &WritePlan) -> kvtide_core::Result<()> {
        let out = StepTables {
            block_tables: &mut self.blocks,
            slot_mapping: &mut self.slots,
            positions: &mut self.positions,
            lengths: &mut self.lengths,
            query_offsets: &mut self.offsets,
        };
        self.rows.fill(planner, plan, out)
    }
}

impl World {
    /// Fills the tables of the open step, and holds them against the model.
    pub(super) fn fill_tables(&mut self) -> Done {
        let Some(step) = &self.step else { return Ok(()) };
        let filled = self.tables.fill(&self.planner, &step.plan);
        if step.is_stale(&self.sequences) {
            prop_assert_eq!(filled.map_err(|error| error.code()), Err(Code::StaleStep));
            return Ok(());
        }
        filled.unwrap();
        let mut done = 0;
        for (row, (id, tokens)) in step.shares.iter().enumerate() {
            let mut of = self.sequences[id].clone();
            let before = of.values.len();
            of.append(tokens, step.known, self.shape.layers, |_, _| 1);
            of.add_chain(tokens.len());
            prop_assert_eq!(self.tables.lengths[row] as usize, of.values.len());
            prop_assert_eq!(self.tables.offsets[row] as usize, done);
            for at in 0..tokens.len() {
                prop_assert_eq!(
                    self.tables.positions[done + at] as usize,
                    of.position(before + at),
                    "token {} of {}",
                    at,
                    id
                );
            }
            done += tokens.len();
            self.check_row(row, *id, of.values.len())?;
        }
        prop_assert_eq!(self.tables.offsets[step.shares.len()] as usize, done);
        Ok(())
    }

    fn check_row(&self, row: usize, id: u64, length: usize) -> Done {
        let size = self.shape.block_size;
        let row = &self.tables.blocks[row * WIDTH..][..length.div_ceil(size as usize)];
        let gap = self.planner.gap(id).unwrap();
        for (position, &block) in (0..).step_by(size as usize).zip(row) {
            let is_block = (0..self.shape.capacity as i32).contains(&block);
            prop_assert!(if gap.contains(&position) { block == NO_BLOCK } else { is_block }, "{:?}, {:?}", row, gap);
        }
        for (position, layer) in (0..length as u32).flat_map(|at| (0..self.shape.layers).map(move |layer| (at, layer)))
        {
            if let Ok(slot) = self.planner.locate(id, layer, position) {
                prop_assert_eq!(row[(position / size) as usize], slot.block as i32, "position {} of {}", position, id);
            }
        }
        Ok(())
    }

    /// The slots of the tables are where the tokens of a layer went.
    pub(super) fn check_slots(&self, layer: u32) -> Done {
        let Some(step) = &self.step else { return Ok(()) };
        let mut done = 0;
        for (id, tokens) in &step.shares {
            for at in 0..tokens.len() {
                let position = self.sequences[id].values.len() + at;
                let slot = self.planner.locate(*id, layer, position as u32).unwrap();
                prop_assert_eq!(self.tables.slots[done], (slot.block * self.shape.block_size + slot.index) as i32);
                done += 1;
            }
        }
        Ok(())
    }
}
