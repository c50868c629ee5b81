//! What is to be written, checked: which positions each sequence gets, and how many blocks it lacks for them.

use std::ops::Range;

use super::state::{PlannerState, room};
use super::target::{Append, WriteTarget};
use crate::error::Result;
use crate::paged::sequence::Sequence;

/// What one sequence gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The sequence.
    pub sequence: u64,
    /// Where it sits.
    pub seat: u32,
    /// The first position.
    pub position: u32,
    /// How many tokens.
    pub tokens: u32,
    /// Blocks that it lacks for them.
    pub new_blocks: u32,
    /// Its length is at least this much then.
    pub end: u32,
    /// Whether a draft is open, which may take the tokens back.
    pub drafted: bool,
    /// Its runs end before this one.
    pub runs_end: u32,
}

impl Share {
    /// What a sequence gets of a target, in blocks of so many tokens; without its runs.
    pub fn new(seat: u32, of: &Sequence, target: &WriteTarget, size: u32) -> Self {
        let &WriteTarget { sequence, position, tokens } = target;
        let drafted = of.drafts().depth() > 0;
        let share = Share { sequence, seat, position, tokens: 0, new_blocks: 0, end: 0, drafted, runs_end: 0 };
        share.with_tokens(tokens, of.table().len(), size)
    }

    /// The same of its first `tokens` tokens.
    pub fn shortened(self, tokens: u32, size: u32) -> Self {
        // Where it lacked blocks, those before them are what the sequence has without it.
        self.with_tokens(tokens, self.end.div_ceil(size) - self.new_blocks, size)
    }

    fn with_tokens(self, tokens: u32, blocks: u32, size: u32) -> Self {
        let end = if tokens == 0 { 0 } else { self.position.saturating_add(tokens) };
        Share { tokens, end, new_blocks: end.div_ceil(size).saturating_sub(blocks), ..self }
    }
}

/// A write that was checked, of which a plan is made: see [`PagedPlanner::plan_write`](crate::paged::PagedPlanner::plan_write).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is planned yet"]
pub struct CheckedWrite {
    pub(super) layers: Range<u32>,
    pub(super) shares: Vec<Share>,
    /// For each token the one of its draft that it follows.
    pub(super) parents: Option<Vec<i32>>,
    pub(super) revision: u64,
}

impl CheckedWrite {
    /// Tokens of all layers that are appended.
    pub(in crate::paged) fn of_append(append: &Append<'_>, state: PlannerState<'_>) -> Result<Self> {
        let (mut shares, mut parents) = (Vec::new(), None);
        room(&mut shares, append.sequences.len())?;
        append.each_target(state, |seat, of, target| shares.push(Share::new(seat, of, &target, state.block_size())))?;
        if let Some(of_append) = append.parents {
            let mut copy = Vec::new();
            room(&mut copy, of_append.len())?;
            copy.extend_from_slice(of_append);
            parents = Some(copy);
        }
        let layers = 0..state.tables.pool().num_layers();
        Ok(CheckedWrite { layers, shares, parents, revision: state.revision })
    }

    /// Tokens of one layer, whose target was checked.
    pub(in crate::paged) fn of_layer(layer: u32, target: &WriteTarget, state: PlannerState<'_>) -> Result<Self> {
        let seat = state.sequences.seat(target.sequence)?;
        let mut shares = Vec::new();
        room(&mut shares, 1)?;
        shares.push(Share::new(seat, state.sequences.at(seat), target, state.block_size()));
        Ok(CheckedWrite { layers: layer..layer + 1, shares, parents: None, revision: state.revision })
    }

    /// Tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.shares.iter().map(|share| share.tokens).sum()
    }

    /// Blocks that its sequences lack.
    pub(super) fn new_blocks(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.new_blocks)).sum()
    }

    /// Before which change it was checked.
    pub(in crate::paged) fn revision(&self) -> u64 {
        self.revision
    }
}
