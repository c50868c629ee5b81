//! The tables of steps, in arrays that are reused from step to step.

use kvtide_core::Code;
use kvtide_core::paged::{NO_BLOCK, PagedPlanner, StepTableRows, StepTables, WritePlan};
use proptest::prelude::*;

use super::planner::code;
use super::world::{Done, SeenStep};

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

    /// Fills the tables of an open step, and holds them against the model.
    pub fn check(&mut self, planner: &PagedPlanner, plan: &WritePlan, seen: &SeenStep<'_>) -> Done {
        let filled = code(self.fill(planner, plan));
        if seen.is_stale {
            prop_assert_eq!(filled, Err(Code::StaleStep));
            return Ok(());
        }
        prop_assert_eq!(filled, Ok(()));
        let (mut done, size) = (0, seen.shape.block_size);
        for (row, ((id, tokens), (before, positions))) in seen.shares.iter().zip(seen.places).enumerate() {
            let length = before + tokens.len();
            prop_assert_eq!(self.lengths[row] as usize, length);
            prop_assert_eq!(self.offsets[row] as usize, done);
            for (at, &position) in positions.iter().enumerate() {
                prop_assert_eq!(self.positions[done + at] as usize, position, "token {} of {}", at, id);
                // Where the tokens of a layer went.
                for layer in (0..seen.shape.layers).filter(|&layer| seen.written[layer as usize]) {
                    let slot = planner.locate(*id, layer, (before + at) as u32).unwrap();
                    prop_assert_eq!(self.slots[done + at], (slot.block * size + slot.index) as i32);
                }
            }
            done += tokens.len();
            self.check_row(planner, row, *id, length, seen)?;
        }
        prop_assert_eq!(self.offsets[seen.shares.len()] as usize, done);
        Ok(())
    }

    fn check_row(&self, planner: &PagedPlanner, row: usize, id: u64, length: usize, seen: &SeenStep<'_>) -> Done {
        let (size, capacity) = (seen.shape.block_size, seen.shape.capacity as i32);
        let row = &self.blocks[row * WIDTH..][..length.div_ceil(size as usize)];
        let gap = planner.gap(id).unwrap();
        for (position, &block) in (0..).step_by(size as usize).zip(row) {
            let is_right = if gap.contains(&position) { block == NO_BLOCK } else { (0..capacity).contains(&block) };
            prop_assert!(is_right, "{:?}, {:?}", row, gap);
        }
        for (position, layer) in (0..length as u32).flat_map(|at| (0..seen.shape.layers).map(move |layer| (at, layer)))
        {
            if let Ok(slot) = planner.locate(id, layer, position) {
                prop_assert_eq!(row[(position / size) as usize], slot.block as i32, "position {} of {}", position, id);
            }
        }
        Ok(())
    }
}
