//! States: a group of layers that keep a state of a fixed size for a sequence, instead of tokens.
//!
//! ```text
//! step      new slot -> the state after its tokens; the slot before is released, unless others hold it
//! fork      both hold the same slot                                     snapshot, restore: the same
//! draft     the content from before it is kept; all of its tokens are committed, or none, or, if its last step keeps the state
//!           after each token, those up to any token of that step
//! truncate  to a length at which there is a checkpoint, and to 0
//! ```
//!
//! A sequence holds one block, the slot of its state, at the place of its last token. A slot is never written again, so
//! nothing is ever copied. Slots at the end of a block are found by prompts: see `sequence/content/states.rs`.

use super::paged_planner::PagedPlanner;
use crate::error::{Error, Result, reserve};
use crate::paged::index::{Identity, PrefixMatch, groups_of_tokens};
use crate::paged::plan::{EndPlan, WritePlan};
use crate::paged::pool::PagePool;
use crate::paged::sequence::{Content, KeyChain, Sequence};
use crate::paged::table::Table;
use crate::paged::window::Window;

impl PagedPlanner {
    /// Keeps states: a block is the state of a sequence, of all layers.
    #[must_use]
    pub fn keeping_states(mut self) -> Self {
        self.keeps_states = true;
        self.tables = self.tables.with_pool(PagePool::keeping_states);
        // A prefix needs the state after its last token alone.
        self.window = Window::new(1, 0).ok();
        self
    }

    /// Keeps the state after each token of a draft's step from now on, or not: then a part of the step can be committed. A step
    /// keeps only the last state if the slots for the others are neither unused nor few of all slots. Its writer must write all
    /// slots of the plan, or call [`PagedPlanner::forget_drafted_states`].
    pub fn keep_drafted_states(&mut self, each: bool) {
        self.drafts_each = self.keeps_states && each;
    }

    /// Releases the states between the tokens of a draft's last step, which were not written.
    pub fn forget_drafted_states(&mut self, sequence: u64) -> Result<()> {
        let seat = self.sequences.seat(sequence)?;
        self.sequences.at_mut(seat).forget_drafted(&mut self.tables);
        self.changed();
        Ok(())
    }

    /// The slots that only states between drafted tokens hold.
    pub(super) fn spare_states(&self) -> u32 {
        let spare = |of: &Sequence| of.drafted_slots().saturating_sub(1);
        if self.drafts_each { self.sequences.iter().map(spare).sum() } else { 0 }
    }

    /// Releases the states between drafted tokens if `needed` slots can be taken only without them. Their drafts can then be
    /// committed as a whole alone. Returns true if some were released.
    pub fn make_room_for_states(&mut self, needed: u64) -> bool {
        let free = u64::from(self.tables.pool().blocks().available());
        // The state before a step may be released too.
        let most = |of: &Sequence| u64::from(of.drafted_slots());
        if needed <= free || needed > free + self.sequences.iter().map(most).sum::<u64>() {
            return false;
        }
        for of in self.sequences.iter_mut() {
            of.forget_drafted(&mut self.tables);
        }
        self.changed();
        true
    }

    /// True if a block is a state.
    #[must_use]
    pub fn keeps_states(&self) -> bool {
        self.keeps_states
    }

    /// The slot of a sequence's state, without an open step; [`None`] for a sequence without tokens.
    pub fn state_slot(&self, sequence: u64) -> Result<Option<u32>> {
        Ok(self.sequences.find(sequence)?.content().state(&self.tables))
    }

    /// For each slot, the number of tokens before a state that prompts can find; 0 if they cannot, or if it was loaded and
    /// not found since. O(slots).
    pub fn state_ends(&self) -> Result<Vec<u32>> {
        let (pool, mut ends) = (self.tables.pool(), Vec::new());
        reserve(&mut ends, pool.blocks().capacity() as usize, "states of blocks")?;
        ends.extend((0..pool.blocks().capacity()).map(|block| pool.end(block)));
        Ok(ends)
    }

    /// The lengths of a sequence at which there is a checkpoint, ascending. O(checkpoints).
    pub fn checkpoints_of(&self, sequence: u64) -> Result<Vec<u32>> {
        let mut lengths: Vec<u32> = self.sequences.find(sequence)?.content().checkpoint_lengths(&self.tables).collect();
        lengths.reverse();
        Ok(lengths)
    }

