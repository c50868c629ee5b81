//! What holds blocks besides sequences: snapshots, and prefixes that were found.
//!
//! A block that something holds is never written: a writer gets a copy.

use super::content::Content;

/// Blocks and tokens that stay as they are until they are released.
#[derive(Debug)]
#[must_use = "its blocks stay held until it is released"]
pub struct HeldContent(Content);

impl HeldContent {
    pub(in crate::paged) fn new(content: Content) -> Self {
        HeldContent(content)
    }

    /// Tokens.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.0.length()
    }

    pub(in crate::paged) fn content(&self) -> &Content {
        &self.0
    }

    /// Hands the content over to a sequence.
    pub(in crate::paged) fn into_content(self) -> Content {
        self.0
    }
}
