//! Admission: a prompt gets room for itself and for what follows it, in every group, or it is said what is lacking.
//!
//! ```text
//! [ found: held by others, or revived ][ rest of the prompt ][ answer ]
//!                                      `---- blocks that are taken ----'
//! ```
//!
//! In a group with a window only those blocks are taken that one append and its window have at once: later ones take the place of those
//! that leave it. What is lacking is not counted as asked for. O(tokens).

use super::paged_planner::PagedPlanner;
use super::prefix::{hold_found, look};
use crate::count::count;
use crate::error::{Result, reserve};
use crate::paged::index::{Identity, PrefixMatch};
use crate::paged::sequence::HeldContent;

/// What a new sequence needs room for.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmissionRequest<'a> {
    /// The ids of its prompt.
    pub tokens: &'a [u32],
    /// Tokens that follow it.
    pub answer: u32,
    /// The most tokens that are appended at once; all of the prompt that is not there, where it is not said.
    pub step: Option<u32>,
    /// Blocks that stay free beside.
    pub watermark: u32,
}

/// What a sequence was admitted with.
#[derive(Debug)]
pub struct Admitted<H> {
    /// The prefix that was found, as each group holds it.
    pub held: Vec<H>,
    /// The tokens that each group has to have blocks for.
    pub tokens: Vec<u32>,
}

/// What was admitted, or why there is no room.
pub type Admission<T> = std::result::Result<T, Lacking>;

/// Why there is no room: of the first group without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// The number of the group.
    pub group: usize,
    /// Blocks that it needs, with the watermark.
    pub needed: u64,
    /// Blocks that can be taken.
    pub free: u32,
    /// Blocks that it has in all: where fewer than are needed, there never is room.
    pub total: u32,
}

/// Holds what is there of a prompt and says for how many tokens each group needs blocks; or which group has not enough of them, where
/// nothing has changed.
pub fn admit_in_groups(
    planners: &mut [&mut PagedPlanner],
    asked: AdmissionRequest<'_>,
    identity: &Identity,
) -> Result<Admission<Admitted<HeldContent>>> {
    count("tokens.length", asked.tokens.len() as u64 + u64::from(asked.answer))?;
    let found = look(planners, asked.tokens, identity, false)?;
    let mut tokens = Vec::new();
    reserve(&mut tokens, planners.len(), "groups of layers")?;
    for (group, planner) in planners.iter().enumerate() {
        let taken = planner.taken_for(asked, &found);
        let needed = u64::from(taken.blocks) + planner.revived(&found, group) + u64::from(asked.watermark);
        let free = planner.free_count();
        if needed > free.into() {
            return Ok(Err(Lacking { group, needed, free, total: planner.total_count() }));
        }
        tokens.push(taken.tokens);
    }
    let held = hold_found(planners, &found, asked.tokens, identity)?;
    Ok(Ok(Admitted { held, tokens }))
}

/// What is taken behind a prefix.
struct Taken {
    blocks: u32,
    /// All tokens up to the end of these blocks, or of the sequence.
    tokens: u32,
}

impl PagedPlanner {
    fn taken_for(&self, asked: AdmissionRequest<'_>, found: &PrefixMatch) -> Taken {
        let (size, prompt) = (self.block_size(), asked.tokens.len() as u32);
        let all = prompt + asked.answer;
        let there = found.length() as u32;
        let mut blocks = all.div_ceil(size).saturating_sub(there);
        if let Some(window) = self.window {
            let step = asked.step.unwrap_or(prompt - found.tokens()).max(1);
            let seen = (window.tokens().saturating_add(step) - 2).div_ceil(size) + 1;
            blocks = blocks.min(seen.saturating_add(window.sinks().div_ceil(size).saturating_sub(there)));
        }
        Taken { blocks, tokens: all.min((there + blocks).saturating_mul(size)) }
    }
}
