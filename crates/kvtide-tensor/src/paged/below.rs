//! The tiers below a cache, as its groups see them: they say which blocks they want, and take them.

use std::collections::VecDeque;
use std::sync::Arc;

use kvtide_core::paged::{BlockKey, BlockName};

use crate::base::error::Result;

/// The reason for which a block may be offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Descent {
    /// The block was hashed.
    Named,
    /// A prompt hit the block.
    Found,
    /// The block is evicted.
    Evicted,
}

/// The tiers below a cache, which take its blocks. Its methods are called on the cache's thread: they must return at once,
/// and must not panic.
pub trait Below: Send + Sync + std::fmt::Debug {
    /// True if the tiers would take a block of a group now.
    fn wants(&self, group: usize, key: &BlockKey, why: Descent) -> bool;

    /// Takes a block that was wanted. `copy` appends the block's bytes, all layers, to a vector with enough capacity.
    fn take(&self, group: usize, name: &BlockName<'_>, why: Descent, copy: &mut dyn FnMut(&mut Vec<u8>) -> Result<()>);

    /// Invalidates all blocks that were taken: they must not be hit any more.
    fn forget(&self);
}

/// The tiers below a group.
#[derive(Debug)]
pub(crate) struct BelowGroup {
    pub(super) taker: Arc<dyn Below>,
    /// The index of the group in its cache.
    pub(super) at: usize,
    /// Blocks that were hashed and not offloaded yet, the oldest first; some may have lost their key since.
    pub(super) named: VecDeque<u32>,
}
