//! Transactions: tokens at the end of a sequence that are tried, and kept or taken back.
//!
//! ```text
//! begin                     [ committed ]
//! append, append            [ committed | 0 1 2 3 ]        a chain, or the nodes of a tree
//! plan_end(First(2))        [ committed 0 1 ]
//! plan_end(Path([0, 2]))    [ committed 0 2 ]              the rows that are kept move together
//! ```
//!
//! Nothing that a transaction can take back is quantised or found by its key. Beginning is O(1); ending costs O(its tokens), and
//! O(layers) for each low-bit block that became full.

use std::ops::Range;

use super::copying::{CopyPlan, Target};
use super::sequence::Sequence;
use super::sequences::PagedPlanner;
use super::slot::Slot;
use super::staging::Page;
use super::targets::reserve;
use super::write_plan::Seal;
use crate::drafts::{Ending, TransactionId};
use crate::error::Result;
use crate::tree::Tree;

/// What is kept of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep<'a> {
    /// All of it.
    All,
    /// So many of its tokens, from the first.
    First(u64),
    /// These nodes of its tree, each the child of the one before.
    Path(&'a [u32]),
}

/// A row of all layers that goes to another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowMove {
    /// Where it is.
    pub source: Slot,
    /// Where it goes; nothing is read from there after it.
    pub target: Slot,
}

/// What the end of a transaction will do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is committed"]
pub struct EndPlan {
    slot: u32,
    ending: Ending,
    length: u32,
    moves: Vec<RowMove>,
    seals: Vec<Seal>,
    revision: u64,
}

impl EndPlan {
    /// Rows to move, in this order.
    #[must_use]
    pub fn moves(&self) -> &[RowMove] {
        &self.moves
    }

    /// Pages to quantise, once the rows were moved.
    #[must_use]
    pub fn seals(&self) -> &[Seal] {
        &self.seals
    }
}

impl PagedPlanner {
    /// Opens a transaction on a sequence, or on the innermost one that is open.
    pub fn begin(&mut self, sequence: u64, parent: Option<TransactionId>) -> Result<TransactionId> {
        self.check_begin(sequence, parent)?;
        let slot = self.slot(sequence)?;
        let of = self.at_mut(slot);
        if of.drafts.depth() == 0 {
            of.blocks_before = of.content.table.len();
        }
        let id = of.drafts.begin(0);
        self.changed();
        Ok(id)
    }

    /// Refuses what [`PagedPlanner::begin`] would refuse.
    pub fn check_begin(&mut self, sequence: u64, parent: Option<TransactionId>) -> Result<()> {
        match parent {
            None => self.idle(sequence)?,
            Some(_) => self.resting(sequence)?,
        };
        let slot = self.slot(sequence)?;
        self.at_mut(slot).drafts.check_begin(parent)
    }

    /// Tokens of a transaction.
    pub fn drafted(&self, sequence: u64, id: TransactionId) -> Result<u32> {
        self.sequence(sequence)?.drafts.len(id)
    }

    /// The first token of a transaction that can be asked about its own, counted in those of all open ones.
    pub fn draft_first(&self, sequence: u64, id: TransactionId) -> Result<u32> {
        self.sequence(sequence)?.drafts.first(id)
    }

    /// As [`PagedPlanner::begin`], with blocks for `tokens` tokens of the sequence in total; all of it, or nothing.
    pub fn begin_with(&mut self, sequence: u64, parent: Option<TransactionId>, tokens: u32) -> Result<TransactionId> {
        self.check_begin(sequence, parent)?;
        let slot = self.slot(sequence)?;
        let before = self.at(slot).content.table.len();
        self.ensure_capacity(&[(sequence, tokens)])?;
        let id = self.begin(sequence, parent)?;
        if parent.is_none() {
            self.at_mut(slot).blocks_before = before;
        }
        Ok(id)
    }

    /// Refuses a number of tokens in total for which there are not blocks enough.
    pub fn check_room(&self, sequence: u64, tokens: u32) -> Result<()> {
        let held = self.sequence(sequence)?.content.table.len();
        self.check_available(tokens.div_ceil(self.store.block_size).saturating_sub(held).into())
    }

