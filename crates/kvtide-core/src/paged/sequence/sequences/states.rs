//! The states of sequences: the slot that an open step writes, and the content from before each open transaction.

use super::Sequence;
use crate::drafts::Ending;
use crate::error::{Result, reserve};
use crate::paged::sequence::Content;
use crate::paged::table::{Table, Tables};

impl Sequence {
    /// Holds the slot that a step or a call writes.
    pub fn hold_new_state(&mut self, slot: Table) {
        self.new_state = Some(slot);
    }

    /// Reserves memory for one more checkpoint.
    pub fn reserve_checkpoint(&mut self) -> Result<()> {
        self.content.reserve_checkpoint()
    }

    /// Counts tokens after which the new slot has the state; their ids may be known.
    pub fn append_state(&mut self, tokens: u32, ids: Option<&[u32]>, tables: &mut Tables) {
        let Some(slot) = self.new_state.take() else { return };
        self.content.step_state(slot, tokens, ids, tables);
        self.drafts.append(tokens, None);
        if self.drafts.depth() == 0 {
            self.content.name_state(tokens == 1, tables);
        }
    }

    /// Releases the slot of a step that ends without a trace.
    pub fn drop_new_state(&mut self, tables: &mut Tables) {
        if let Some(slot) = self.new_state.take() {
            tables.release(slot);
        }
    }

    /// Reserves memory for the content from before one more transaction.
    pub fn reserve_base(&mut self) -> Result<()> {
        reserve(&mut self.bases, 1, "open transactions")
    }

    /// Keeps the present content for the end of a transaction that begins now. Its memory is reserved.
    pub fn keep_base(&mut self, tables: &mut Tables) {
        let content = self.content.fork(tables);
        self.bases.push(content);
    }

    /// Ends a transaction and those inside it. If tokens are dropped, the content from before it returns.
    pub fn end_state_draft(&mut self, ending: &Ending, tables: &mut Tables) {
        let ended = self.bases.drain(ending.depth()..).collect::<Vec<Content>>();
        for (at, base) in ended.into_iter().enumerate() {
            match ending.dropped > 0 && at == 0 {
                true => std::mem::replace(&mut self.content, base).release(tables),
                false => base.release(tables),
            }
        }
        self.drafts.end(ending);
        if ending.is_outermost() {
            self.content.name_state(true, tables);
        }
    }

    /// Goes back to a length at which there is a state.
    pub fn cut_state(&mut self, length: u32, tables: &mut Tables) {
        self.content.cut_state(length, tables);
        self.epoch += 1;
    }

    /// Records the ids of its tokens: see [`Content::identify_state`].
    pub fn identify_state(&mut self, tokens: &[u32], tables: &mut Tables) -> u32 {
        self.content.identify_state(tokens, tables)
    }

    /// All tables that hold its blocks.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        let bases = self.bases.iter().map(Content::table);
        std::iter::once(self.content.table()).chain(&self.new_state).chain(bases)
    }

    /// Releases all its blocks.
    pub fn release(self, tables: &mut Tables) {
        self.content.release(tables);
        self.new_state.into_iter().for_each(|slot| tables.release(slot));
        self.bases.into_iter().for_each(|base| base.release(tables));
    }
}
