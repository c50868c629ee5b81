//! Reuse of a sequence for an edited or longer prompt: the common prefix is kept. Also token ids that are given later.
//!
//! ```text
//! sequence   a b c d e f g        prompt   a b c x y        kept   a b c
//! ```
//!
//! Tokens are compared by their ids, and tokens outside a window by the key of their prefix. O(tokens).

use super::PagedKvCache;
use crate::base::error::{Error, Result};
use crate::paged::PageGroup;

impl PagedKvCache {
    /// Keeps the tokens that a sequence has in common with the start of a prompt, drops the rest, and returns the number of
    /// kept tokens: never all of the prompt, because the model needs the logits of its last token. Tokens are compared by
    /// id, so everything from the first token without an id on is dropped. If a window has dropped tokens to which the next
    /// one would attend, the sinks are kept. If layers keep states, the sequence goes back to the last checkpoint before.
    pub fn resume(&mut self, sequence: u64, tokens: &[u32]) -> Result<u32> {
        self.collect()?;
        let most = u32::try_from(tokens.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let mut common = 0;
        for group in &self.groups {
            common = common.max(group.planner().common_length(sequence, tokens)?);
        }
        let common = self.state_below(sequence, common.min(most))?;
        match self.truncate(sequence, common) {
            Err(Error::Plan(kvtide_core::Error::CannotRollBack { .. })) => {}
            ended => return ended.map(|()| common),
        }
        let sinks = |group: &PageGroup| {
            let (planner, window) = (group.planner(), group.planner().window()?);
            Some(window.sinks().next_multiple_of(planner.block_size()))
        };
        let kept = self.groups_of_tokens().filter_map(sinks).min().unwrap_or(0).min(common);
        let kept = self.state_below(sequence, kept)?;
        self.truncate(sequence, kept)?;
        Ok(kept)
    }

    /// Sets the ids of a sequence's leading tokens that were appended without ids, and returns the number of tokens with
    /// known ids: prompts can hit their full blocks from then on. Blocks that others hold get no ids, nor do blocks from
    /// before prefixes were forgotten.
    pub fn identify(&mut self, sequence: u64, tokens: &[u32]) -> Result<u32> {
        self.check_all(|group| Ok(group.planner().check_identify(sequence, tokens)?))?;
        let mut known = u32::MAX;
        for group in &mut self.groups {
            known = known.min(group.identify(sequence, tokens)?);
        }
        Ok(known)
    }
}
