//! Transactions: tokens at the end of a sequence that can be committed or rolled back.
//!
//! ```text
//! begin                     [ committed ]
//! append, append            [ committed | 0 1 2 3 ]        a chain, or the nodes of a tree
//! plan_end(First(2))        [ committed 0 1 ]
//! plan_end(Path([0, 2]))    [ committed 0 2 ]              the kept rows move together
//! ```
//!
//! Tokens that a transaction can roll back are neither quantised nor given a key. Beginning is O(1); ending costs O(its
//! tokens), plus O(layers) for each low-bit block that became full.

use super::paged_planner::PagedPlanner;
use crate::drafts::TransactionId;
use crate::error::Result;
use crate::paged::plan::{CopyPlan, EndPlan, Keep, RowMove, WriteTarget};
use crate::paged::table::Reservation;
use crate::tree::Tree;

impl PagedPlanner {
    /// Opens a transaction on a sequence, or inside the innermost open transaction.
    pub fn begin(&mut self, sequence: u64, parent: Option<TransactionId>) -> Result<TransactionId> {
        let seat = self.seat_to_begin(sequence, parent)?;
        if self.keeps_states {
            self.tables.reserve(Reservation { tables: 1, ..Reservation::default() })?;
            self.sequences.at_mut(seat).reserve_base()?;
            self.sequences.at_mut(seat).keep_base(&mut self.tables);
        }
        let id = self.sequences.at_mut(seat).begin();
        self.changed();
        Ok(id)
    }

    /// Returns the error of [`PagedPlanner::begin`] without opening a transaction.
    pub fn check_begin(&mut self, sequence: u64, parent: Option<TransactionId>) -> Result<()> {
        self.seat_to_begin(sequence, parent).map(drop)
    }

    fn seat_to_begin(&mut self, sequence: u64, parent: Option<TransactionId>) -> Result<u32> {
        let seat = match parent {
            None => self.sequences.idle(sequence)?,
            Some(_) => self.sequences.resting(sequence)?,
        };
        self.sequences.at_mut(seat).drafts_mut().check_begin(parent)?;
        Ok(seat)
    }

    /// The innermost open transaction of a sequence.
    pub fn innermost(&self, sequence: u64) -> Result<Option<TransactionId>> {
        Ok(self.sequences.find(sequence)?.drafts().innermost())
    }

    /// Number of tokens of a transaction.
    pub fn drafted(&self, sequence: u64, id: TransactionId) -> Result<u32> {
        self.sequences.find(sequence)?.drafts().len(id)
    }

    /// The first token of a transaction, counted in the tokens of all open ones. Returns an error unless it is the
    /// innermost.
    pub fn draft_first(&self, sequence: u64, id: TransactionId) -> Result<u32> {
        self.sequences.find(sequence)?.drafts().first(id)
    }

    /// The tree of the tokens of all open transactions.
    pub fn draft_tree(&self, sequence: u64) -> Result<&Tree> {
        Ok(self.sequences.find(sequence)?.drafts().tree())
    }

    /// Returns an error if there are too few blocks for a total number of tokens.
    pub fn check_room(&self, sequence: u64, tokens: u32) -> Result<()> {
        let held = self.sequences.find(sequence)?.table().len();
        if self.keeps_states {
            // Its tokens take no slots before they are written.
            return Ok(());
        }
        self.state().check_available(tokens.div_ceil(self.block_size()).saturating_sub(held).into())
    }

    /// Gives a sequence with an open transaction blocks for `tokens` tokens in total.
    pub fn reserve_draft(&mut self, sequence: u64, tokens: u32) -> Result<()> {
        self.check_resting(sequence)?;
        self.ensure_capacity(&[(sequence, tokens)])
    }

    /// The tokens that a path will overwrite, as the argument of [`PagedPlanner::plan_copies`].
    pub fn path_target(&self, sequence: u64, id: TransactionId, path: &[u32]) -> Result<WriteTarget> {
        let of = self.sequences.at(self.sequences.resting(sequence)?);
        of.drafts().check_path(id, path)?;
        let stays = (0..).zip(path).take_while(|(place, node)| place == *node).count() as u32;
        let position = of.committed() + of.drafts().first(id)? + stays;
        Ok(WriteTarget { sequence, position, tokens: path.len() as u32 - stays })
    }

