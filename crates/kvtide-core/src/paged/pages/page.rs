//! Where tokens lie: pages, and slots in them.

/// One layer of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page {
    /// Index of the block.
    pub block: u32,
    /// The layer.
    pub layer: u32,
}

/// A token's place in the slab; the same for every head of its layer, in K and in V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Index of the block.
    pub block: u32,
    /// Slot in the block.
    pub index: u32,
}

/// A page with tokens to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRead {
    /// Index of the block in the slab.
    pub block: u32,
    /// Tokens in it.
    pub tokens: u32,
    /// Its staging page, when its rows lie there.
    pub staged: Option<u32>,
}