    /// Gives a sequence with an open transaction blocks for `tokens` tokens in total.
    pub fn reserve_draft(&mut self, sequence: u64, tokens: u32) -> Result<()> {
        self.resting(sequence)?;
        self.ensure_capacity(&[(sequence, tokens)])
    }

    /// The tokens of all open transactions, each with the one that it follows.
    pub fn draft_tree(&self, sequence: u64) -> Result<&Tree> {
        Ok(self.sequence(sequence)?.drafts.tree())
    }

    /// What the rows of a path will write over, for the copies before it.
    pub fn path_target(&self, sequence: u64, id: TransactionId, path: &[u32]) -> Result<Target> {
        let of = self.resting(sequence)?;
        of.drafts.check_path(id, path)?;
        let stays = (0..).zip(path).take_while(|(place, node)| place == *node).count() as u32;
        let position = of.committed() + of.drafts.first(id)? + stays;
        Ok(Target { sequence, position, tokens: path.len() as u32 - stays })
    }

    /// What it takes to end the innermost transaction; changes nothing. What a path writes over must be nobody else's any more when
    /// it is carried out: see [`PagedPlanner::commit_copies_before_end`].
    pub fn plan_end(&self, sequence: u64, id: TransactionId, keep: Keep<'_>) -> Result<EndPlan> {
        let of = self.resting(sequence)?;
        let first = of.committed();
        let (ending, moves) = match keep {
            Keep::All => (of.drafts.plan_commit(id, None)?, Vec::new()),
            Keep::First(tokens) => (of.drafts.plan_commit(id, Some(tokens))?, Vec::new()),
            Keep::Path(path) => {
                let ending = of.drafts.check_path(id, path)?;
                (ending, self.row_moves(of, first + of.drafts.first(id)?, path)?)
            }
        };
        let length = of.content.length - ending.dropped;
        let mut seals = Vec::new();
        if self.low_bit && ending.is_outermost() {
            self.add_seals(of, first..length, &mut seals)?;
        }
        Ok(EndPlan { slot: self.slot(sequence)?, ending, length, moves, seals, revision: self.revision })
    }

    fn row_moves(&self, of: &Sequence, first: u32, path: &[u32]) -> Result<Vec<RowMove>> {
        let block_size = self.store.block_size;
        let at = |position: u32| Slot {
            block: self.chunks.get(&of.content.table, position / block_size).expect("a block of a drafted token"),
            slot: position % block_size,
        };
        let moved = (0..).zip(path).filter(|(place, node)| place != *node);
        let mut moves = Vec::new();
        reserve(&mut moves, path.len())?;
        moves.extend(moved.map(|(place, node)| RowMove { source: at(first + node), target: at(first + place) }));
        Ok(moves)
    }

    /// Adds the staged pages that are full when these tokens are committed.
    fn add_seals(&self, of: &Sequence, tokens: Range<u32>, seals: &mut Vec<Seal>) -> Result<()> {
        let store = &self.store;
        for place in tokens.start / store.block_size..tokens.end / store.block_size {
            let Some(block) = self.chunks.get(&of.content.table, place) else { continue };
            if self.chunks.is_shared(&of.content.table, place) || store.blocks.count(block) > 1 {
                continue;
            }
            for layer in 0..store.num_layers {
                let page = Page { block, layer };
                if let Some(staged) = store.staging.get(page)
                    && store.marks.has_all(block, layer, 0..store.block_size)
                {
                    reserve(seals, 1)?;
                    seals.push(Seal { page, staged });
                }
            }
        }
        Ok(())
    }

    /// Takes the memory that an end and the copies before it need in the bookkeeping, so that neither is refused; answers the
    /// staging pages that there must be.
    pub fn reserve_end(&mut self, copies: &CopyPlan, plan: &mut EndPlan) -> Result<u32> {
        self.check_revision(plan.revision)?;
        self.check_revision(copies.revision())?;
        // What others hold is not quantised; the copies are, where they are full.
        reserve(&mut plan.seals, copies.copies().len() * self.store.num_layers as usize)?;
        self.at_mut(plan.slot).drafts.reserve(plan.ending.kept)?;
        let blocks = blocks_after(self.at(plan.slot), &plan.ending);
        let room = copies.room() + self.cut_room(plan.slot, plan.length, blocks);
        self.take_room(room)?;
        Ok(self.staging_pages_of(room))
    }

