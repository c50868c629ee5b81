//! Why a prompt was not found further.
//!
//! ```text
//! tokens   [ block 0 ][ block 1 ][ block 2 ]
//! found        yes        yes        no: evicted | not committed | other salt | never seen
//! ```
//!
//! The answer tells that others have the same prompt, so it is for whoever runs the cache, not for its tenants. Evictions and other
//! salts are remembered as far as there is room. O(tokens), for the block that differs O(roots kept * tokens), and of a planner
//! O(sequences + drafted tokens).

use super::identity::Prompt;
use super::key::{BlockKey, Extras};
use super::prefix_index::PrefixIndex;
use super::prefix_match::{GroupIndex, PrefixMatch, block_size};
use crate::error::Result;

/// Why a block was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// A sequence has its tokens, and some of them can be taken back or are not written in all layers yet.
    NotCommitted,
    /// It was in the index and had to make room, not long ago.
    Evicted,
    /// A group of layers with a window has given up what the next token would see, or the block of the prefix's last token.
    WindowGone,
    /// The same tokens are there under another salt or namespace, or with other extras.
    OtherSalt,
    /// None of that.
    NeverSeen,
}

/// How far a prompt is found, and why no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Tokens found.
    pub matched: u32,
    /// The first block that was not, and why; none when everything was found that can be.
    pub missing: Option<(u32, MissReason)>,
}

impl Explanation {
    /// How far the whole blocks of a prompt are found in all groups, and why no further. In a group the block of a key and a place may
    /// be one that somebody drafts.
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
    /// How far the whole blocks of a prompt are found under a root, and why no further.
    pub fn explain(&self, root: &BlockKey, tokens: &[u32], extras: &Extras) -> Result<Explanation> {
        Explanation::new(&[GroupIndex { index: self, window: None }], Prompt { root, tokens, extras }, |_, _, _| false)
    }
}
