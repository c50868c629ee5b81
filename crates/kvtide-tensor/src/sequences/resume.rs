//! Going on with a sequence whose prompt was edited, or goes on: what both begin with is kept. Ids that are said later.
//!
//! ```text
//! sequence   a b c d e f g        prompt   a b c x y        kept   a b c
//! ```
//!
//! Tokens are compared by their ids, and those that left a window by the name of their prefix. O(tokens).

use super::PagedKvCache;
use crate::base::error::{Error, Result};
use crate::paged::PageGroup;

impl PagedKvCache {
    /// Keeps what a sequence has of the start of a prompt, drops the rest, and says how many tokens it has then: never the last of the
    /// prompt, whose logits the model needs. Ids tell which tokens those are; behind the first without one nothing is kept. Where a window
    /// has dropped tokens that the next one would see, its sinks are kept.
    pub fn resume(&mut self, sequence: u64, tokens: &[u32]) -> Result<u32> {
        self.collect()?;
        let most = u32::try_from(tokens.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let mut common = 0;
        for group in &self.groups {
            common = common.max(group.planner().common_length(sequence, tokens)?);
        }
        let common = common.min(most);
        match self.truncate(sequence, common) {
            Err(Error::Plan(kvtide_core::Error::CannotRollBack { .. })) => {}
            ended => return ended.map(|()| common),
        }
        let sinks = |group: &PageGroup| {
            let (planner, window) = (group.planner(), group.planner().window()?);
            Some(window.sinks().next_multiple_of(planner.block_size()))
        };
        let kept = self.groups.iter().filter_map(sinks).min().unwrap_or(0).min(common);
        self.truncate(sequence, kept)?;
        Ok(kept)
    }

    /// Notes the ids of a sequence's leading tokens, which were appended without, and says of how many they are known then: prompts
    /// find their full blocks from now on. Blocks that others hold get no ids, nor does what was there when prefixes were forgotten.
    pub fn identify(&mut self, sequence: u64, tokens: &[u32]) -> Result<u32> {
        self.check_all(|group| Ok(group.planner().check_identify(sequence, tokens)?))?;
        let mut known = u32::MAX;
        for group in &mut self.groups {
            known = known.min(group.identify(sequence, tokens)?);
        }
        Ok(known)
    }
}
