//! The tables of a step, written to the caller's arrays, for attention over all its sequences in one call.
//!
//! ```text
//! blockTables    [ 2 0 5 . ][ 7 . . . ]     a row for each sequence, in the step's order; entries behind its blocks stay unchanged
//! slotMapping    [ 83 84 | 112 ]            block * block size + slot of each token
//! positions      [ 35 36 | 0 ]              for a node of a draft tree, the position at the end of its path
//! lengths        [ 37 | 1 ]                 tokens, including those of the step
//! queryOffsets   [ 0 2 3 ]                  the index of each sequence's first token
//! ```
//!
//! [`StepTableRows`] remembers the entries that it wrote to each row. A row is identified by its sequence and that
//! sequence's epoch, which counts changes to blocks that were already in its table. While both stay the same, only new
//! blocks are written, so callers must pass the array unchanged, and all rows must belong to one planner. A place whose
//! block left the window has [`NO_BLOCK`], since that block may belong to another sequence by now.
//!
//! O(tokens + sequences + blocks added or passed), plus O(its blocks) for a row that is written completely.

use super::paged_planner::PagedPlanner;
use crate::count::{COUNT_MAX, count_positive};
use crate::error::{Error, Result, reserve};
use crate::paged::plan::WritePlan;
use crate::paged::sequence::Sequence;

/// The entry for a block that left the window. Attention within the window does not read it.
pub const NO_BLOCK: i32 = -1;

/// The arrays to which a step's tables are written. They may be longer than needed.
#[derive(Debug)]
pub struct StepTables<'a> {
    /// The blocks of each sequence, one row each.
    pub block_tables: &'a mut [i32],
    /// The slot of each token in the slab: block * block size + slot in the block.
    pub slot_mapping: &'a mut [i32],
    /// The position of each token.
    pub positions: &'a mut [i32],
    /// Number of tokens of each sequence, including those of the step.
    pub lengths: &'a mut [i32],
    /// The index of each sequence's first token, and the number of all tokens.
    pub query_offsets: &'a mut [i32],
}

/// The present content of a row.
#[derive(Clone, Copy, Debug)]
struct KnownRow {
    sequence: u64,
    epoch: u64,
    /// Number of leading entries that are written.
    filled: u32,
    /// Number of leading places that had left the window, except those of sinks.
    cleared: u32,
}

impl KnownRow {
    /// A row without entries yet.
    fn of(sequence: &Sequence) -> Self {
        KnownRow { sequence: sequence.id(), epoch: sequence.epoch(), filled: 0, cleared: 0 }
    }
}

/// Writes the tables of one step after another; in each row, only the changes.
#[derive(Debug)]
pub struct StepTableRows {
    width: u32,
    rows: Vec<KnownRow>,
    /// The address of the array that contains these rows.
    place: usize,
}

impl StepTableRows {
    /// Returns a writer for rows of `width` blocks.
    pub fn new(width: u32) -> Result<Self> {
        Ok(StepTableRows { width: count_positive("width", width.into())?, rows: Vec::new(), place: 0 })
    }

    /// Number of entries in a row.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Makes the next call write every row completely, for an array that was written elsewhere.
    pub fn forget(&mut self) {
        self.rows.clear();
    }

    /// Returns the error of [`StepTableRows::fill`] for a planned step, and reserves its memory, so that no step is
    /// opened in vain.
    pub fn prepare(&mut self, planner: &PagedPlanner, plan: &WritePlan, out: &StepTables<'_>) -> Result<()> {
        self.check(planner, plan, out)?;
        let rows = plan.num_shares();
        let out_of_memory = |_| Error::OutOfMemory { count: rows as u64, what: "rows of a step's tables" };
        self.rows.try_reserve(rows.saturating_sub(self.rows.len())).map_err(out_of_memory)
    }

    /// Writes the tables of an open step; on an error, writes nothing.
    pub fn fill(&mut self, planner: &PagedPlanner, plan: &WritePlan, out: StepTables<'_>) -> Result<()> {
        planner.check_step(plan)?;
        self.prepare(planner, plan, &out)?;
        let place = out.block_tables.as_ptr() as usize;
        if std::mem::replace(&mut self.place, place) != place {
            self.forget();
        }
        // A step of fewer sequences leaves later rows unchanged.
        let rows = out.block_tables.chunks_exact_mut(self.width as usize);
        for (at, ((share, ..), row)) in plan.shares().zip(rows).enumerate() {
            let of = planner.sequences.at(share.seat);
            if at == self.rows.len() {
                self.rows.push(KnownRow::of(of));
            }
            let known = &mut self.rows[at];
            if known.sequence != of.id() || known.epoch != of.epoch() {
                *known = KnownRow::of(of);
            }
            planner.write_row(of, known, row);
            out.lengths[at] = of.end() as i32;
        }
        planner.write_slots(plan, out.slot_mapping);
        planner.write_positions(plan, out.positions);
        out.query_offsets.iter_mut().zip(plan.offsets()).for_each(|(out, offset)| *out = offset as i32);
        Ok(())
    }

