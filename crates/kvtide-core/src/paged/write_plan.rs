//! What writing tokens will do: which slots they go to, and, for low-bit pages, through which staging pages.

use std::ops::Range;

use super::room::Room;
use super::staging::Page;

/// Neighbouring slots of one block that get neighbouring tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// Index of the block.
    pub block: u32,
    /// The first slot.
    pub slot: u32,
    /// How many.
    pub len: u32,
    /// The first of the tokens, counted in the call.
    pub token: u32,
    /// True when its rows go to staging pages: the plan names them.
    pub staged: bool,
}

/// A part of a low-bit page that is written: the rows go to its staging page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWrite {
    /// Which run of the plan.
    pub run: u32,
    /// The page.
    pub page: Page,
    /// Its staging page.
    pub staged: u32,
    /// What lies in the staging page.
    pub before: Before,
    /// True when all slots are written and committed then: the page is quantised, and its staging page given back.
    pub fills: bool,
}

/// What lies in a staging page before a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The page's rows, and zeros.
    Rows,
    /// Zeros: nobody has used it.
    Zeros,
    /// Rows of another page, to be zeroed.
    Other,
    /// Rows of another page, to be written over by those of this one, which is quantised already.
    Sealed,
}

/// A page to quantise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The page.
    pub page: Page,
    /// The staging page with its rows.
    pub staged: u32,
}

/// What writing tokens of one or more sequences will do. Nothing has happened yet: blocks are still free, slots not marked.
///
/// A block yet to be taken is in no other sequence, so bytes may be moved before the commit: if moving them fails, nobody
/// sees what was written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is committed"]
pub struct WritePlan {
    pub(super) layers: Range<u32>,
    pub(super) tokens: u32,
    pub(super) new_blocks: u32,
    pub(super) shares: Vec<Share>,
    pub(super) runs: Vec<SlotRun>,
    pub(super) pages: Vec<PageWrite>,
    pub(super) new_staged: u32,
    pub(super) staging_pages: u32,
    /// For each token the one of its draft that it follows.
    pub(super) parents: Option<Vec<i32>>,
    pub(super) revision: u64,
}

/// What one sequence gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub sequence: u64,
    pub slot: u32,
    pub position: u32,
    pub tokens: u32,
    pub new_blocks: u32,
    /// Its length is at least this much then.
    pub end: u32,
    /// Whether a draft is open, which may take the tokens back.
    pub drafted: bool,
    /// Its runs end before this one.
    pub runs_end: u32,
}

impl WritePlan {
    /// Memory that the bookkeeping needs for it.
    pub(super) fn room(&self) -> Room {
        let shares = self.shares.len();
        Room {
            blocks: self.new_blocks as usize,
            marks: self.runs.len() + shares,
            tables: 2 * shares,
            staged: self.new_staged as usize,
        }
    }

    /// Each share with its runs.
    pub(super) fn shares(&self) -> impl Iterator<Item = (&Share, &[SlotRun])> {
        let mut first = 0;
        self.shares.iter().map(move |share| {
            let runs = &self.runs[first as usize..share.runs_end as usize];
            first = share.runs_end;
            (share, runs)
        })
    }

    /// The layers that get tokens.
    #[must_use]
    pub fn layers(&self) -> Range<u32> {
        self.layers.clone()
    }

    /// Tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Where the tokens of each sequence begin, and where the last ones end.
    pub fn offsets(&self) -> impl Iterator<Item = u32> {
        let ends = self.shares.iter().scan(0, |end, share| {
            *end += share.tokens;
            Some(*end)
        });
        std::iter::once(0).chain(ends)
    }

    /// Blocks that the commit will take.
    #[must_use]
    pub fn new_blocks(&self) -> u32 {
        self.new_blocks
    }

    /// Where the tokens go, in their order; the same slots in each layer.
    #[must_use]
    pub fn runs(&self) -> &[SlotRun] {
        &self.runs
    }

    /// The low-bit pages that are written in floats. The others are quantised as they come.
    #[must_use]
    pub fn pages(&self) -> &[PageWrite] {
        &self.pages
    }

    /// Staging pages that there must be.
    #[must_use]
    pub fn staging_pages(&self) -> u32 {
        self.staging_pages
    }
}
