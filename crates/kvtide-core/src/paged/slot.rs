//! Where one token of one layer lies, and the plan to write it there.

/// A token's place in the slab; the same for every head of its layer, in K and in V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Index of the block.
    pub block: u32,
    /// Slot in the block.
    pub slot: u32,
}

/// What writing one token will do. Nothing has happened yet: the blocks are still free, the slot not yet marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is committed"]
pub struct SlotPlan {
    /// The sequence written to.
    pub sequence: u64,
    /// The layer written to.
    pub layer: u32,
    /// The token's position in the sequence.
    pub position: u32,
    /// Blocks that the commit will take for the sequence.
    pub new_blocks: u32,
    /// Where the bytes go. A block yet to be taken is in no other sequence, so bytes may be moved before the commit: if
    /// moving them fails, nobody sees what was written.
    pub slot: Slot,
}
