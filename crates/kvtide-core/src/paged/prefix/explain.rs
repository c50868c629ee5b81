//! Why a prompt was not found further.
//!
//! ```text
//! tokens   [ block 0 ][ block 1 ][ block 2 ]
//! found        yes        yes        no: evicted | not committed | other salt | never seen
//! ```
//!
//! For people who look into one prompt: O(tokens), and for the block that differs O(roots kept * tokens), and of a planner
//! O(sequences + drafted tokens). The answer tells that others have the same prompt, so it is for whoever runs the cache, not for its tenants. Evictions and
//! other salts are remembered as far as there is room; where it was not enough the answer is `NeverSeen`.

use super::extra::Extras;
use super::index::PrefixIndex;
use super::key::Key;
use crate::error::Result;

/// Why a block was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A sequence has its tokens, and some of them can be taken back or are not written in all layers yet.
    NotCommitted,
    /// It was in the index and had to make room, not long ago.
    Evicted,
    /// A group of layers with a window has given up what the next token would see, or the block of the prefix's last token.
    WindowGone,
    /// The same tokens are there under another salt or namespace.
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
    pub missing: Option<(u32, Reason)>,
}

impl PrefixIndex {
    /// How far the whole blocks of a prompt are found under a root, and why no further.
    pub fn explain(&self, root: &Key, tokens: &[u32], extras: &Extras) -> Result<Explanation> {
        self.explain_beside(root, tokens, extras, |_, _| false)
    }

    /// The same, where the block of a key and a place may be one that somebody drafts.
    pub(in crate::paged) fn explain_beside(
        &self,
        root: &Key,
        tokens: &[u32],
        extras: &Extras,
        is_drafted: impl Fn(&Key, u32) -> bool,
    ) -> Result<Explanation> {
        let found = self.find_prefix(root, tokens, extras)?;
        let (size, blocks) = (self.block_size() as usize, found.blocks.len());
        let matched = (blocks * size) as u32;
        let differs = blocks < tokens.len().saturating_sub(1) / size;
        let missing = differs.then(|| {
            let parent = found.keys.last().unwrap_or(root);
            let key = parent.child(&tokens[blocks * size..][..size], matched, extras);
            let reason = match is_drafted(&key, blocks as u32) {
                true => Reason::NotCommitted,
                false => self.reason(root, &key, &tokens[..(blocks + 1) * size], extras),
            };
            (blocks as u32, reason)
        });
        Ok(Explanation { matched, missing })
    }

    /// Why a block of this name was not found, the last one of these tokens, which nobody drafts.
    pub(in crate::paged) fn reason(&self, root: &Key, key: &Key, tokens: &[u32], extras: &Extras) -> Reason {
        if self.evicted.contains(key) {
            return Reason::Evicted;
        }
        match self.roots.others(root).any(|other| self.ends_in_index(other, tokens, extras)) {
            true => Reason::OtherSalt,
            false => Reason::NeverSeen,
        }
    }

    /// Whether the last block of `tokens` is found under a root.
    fn ends_in_index(&self, root: &Key, tokens: &[u32], extras: &Extras) -> bool {
        let size = self.block_size() as usize;
        let (before, last) = tokens.split_at(tokens.len() - size);
        let mut parent = *root;
        for (at, block) in before.chunks_exact(size).enumerate() {
            parent = parent.child(block, (at * size) as u32, extras);
        }
        let position = before.len() as u32;
        self.find(&parent.child(last, position, extras), &parent, last, position, extras).is_some()
    }
}
