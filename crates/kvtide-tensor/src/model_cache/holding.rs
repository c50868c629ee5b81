//! What keeps tokens of a whole model beside its sequences: snapshots, and prefixes that were found.

use super::store::Held;
use crate::paged::PagedPrefix;

/// What a sequence held in all layers when it was made.
#[derive(Debug)]
pub struct ModelSnapshot {
    pub(super) held: Held,
    pub(super) cache: u64,
}

impl ModelSnapshot {
    /// Tokens in it.
    #[must_use]
    pub fn length(&self) -> u32 {
        match &self.held {
            Held::Paged(groups) => groups.first().map_or(0, |group| group.length()),
            Held::Contiguous(_, length) => *length,
        }
    }
}

/// The start of a prompt that is there in all layers; it stays there while this lives.
#[derive(Debug)]
pub struct ModelPrefix {
    pub(super) groups: Vec<PagedPrefix>,
    pub(super) cache: u64,
}

impl ModelPrefix {
    /// Tokens that are there, and need not be computed.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.groups.first().map_or(0, PagedPrefix::length)
    }
}
