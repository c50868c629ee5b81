//! What one sequence gets of a write: positions, and the blocks that it lacks.

use super::target::Target;
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
    pub fn new(seat: u32, of: &Sequence, target: &Target, size: u32) -> Self {
        let &Target { sequence, position, tokens } = target;
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
