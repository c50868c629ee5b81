//! The slots and staging pages that a write's rows go to, and the staged pages that are quantised once they are full.

use crate::paged::pages::Page;

/// Neighbouring slots of one block that get neighbouring tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// Index of the block.
    pub block: u32,
    /// The first slot.
    pub slot: u32,
    /// The number of slots.
    pub len: u32,
    /// The first of the tokens, counted within the call.
    pub token: u32,
    /// True if the rows go to staging pages, which the plan lists.
    pub staged: bool,
}

/// A write to some slots of a low-bit page: the rows go to its staging page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWrite {
    /// The index of the run in the plan.
    pub run: u32,
    /// The page.
    pub page: Page,
    /// The staging page.
    pub staged: u32,
    /// The content of the staging page before the write.
    pub before: StagingContent,
    /// True if all slots are written afterwards, so the page is quantised.
    pub completes: bool,
    /// True if, in addition, the write commits all of them, so the staging page is released.
    pub fills: bool,
}

/// The content of a staging page before a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingContent {
    /// Rows of this page, and zeros.
    Own,
    /// Zeros: the staging page was never used.
    Zeros,
    /// Rows of another page, which must be zeroed.
    Other,
    /// Rows of another page, which must be overwritten by those of this page, which is quantised already.
    Sealed,
}

/// A page to quantise because it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The page.
    pub page: Page,
    /// The staging page that contains its rows.
    pub staged: u32,
}