    /// Gives a path the blocks that were copied for it, and makes a plan that was made beside them move its rows there.
    pub fn commit_copies_before_end(&mut self, copies: &CopyPlan, plan: &mut EndPlan) -> Result<()> {
        self.check_revision(plan.revision)?;
        self.commit_copies(copies)?;
        if copies.copies().is_empty() {
            return Ok(());
        }
        for slot in plan.moves.iter_mut().flat_map(|moved| [&mut moved.source, &mut moved.target]) {
            let copy = copies.copies().iter().find(|copy| copy.source == slot.block);
            slot.block = copy.map_or(slot.block, |copy| copy.target);
        }
        if plan.ending.is_outermost() && self.low_bit {
            let of = self.at(plan.slot);
            let mut seals = std::mem::take(&mut plan.seals);
            seals.clear();
            self.add_seals(of, of.committed()..plan.length, &mut seals)?;
            plan.seals = seals;
        }
        plan.revision = self.revision;
        Ok(())
    }

    /// Ends a transaction as planned, its rows moved and its pages quantised.
    pub fn end(&mut self, plan: &EndPlan) -> Result<()> {
        self.check_revision(plan.revision)?;
        let of = self.at(plan.slot);
        let (tokens, blocks) = (plan.ending.kept, blocks_after(of, &plan.ending));
        self.at_mut(plan.slot).drafts.reserve(tokens)?;
        for RowMove { source, target } in &plan.moves {
            self.store.copy_token(*source, *target);
        }
        let in_order = self.in_order(plan);
        self.cut(plan.slot, plan.length, blocks)?;
        self.cut_chain(plan.slot, in_order);
        for seal in &plan.seals {
            self.store.staging.give_back(seal.page);
        }
        self.at_mut(plan.slot).drafts.end(&plan.ending);
        if plan.ending.is_outermost() {
            self.settle(plan.slot);
        }
        Ok(())
    }

    /// The tokens that follow each other as those of a prompt do, once the outermost transaction has ended: not what is left of a
    /// tree, unless it is a path.
    fn in_order(&self, plan: &EndPlan) -> u32 {
        let of = self.at(plan.slot);
        match of.drafts.kept_parents(&plan.ending).filter(|_| plan.ending.is_outermost()) {
            Some(parents) => {
                let chain = parents.iter().zip(-1..).take_while(|(parent, before)| **parent == *before).count();
                of.committed() + chain as u32
            }
            None => plan.length,
        }
    }

    /// Ends a transaction, and those on top of it, as if they had never been; one that has ended is left alone. A step that the
    /// sequence is in ends for it as well.
    pub fn undo(&mut self, sequence: u64, id: TransactionId) -> Result<()> {
        let of = self.sequence(sequence)?;
        let Some(ending) = of.drafts.plan_drop(id) else { return Ok(()) };
        let (before, end, blocks) = (of.content.length, of.end(), blocks_after(of, &ending));
        let slot = self.slot(sequence)?;
        // What the step has written is cut off like the rest.
        let of = self.at_mut(slot);
        let stepping = of.stepping.take();
        of.content.length = end;
        let cut = self.cut(slot, before - ending.dropped, blocks);
        let of = self.at_mut(slot);
        match cut {
            Ok(()) => of.drafts.end(&ending),
            Err(_) => (of.stepping, of.content.length) = (stepping, before),
        }
        cut
    }
}

/// The blocks that stay when a transaction ends, however few tokens do: with the outermost those from before it, until then also
/// those that were taken for tokens to come.
fn blocks_after(of: &Sequence, ending: &Ending) -> u32 {
    if ending.is_outermost() { of.blocks_before } else { of.content.table.len() }
}
