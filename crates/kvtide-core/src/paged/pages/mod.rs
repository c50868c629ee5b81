//! Pages, each one layer of one block: the format of their rows, the layout, and the slots that were written.
//!
//! ```text
//! format -> layout -> staging        written
//! ```
//!
//! Everything is plain numbers; no bytes are touched. Calls are O(1), except those on runs of slots, which cost O(slots / 64).

mod format;
mod layout;
mod staging;
mod written;

pub use format::{KeyOrValue, PageFormat};
pub use layout::{ALIGNMENT, HeadPlace, Page, PageLayout, PageRead, PageShape, SectionLayout, Slot};
pub use staging::Staging;
pub use written::WrittenMarks;
