//! The plan of a transaction's end.
//!
//! ```text
//! First(2)        [ committed 0 1 ]
//! Path([0, 2])    [ committed 0 2 ]        the kept rows move together
//! ```
//!
//! O(its tokens), plus O(layers) for each low-bit block that became full.

use super::checked_write::{PlannerState, room};
use super::page_write::Seal;
use super::write_plan::BlockCopy;
use crate::drafts::{Ending, TransactionId};
use crate::error::Result;
use crate::paged::pages::{Page, Slot};
use crate::paged::sequence::Sequence;

/// The tokens of a transaction that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep<'a> {
    /// All tokens.
    All,
    /// This many tokens, from the first.
    First(u64),
    /// These nodes of the tree, each the child of the one before.
    Path(&'a [u32]),
}

/// A row of all layers that moves to another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowMove {
    /// The present slot.
    pub source: Slot,
    /// The new slot; no later move reads it.
    pub target: Slot,
}

/// The plan of a transaction's end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is committed"]
pub struct EndPlan {
    seat: u32,
    ending: Ending,
    length: u32,
    named: u32,
    moves: Vec<RowMove>,
    seals: Vec<Seal>,
    revision: u64,
}

impl EndPlan {
    /// Plans the end of a transaction of a sequence without an open step.
    pub(in crate::paged) fn new(seat: u32, id: TransactionId, keep: Keep<'_>, state: PlannerState<'_>) -> Result<Self> {
        let of = state.sequences.at(seat);
        let drafts = of.drafts();
        let known = of.content().keys().known();
        let (ending, moves, named) = match keep {
            Keep::All => (drafts.plan_commit(id, None)?, Vec::new(), known),
            Keep::First(tokens) => (drafts.plan_commit(id, Some(tokens))?, Vec::new(), known),
            Keep::Path(path) => {
                let ending = drafts.check_path(id, path)?;
                let first = of.committed() + drafts.first(id)?;
                let named = path.iter().take_while(|&&node| first + node < known).count() as u32;
                (ending, row_moves(of, first, path, state)?, known.min(first + named))
            }
        };
        let length = of.length() - ending.dropped;
        let mut plan = EndPlan { seat, ending, length, named, moves, seals: Vec::new(), revision: state.revision };
        plan.fill_seals(state)?;
        Ok(plan)
    }

    /// The rows to move, in this order.
    #[must_use]
    pub fn moves(&self) -> &[RowMove] {
        &self.moves
    }

    /// The pages to quantise after the rows were moved.
    #[must_use]
    pub fn seals(&self) -> &[Seal] {
        &self.seals
    }

    pub(in crate::paged) fn seat(&self) -> u32 {
        self.seat
    }

    pub(in crate::paged) fn ending(&self) -> &Ending {
        &self.ending
    }

    pub(in crate::paged) fn length(&self) -> u32 {
        self.length
    }

    /// Number of leading tokens whose ids are known. On a path, it ends at the first node without an id.
    pub(in crate::paged) fn named(&self) -> u32 {
        self.named
    }

    pub(in crate::paged) fn revision(&self) -> u64 {
        self.revision
    }

    /// Reserves memory for this many more pages to quantise.
    pub(in crate::paged) fn reserve_seals(&mut self, pages: usize) -> Result<()> {
        room(&mut self.seals, pages)
    }

    /// Points the plan at the copies, which now exist, and quantises those that are full. Its memory is reserved.
    pub(in crate::paged) fn follow_copies(&mut self, copies: &[BlockCopy], state: PlannerState<'_>) -> Result<()> {
        for slot in self.moves.iter_mut().flat_map(|moved| [&mut moved.source, &mut moved.target]) {
            let copy = copies.iter().find(|copy| copy.source == slot.block);
            slot.block = copy.map_or(slot.block, |copy| copy.target);
        }
        self.fill_seals(state)?;
        self.revision = state.revision;
        Ok(())
    }

    /// Lists the staged pages that are full once the tokens are committed. Pages that others hold are not quantised.
    fn fill_seals(&mut self, state: PlannerState<'_>) -> Result<()> {
        let (of, pool, size) = (state.sequences.at(self.seat), state.tables.pool(), state.block_size());
        self.seals.clear();
        if !pool.is_low_bit() || !self.ending.is_outermost() {
            return Ok(());
        }
        for place in of.committed() / size..self.length / size {
            let Some(block) = state.tables.get(of.table(), place) else { continue };
            if state.tables.is_held_twice(of.table(), place, block) {
                continue;
            }
            for layer in 0..pool.num_layers() {
                let page = Page { block, layer };
                if let Some(staged) = pool.staging().get(page)
                    && pool.marks().has_all(block, layer, 0..size)
                {
                    room(&mut self.seals, 1)?;
                    self.seals.push(Seal { page, staged });
                }
            }
        }
        Ok(())
    }
}

/// The moves of a path's rows; `first` is the position of the draft's first node.
fn row_moves(of: &Sequence, first: u32, path: &[u32], state: PlannerState<'_>) -> Result<Vec<RowMove>> {
    let size = state.block_size();
    let at = |position: u32| Slot {
        block: state.tables.get(of.table(), position / size).expect("a block of a drafted token"),
        index: position % size,
    };
    let moved = (0..).zip(path).filter(|(place, node)| place != *node);
    let mut moves = Vec::new();
    room(&mut moves, path.len())?;
    moves.extend(moved.map(|(place, node)| RowMove { source: at(first + node), target: at(first + place) }));
    Ok(moves)
}
