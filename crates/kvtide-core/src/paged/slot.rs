//! Where one token of one layer lies.

/// A token's place in the slab; the same for every head of its layer, in K and in V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Index of the block.
    pub block: u32,
    /// Slot in the block.
    pub slot: u32,
}
