//! Transactions on a sequence of a model: what is drafted leaves no trace in any layer unless it is committed.
//!
//! By number, as [`Transactional`](crate::Transactional): O(layers), and what each of them takes.

use std::sync::Arc;

use kvtide_core::TransactionId;

use super::ModelCache;
use crate::error::Result;
use crate::memory::Budget;
use crate::transaction::BeginOptions;
use crate::view::View;

impl ModelCache {
    /// Opens a transaction on a sequence, or on its innermost one: what steps append from then on may be taken back.
    pub fn begin(
        &mut self,
        sequence: u64,
        parent: Option<TransactionId>,
        options: BeginOptions,
    ) -> Result<TransactionId> {
        self.store.begin(sequence, parent, options)
    }

    /// Tokens of a transaction.
    pub fn drafted(&mut self, sequence: u64, id: TransactionId) -> Result<u32> {
        self.store.drafted(sequence, id)
    }

    /// Refuses a transaction that has ended, or on which another or a step is open.
    pub fn check_draft(&mut self, sequence: u64, id: TransactionId) -> Result<()> {
        self.store.check_draft(sequence, id)
    }

    /// Keeps the first `tokens` tokens of a transaction, all unless said otherwise, drops the rest, and ends it.
    pub fn commit(&mut self, sequence: u64, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        self.store.commit(sequence, id, tokens)
    }

    /// Keeps the nodes of a path, each the child of the one before, drops the rest, and ends the transaction.
    pub fn commit_path(&mut self, sequence: u64, id: TransactionId, path: &[u32]) -> Result<()> {
        self.store.commit_path(sequence, id, path)
    }

    /// Ends a transaction, with those on top of it and an open step of the sequence, as if they had never been; nothing where it
    /// has ended. Never refused.
    pub fn rollback(&mut self, sequence: u64, id: TransactionId) {
        self.store.drop_draft(sequence, id);
    }

    /// What the tokens of a transaction see in a layer: `[drafted, before + drafted]`, 0 where one sees and -infinity elsewhere; a
    /// window counts positions. Refused while a transaction or a step is open on it. Its memory is taken from `budget`.
    pub fn draft_mask(&mut self, sequence: u64, id: TransactionId, layer: u32, budget: &Arc<Budget>) -> Result<View> {
        self.check_number(layer)?;
        self.store.draft_mask((sequence, id), self.model.place(layer), budget)
    }

    /// The positions of a transaction's tokens, the same in all layers. Refused while a transaction or a step is open on it.
    pub fn draft_positions(&mut self, sequence: u64, id: TransactionId) -> Result<Vec<u64>> {
        self.store.draft_positions(sequence, id)
    }
}