    fn check(&self, planner: &PagedPlanner, plan: &WritePlan, out: &StepTables<'_>) -> Result<()> {
        let (sequences, tokens) = (plan.num_shares() as u64, u64::from(plan.tokens()));
        let check = |argument, length: usize, needed: u64, what: &str| match length as u64 >= needed {
            true => Ok(()),
            false => Err(Error::argument(argument, length, format!("at least {needed}, {what}"))),
        };
        let all = sequences * u64::from(self.width);
        check("blockTables.length", out.block_tables.len(), all, "a row for each sequence")?;
        check("slotMapping.length", out.slot_mapping.len(), tokens, "one for each token")?;
        check("positions.length", out.positions.len(), tokens, "one for each token")?;
        check("lengths.length", out.lengths.len(), sequences, "one for each sequence")?;
        check("queryOffsets.length", out.query_offsets.len(), sequences + 1, "one more than sequences")?;
        let longest = plan.shares().map(|(share, ..)| share.position + share.tokens).max().unwrap_or(0);
        let blocks = longest.div_ceil(planner.block_size());
        if blocks > self.width {
            let expected = format!("at least {blocks}, the blocks of the longest");
            return Err(Error::argument("maxBlocks", self.width, expected));
        }
        check_slots(planner.total_count(), planner.block_size())
    }
}

impl PagedPlanner {
    fn write_row(&self, of: &Sequence, known: &mut KnownRow, row: &mut [i32]) {
        let needed = of.end().div_ceil(self.block_size()).min(of.table().len());
        let sinks = self.window.map_or(0, |window| window.sinks().div_ceil(self.block_size()));
        let passed = known.cleared.max(sinks)..of.content().cleared().min(known.filled);
        passed.for_each(|place| row[place as usize] = NO_BLOCK);
        let mut place = known.filled.min(needed);
        while place < needed {
            let leaf = self.tables.leaf(of.table(), place).expect("a place inside the table");
            let end = needed.min(place + leaf.len() as u32);
            for (out, &block) in row[place as usize..end as usize].iter_mut().zip(leaf) {
                *out = if block < self.total_count() { block as i32 } else { NO_BLOCK };
            }
            place = end;
        }
        (known.filled, known.cleared) = (needed, of.content().cleared());
    }

    fn write_slots(&self, plan: &WritePlan, out: &mut [i32]) {
        for run in plan.runs() {
            let first = run.block * self.block_size() + run.slot;
            let out = &mut out[run.token as usize..(run.token + run.len) as usize];
            out.iter_mut().zip(first..).for_each(|(out, slot)| *out = slot as i32);
        }
    }

    /// The position of each token of an open step.
    pub fn step_positions(&self, plan: &WritePlan) -> Result<Vec<i32>> {
        self.check_step(plan)?;
        let mut positions = Vec::new();
        reserve(&mut positions, plan.tokens() as usize, "tokens of a step")?;
        positions.resize(plan.tokens() as usize, 0);
        self.write_positions(plan, &mut positions);
        Ok(positions)
    }

    fn write_positions(&self, plan: &WritePlan, out: &mut [i32]) {
        let mut rest = out;
        for (share, _, parents) in plan.shares() {
            let (out, behind) = rest.split_at_mut(share.tokens as usize);
            rest = behind;
            let of = self.sequences.at(share.seat);
            let drafts = of.drafts();
            if parents.is_none() && !drafts.is_branched() {
                out.iter_mut().zip(share.position..).for_each(|(out, position)| *out = position as i32);
                continue;
            }
            let (committed, drafted) = (of.committed(), i64::from(drafts.drafted()));
            for at in 0..out.len() {
                let node = drafted + at as i64;
                let parent = parents.map_or(node - 1, |parents| i64::from(parents[at]) + i64::from(drafts.start()));
                out[at] = match (usize::try_from(parent - drafted), usize::try_from(parent)) {
                    (Ok(new), _) => out[new] + 1,
                    (_, Ok(node)) => (i64::from(committed) + drafts.tree().depth(node) + 1) as i32,
                    _ => committed as i32,
                };
            }
        }
    }
}

/// Returns an error if the pool has slots whose numbers exceed an `i32`. The slots of a step are known only once it has
/// them.
fn check_slots(blocks: u32, block_size: u32) -> Result<()> {
    match u64::from(blocks) * u64::from(block_size) {
        slots if slots > u64::from(COUNT_MAX) + 1 => {
            Err(Error::argument("slotMapping", slots - 1, format!("slots up to {COUNT_MAX}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_an_i32_cannot_name_are_refused() {
        assert!(check_slots(2, 1 << 30).is_ok());
        let refused = check_slots(3, 1 << 30).unwrap_err();
        assert_eq!(refused.to_string(), "slotMapping is 3221225471, expected slots up to 2147483647");
        assert!(check_slots(COUNT_MAX, COUNT_MAX).is_err());
    }
}
