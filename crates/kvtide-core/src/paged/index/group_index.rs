//! A group of layers as a prompt's look-up sees it: the index of its blocks, and its window. All groups have blocks of
//! one size.

use super::prefix_index::PrefixIndex;
use crate::error::{Error, Result, reserve};
use crate::paged::window::Window;

/// A group of layers: its index, and its window if it has one.
#[derive(Clone, Copy, Debug)]
pub struct GroupIndex<'a> {
    /// The index of its blocks.
    pub index: &'a PrefixIndex,
    /// The tokens that its tokens attend to, if not all.
    pub window: Option<Window>,
    /// True if its blocks are states: a prefix needs the state after its last token.
    pub keeps_states: bool,
}

/// The groups that keep tokens, if there are others that keep states beside them; else [`None`].
pub fn groups_of_tokens<'a>(groups: &[GroupIndex<'a>]) -> Result<Option<Vec<GroupIndex<'a>>>> {
    let count = groups.iter().filter(|group| !group.keeps_states).count();
    if count == 0 || count == groups.len() {
        return Ok(None);
    }
    let mut of_tokens = Vec::new();
    reserve(&mut of_tokens, count, "groups of layers")?;
    of_tokens.extend(groups.iter().filter(|group| !group.keeps_states));
    Ok(Some(of_tokens))
}

/// Number of tokens in a block of all groups.
pub(super) fn block_size(groups: &[GroupIndex<'_>]) -> Result<usize> {
    match groups.first() {
        Some(group) => Ok(group.index.block_size() as usize),
        None => Err(Error::argument("groups.length", 0, "at least 1")),
    }
}

/// Returns an error if a group has blocks of another size.
pub(super) fn check_sizes(groups: &[GroupIndex<'_>], size: usize) -> Result<()> {
    match groups.iter().map(|group| group.index.block_size()).find(|&other| other as usize != size) {
        Some(other) => Err(Error::argument("blockSize", other, format!("{size}, as in the first group"))),
        None => Ok(()),
    }
}
