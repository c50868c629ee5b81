//! What holds blocks beside sequences: snapshots, and prefixes that were found.
//!
//! A block that something holds is never written: whoever writes gets a copy. So what is held stays as it was.

use super::content::Content;

/// Blocks and tokens that stay as they are until it is released.
#[derive(Debug)]
#[must_use = "its blocks stay held until it is released"]
pub struct HeldContent(Content);

impl HeldContent {
    /// Holds this.
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

    /// The same for a sequence, which holds it from now on.
    pub(in crate::paged) fn into_content(self) -> Content {
        self.0
    }
}