    /// Plans the end of the innermost transaction. Blocks that a path overwrites must belong to the sequence alone when
    /// the plan is carried out: see [`PagedPlanner::commit_copies_before_end`].
    pub fn plan_end(&self, sequence: u64, id: TransactionId, keep: Keep<'_>) -> Result<EndPlan> {
        let plan = EndPlan::new(self.sequences.resting(sequence)?, id, keep, self.state())?;
        if self.keeps_states { self.check_state_end(&plan).map(|()| plan) } else { Ok(plan) }
    }

    /// Reserves the memory of an end and of the copies before it. Returns the number of staging pages that must exist.
    pub fn reserve_end(&mut self, copies: &CopyPlan, plan: &mut EndPlan) -> Result<u32> {
        self.check_revision(plan.revision())?;
        self.check_revision(copies.revision())?;
        // Pages that others hold are not quantised, but full copies of them are.
        plan.reserve_seals(copies.copies().len() * self.num_layers() as usize)?;
        let (seat, ending) = (plan.seat(), plan.ending());
        self.sequences.at_mut(seat).drafts_mut().reserve(ending.kept)?;
        let blocks = self.sequences.at(seat).blocks_after(ending);
        let room = copies.room() + self.cut_room(seat, plan.length(), blocks);
        self.tables.reserve(room)?;
        Ok(self.tables.staging_pages(room))
    }

    /// Gives the sequence the copies of blocks that a path overwrites, and makes the plan of its end move rows there.
    pub fn commit_copies_before_end(&mut self, copies: &CopyPlan, plan: &mut EndPlan) -> Result<()> {
        self.check_revision(plan.revision())?;
        self.commit_copies(copies)?;
        if copies.copies().is_empty() { Ok(()) } else { plan.follow_copies(copies.copies(), self.state()) }
    }

    /// Ends a transaction as planned. Its rows must have been moved and its pages quantised.
    pub fn end(&mut self, plan: &EndPlan) -> Result<()> {
        self.check_revision(plan.revision())?;
        let (seat, ending) = (plan.seat(), plan.ending());
        let blocks = self.sequences.at(seat).blocks_after(ending);
        self.sequences.at_mut(seat).drafts_mut().reserve(ending.kept)?;
        self.tables.reserve(self.cut_room(seat, plan.length(), blocks))?;
        if self.keeps_states {
            self.sequences.at_mut(seat).reserve_state_end()?;
            self.sequences.at_mut(seat).end_state_draft(ending, &mut self.tables);
            self.changed();
            return Ok(());
        }
        let pool = self.tables.pool_mut();
        for &RowMove { source, target } in plan.moves() {
            pool.copy_token(source, target);
            pool.unseal(target.block);
        }
        let of = self.sequences.at_mut(seat);
        let in_order = of.in_order_after(ending, plan.length());
        of.cut(plan.length(), blocks, &mut self.tables);
        of.end_draft(ending, in_order, plan.named(), &self.tables);
        let pool = self.tables.pool_mut();
        plan.seals().iter().for_each(|seal| pool.unstage(seal.page));
        if ending.is_outermost() {
            self.sequences.at_mut(seat).finish_blocks(self.window, &mut self.tables);
        }
        self.changed();
        Ok(())
    }

    /// Rolls back a transaction and those inside it, unless it has ended already. An open step of the sequence ends
    /// with it.
    pub fn undo(&mut self, sequence: u64, id: TransactionId) -> Result<()> {
        let seat = self.sequences.seat(sequence)?;
        let of = self.sequences.at(seat);
        let Some(ending) = of.drafts().plan_drop(id) else { return Ok(()) };
        let (length, blocks) = (of.length() - ending.dropped, of.blocks_after(&ending));
        self.tables.reserve(self.cut_room(seat, length, blocks))?;
        if self.keeps_states {
            let of = self.sequences.at_mut(seat);
            of.drop_new_states(&mut self.tables);
            of.close_step();
            of.end_state_draft(&ending, &mut self.tables);
            self.changed();
            return Ok(());
        }
        self.soil_step(seat);
        let of = self.sequences.at_mut(seat);
        // The cut below drops the step's tokens too.
        of.take_step();
        of.cut(length, blocks, &mut self.tables);
        of.end_draft(&ending, length, length, &self.tables);
        self.changed();
        Ok(())
    }

    /// Marks blocks of an open step as dirty: their slots may have been written without marks.
    pub(super) fn soil_step(&mut self, seat: u32) {
        if self.keeps_states {
            return;
        }
        let (of, size) = (self.sequences.at(seat), self.tables.block_size());
        for place in of.length() / size..of.end().div_ceil(size) {
            if let Some(block) = self.tables.get(of.table(), place) {
                self.tables.pool_mut().soil(block);
            }
        }
    }
}
