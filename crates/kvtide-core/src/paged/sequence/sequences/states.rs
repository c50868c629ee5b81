//! The states of sequences: the slots that an open step writes, the content from before each open transaction, and the states
//! between the tokens of a draft.
//!
//! ```text
//! begin                base
//! step of 3 tokens     base, before | slot 0, slot 1, slot 2       the content has the state in slot 2
//! commit 2             the content from before the step, with the state in slot 1
//! ```

use super::Sequence;
use crate::drafts::Ending;
use crate::error::{Result, reserve};
use crate::paged::plan::Share;
use crate::paged::sequence::Content;
use crate::paged::table::{Table, Tables};

/// The states after each token of the last step of an open transaction.
#[derive(Debug)]
pub struct DraftedStates {
    /// The content from before the step.
    before: Content,
    /// The slot after each of its tokens.
    slots: Table,
}

impl Sequence {
    /// Holds the slots that a step or a call writes: one, or one for each of its tokens.
    pub fn hold_new_states(&mut self, slots: Table) {
        self.new_states = Some(slots);
    }

    /// Reserves memory for one more checkpoint, and for the ids of a step that keeps the state after each token.
    pub fn reserve_states(&mut self, share: &Share) -> Result<()> {
        if share.new_blocks > 1 {
            // Those of the step before stay: this one may be refused or undone.
            reserve(&mut self.drafted_ids, share.tokens as usize, "ids of drafted tokens")?;
        }
        self.content.reserve_checkpoint()
    }

    /// Reserves memory for one more checkpoint.
    pub fn reserve_checkpoint(&mut self) -> Result<()> {
        self.content.reserve_checkpoint()
    }

    /// Counts tokens after which the last of the new slots has the state; their ids may be known.
    pub fn append_state(&mut self, tokens: u32, ids: Option<&[u32]>, tables: &mut Tables) {
        let Some(slots) = self.new_states.take() else { return };
        self.forget_drafted(tables);
        let last = tables.get(&slots, slots.len() - 1).expect("the slot of a step");
        if slots.len() > 1 {
            self.drafted_ids.clear();
            self.drafted_ids.extend_from_slice(ids.unwrap_or(&[]));
            let before = self.content.fork(tables);
            self.content.step_state(last, tokens, ids, tables);
            self.drafted = Some(DraftedStates { before, slots });
        } else {
            self.content.step_state(last, tokens, ids, tables);
            tables.release(slots);
        }
        self.drafts.append(tokens, None);
        if self.drafts.depth() == 0 {
            self.content.name_state(tokens == 1, tables);
        }
    }

    /// Releases the slots of a step that ends without a trace.
    pub fn drop_new_states(&mut self, tables: &mut Tables) {
        if let Some(slots) = self.new_states.take() {
            tables.release(slots);
        }
    }

    /// Releases the states between the tokens of the last step.
    pub fn forget_drafted(&mut self, tables: &mut Tables) {
        if let Some(DraftedStates { before, slots }) = self.drafted.take() {
            before.release(tables);
            tables.release(slots);
        }
    }

    /// The slots that hold the state after each token of its last step; its content holds the last of them too.
    pub fn drafted_slots(&self) -> u32 {
        self.drafted.as_ref().map_or(0, |drafted| drafted.slots.len())
    }

    /// True if a draft can end with this many tokens: there is a state between those of its last step.
    pub fn has_drafted(&self, length: u32) -> bool {
        self.drafted.as_ref().is_some_and(|drafted| (drafted.before.length()..self.length()).contains(&length))
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

    /// Forgets the ids of tokens in content that may return.
    pub fn forget_bases_before(&mut self, forgotten: u64) {
        let before = self.drafted.as_mut().map(|drafted| &mut drafted.before);
        self.bases.iter_mut().chain(before).for_each(|content| content.forget_before(forgotten));
    }

    /// Reserves memory for the checkpoint at the end of a transaction.
    pub fn reserve_state_end(&mut self) -> Result<()> {
        if let Some(drafted) = &mut self.drafted {
            drafted.before.reserve_checkpoint()?;
        }
        self.content.reserve_checkpoint()
    }

    /// Ends a transaction and those inside it. If tokens are dropped, the content from before it returns, or that with the
    /// state after the last token that is kept.
    pub fn end_state_draft(&mut self, ending: &Ending, tables: &mut Tables) {
        let length = self.length() - ending.dropped;
        let bases = self.bases.drain(ending.depth()..).collect::<Vec<Content>>();
        let mut bases = bases.into_iter();
        if ending.dropped > 0 {
            let content = match ending.kept {
                0 => bases.next().expect("the content from before a transaction"),
                _ => self.cut_drafted(length, tables),
            };
            std::mem::replace(&mut self.content, content).release(tables);
        }
        bases.for_each(|base| base.release(tables));
        if ending.dropped > 0 || ending.is_outermost() {
            self.forget_drafted(tables);
        }
        self.drafts.end(ending);
        if ending.is_outermost() {
            self.content.name_state(true, tables);
        }
    }

    /// The content with the state after some of the tokens of the last step.
    fn cut_drafted(&mut self, length: u32, tables: &mut Tables) -> Content {
        let DraftedStates { before: mut content, slots } = self.drafted.take().expect("states that were checked");
        let kept = length - content.length();
        if let Some(last) = kept.checked_sub(1) {
            let slot = tables.get(&slots, last).expect("a slot for each token");
            let ids = self.drafted_ids.get(..kept as usize);
            content.step_state(slot, kept, ids, tables);
        }
        tables.release(slots);
        content
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
        let drafted = self.drafted.iter().flat_map(|drafted| [drafted.before.table(), &drafted.slots]);
        std::iter::once(self.content.table()).chain(&self.new_states).chain(bases).chain(drafted)
    }

    /// Releases all its blocks.
    pub fn release(mut self, tables: &mut Tables) {
        self.forget_drafted(tables);
        self.content.release(tables);
        self.new_states.into_iter().for_each(|slots| tables.release(slots));
        self.bases.into_iter().for_each(|base| base.release(tables));
    }
}
