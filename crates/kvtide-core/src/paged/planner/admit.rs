//! Admission: reserves blocks in every group for a prompt and its answer, or reports the blocks that are lacking.
//!
//! ```text
//! [ found: held by others, or revived ][ rest of the prompt ][ answer ]
//!                                      `---- blocks that are taken ----'
//! ```
//!
//! In a group with a window, only the blocks that one append and its window use at the same time are taken: later
//! blocks replace those that leave the window. A prompt that is not admitted does not count toward the hit rate.
//! O(tokens).

use super::paged_planner::PagedPlanner;
use super::prefix::{hold_found, look};
use crate::count::count;
use crate::error::{Result, reserve};
use crate::paged::index::{Identity, PrefixMatch};
use crate::paged::sequence::HeldContent;

/// The demands of a new sequence.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmissionRequest<'a> {
    /// The ids of its prompt.
    pub tokens: &'a [u32],
    /// Number of tokens that follow the prompt.
    pub answer: u32,
    /// The most tokens that are appended at once; by default, the part of the prompt that is not cached.
    pub step: Option<u32>,
    /// Number of blocks that must stay free in addition.
    pub watermark: u32,
}

/// The prefix and the blocks that a sequence was admitted with.
#[derive(Debug)]
pub struct Admitted<H> {
    /// The prefix that was found, as each group holds it.
    pub held: Vec<H>,
    /// The number of tokens for which each group must provide blocks.
    pub tokens: Vec<u32>,
}

/// The result of an admission, or the shortage that prevents it.
pub type Admission<T> = std::result::Result<T, Lacking>;

/// The shortage of the first group that has too few blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// The number of the group.
    pub group: usize,
    /// Blocks that the group needs, including the watermark.
    pub needed: u64,
    /// Blocks that can be taken.
    pub free: u32,
    /// All blocks of the group. If there are fewer than needed, the sequence can never be admitted.
    pub total: u32,
}

/// Holds the cached prefix of a prompt and returns the number of tokens for which each group needs blocks. If a group
/// has too few blocks, returns that group, and nothing has changed.
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

/// The blocks to take behind a prefix.
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
        if self.keeps_states {
            return Taken { blocks: u32::from(all > 0), tokens: all };
        }
        let mut blocks = all.div_ceil(size).saturating_sub(there);
        if let Some(window) = self.window {
            let step = asked.step.unwrap_or(prompt - found.tokens()).max(1);
            let seen = (window.tokens().saturating_add(step) - 2).div_ceil(size) + 1;
            blocks = blocks.min(seen.saturating_add(window.sinks().div_ceil(size).saturating_sub(there)));
        }
        Taken { blocks, tokens: all.min((there + blocks).saturating_mul(size)) }
    }
}