    /// The greatest length up to `length` to which a sequence can be truncated.
    pub fn state_below(&self, sequence: u64, length: u32) -> Result<u32> {
        Ok(self.sequences.find(sequence)?.content().state_below(length, &self.tables))
    }

    pub(super) fn empty_content(&self, identity: Identity) -> Content {
        let content = Content::new(KeyChain::new(identity, self.forgotten));
        if self.keeps_states { content.keeping_states() } else { content }
    }

    /// Returns an error if a sequence has no state at a length.
    pub(super) fn check_state(&self, seat: u32, length: u32) -> Result<()> {
        let content = self.sequences.at(seat).content();
        let below = content.state_below(length, &self.tables);
        if below == length {
            return Ok(());
        }
        Err(Error::NoStateHere {
            requested: length.into(),
            seq_len: content.length().into(),
            below: below.into(),
            above: content.state_above(length, &self.tables).map(u64::from),
        })
    }

    /// Returns an error if a transaction would keep some of its tokens, and not all.
    pub(super) fn check_state_end(&self, plan: &EndPlan) -> Result<()> {
        let (of, ending) = (self.sequences.at(plan.seat()), plan.ending());
        if ending.dropped == 0 || ending.kept == 0 || of.has_drafted(plan.length()) {
            return Ok(());
        }
        Err(Error::NoStateHere {
            requested: plan.length().into(),
            seq_len: of.length().into(),
            below: u64::from(plan.length() - ending.kept),
            above: Some(of.length().into()),
        })
    }

    /// Returns an error if ids differ from the known ones.
    pub(super) fn check_identify_state(&self, content: &Content, tokens: &[u32]) -> Result<()> {
        let (length, known) = (content.length(), content.keys().known());
        let differs = known == length && tokens.len() as u64 == u64::from(length) && length > 0;
        if !differs || content.common_state(tokens, &self.tables) == length {
            return Ok(());
        }
        Err(Error::argument("tokens", "others", "the ids of the sequence, which are known"))
    }

    /// Takes the slots of a plan.
    pub(super) fn occupy_slots(&mut self, plan: &WritePlan) {
        for (share, ..) in plan.shares().filter(|(share, ..)| share.tokens > 0) {
            let mut slot = Table::default();
            self.tables.add_new(&mut slot, share.new_blocks);
            self.sequences.at_mut(share.seat).hold_new_states(slot);
        }
    }

    /// Makes the slots of a plan the states of its sequences.
    pub(super) fn advance_states(&mut self, plan: &WritePlan, tokens: Option<&[u32]>) {
        let mut first = 0;
        for (share, ..) in plan.shares() {
            let own = first..first + share.tokens as usize;
            first = own.end;
            let ids = tokens.map(|ids| &ids[own]);
            self.sequences.at_mut(share.seat).append_state(share.tokens, ids, &mut self.tables);
        }
    }
}

/// The states of a prompt in all groups that keep states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptStates {
    /// Number of tokens that a prompt finds in all groups.
    pub found: u32,
    /// Number of tokens that it would find with a state at each block.
    pub cached: u32,
    /// The next length behind `found`, up to `cached`, at which there is a state in all groups.
    pub above: Option<u32>,
}

/// The number of tokens of a prompt that are found, and that would be found with a state at each block: what is between
/// them is lost for want of a checkpoint. O(tokens).
pub fn prompt_states(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity) -> Result<PromptStates> {
    let all = super::prefix::asked_of(planners.iter().copied())?;
    let found = PrefixMatch::find(&all, identity.prompt(tokens))?.tokens();
    let Some(of_tokens) = groups_of_tokens(&all)? else {
        return Ok(PromptStates { found, cached: found, above: None });
    };
    let cached = PrefixMatch::find(&of_tokens, identity.prompt(tokens))?;
    let size = planners[0].block_size();
    let has_state = |place: &usize| {
        let key = &cached.keys()[*place];
        all.iter().filter(|group| group.keeps_states).all(|group| group.index.contains(key))
    };
    let above = (found as usize / size as usize..cached.length()).find(has_state);
    Ok(PromptStates { found, cached: cached.tokens(), above: above.map(|place| (place as u32 + 1) * size) })
}
