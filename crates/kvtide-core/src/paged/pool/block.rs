//! What is known of each block.

use super::policy::PRIORITY_DEFAULT;

/// Which of the sets a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Somebody holds it.
    Active,
    /// Nobody holds it; its content can be found.
    Cached,
    /// Nobody holds it.
    Free,
    /// Never handed out again.
    Retired,
}

/// The record of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// How often it is held; of a cached one, which nobody holds, the turn that it was released in.
    pub number: u32,
    pub set: BlockState,
    pub priority: u8,
    /// At least this rank, for blocks behind it that were released before.
    pub inherited: u8,
    /// The one that it goes by, while it is cached.
    pub rank: u8,
}

impl Block {
    /// A block that nobody holds and that was given nothing.
    pub const FREE: Block =
        Block { number: 0, set: BlockState::Free, priority: PRIORITY_DEFAULT, inherited: 0, rank: 0 };

    /// How often it is held.
    pub fn count(&self) -> u32 {
        if self.set == BlockState::Active { self.number } else { 0 }
    }
}
