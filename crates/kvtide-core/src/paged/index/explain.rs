//! Explains why a prompt's cached prefix ends where it does.
//!
//! ```text
//! tokens   [ block 0 ][ block 1 ][ block 2 ]
//! hit          yes        yes        no: evicted | not committed | other salt | never seen
//! ```
//!
//! The answer reveals that others have the same prompt, so it is for the operator of the cache, not for its tenants.
//! Only recent evictions and salts are remembered. O(tokens), plus O(roots kept * tokens) for the block that differs,
//! plus, for a planner, O(sequences + drafted tokens).

use super::group_index::{GroupIndex, block_size, groups_of_tokens};
use super::identity::Prompt;
use super::key::{BlockKey, Extras};
use super::prefix_index::PrefixIndex;
use super::prefix_match::PrefixMatch;
use crate::error::Result;

/// The reason why a block was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// A sequence has the block's tokens, but some of them can be rolled back or are not written in all layers yet.
    NotCommitted,
    /// The block was in the index and was evicted recently.
    Evicted,
    /// A group of layers with a window has released tokens that the next token would attend to, or the block of the
    /// prefix's last token.
    WindowGone,
    /// The same tokens are cached under another salt or namespace, or with other extras.
    OtherSalt,
    /// The block is cached in all groups of attention, but there is no state after its last token, nor after that of any
    /// later block of the prompt that is cached.
    NoStateHere,
    /// None of the above.
    NeverSeen,
}

/// The length of a prompt's cached prefix, and the reason why it ends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Number of tokens found.
    pub matched: u32,
    /// The first block that was not found, and the reason; [`None`] if every full block was found.
    pub missing: Option<(u32, MissReason)>,
}

impl Explanation {
    /// Explains the length of a prompt's prefix of full blocks that is cached in all groups. `is_drafted` returns true
    /// if a sequence drafts the block of a key at a place in a group.
    pub(in crate::paged) fn new(
        groups: &[GroupIndex<'_>],
        prompt: Prompt<'_>,
        is_drafted: impl Fn(usize, &BlockKey, u32) -> bool,
    ) -> Result<Self> {
        let (found, size) = (PrefixMatch::find(groups, prompt)?, block_size(groups)?);
        let (place, matched) = (found.length(), found.tokens());
        if place == prompt.blocks_max(size) {
            return Ok(Explanation { matched, missing: None });
        }
        let of_tokens = groups_of_tokens(groups)?;
        let groups = of_tokens.as_deref().unwrap_or(groups);
        if of_tokens.is_some() && PrefixMatch::find(groups, prompt)?.length() > place {
            return Ok(Explanation { matched, missing: Some((place as u32, MissReason::NoStateHere)) });
        }
        let (parent, block) = (prompt.parent(found.keys(), place), prompt.block(place, size));
        let key = parent.child(block, matched, prompt.extras);
        let lacks = |group: &GroupIndex<'_>| group.index.find(&key, parent, block, matched, prompt.extras).is_none();
        let has_full = groups.iter().any(|group| group.window.is_none());
        let mut asked = groups.iter().enumerate().filter(|(_, group)| group.window.is_none() == has_full);
        let reason = match asked.find(|(_, group)| lacks(group)) {
            Some((at, _)) if is_drafted(at, &key, place as u32) => MissReason::NotCommitted,
            Some((_, group)) => {
                let tokens = &prompt.tokens[..(place + 1) * size];
                match group.index.was_evicted(&key) {
                    true => MissReason::Evicted,
                    false if group.index.is_under_another_root(Prompt { tokens, ..prompt }) => MissReason::OtherSalt,
                    false if group.index.is_under_other_extras(parent, block, matched, prompt.extras) => {
                        MissReason::OtherSalt
                    }
                    false => MissReason::NeverSeen,
                }
            }
            None => MissReason::WindowGone,
        };
        Ok(Explanation { matched, missing: Some((place as u32, reason)) })
    }
}

impl PrefixIndex {
    /// Explains the length of a prompt's prefix of full blocks under a root.
    pub fn explain(&self, root: &BlockKey, tokens: &[u32], extras: &Extras) -> Result<Explanation> {
        Explanation::new(
            &[GroupIndex { index: self, window: None, keeps_states: false }],
            Prompt { root, tokens, extras },
            |_, _, _| false,
        )
    }
}
