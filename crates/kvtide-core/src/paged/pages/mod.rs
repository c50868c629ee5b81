//! Pages: one layer of one block each; in what form they keep rows, where those lie, and which of them were written.
//!
//! ```text
//! format -> layout        page -> staging        written -> page_set
//! ```

mod format;
mod layout;
mod page;
mod page_set;
mod staging;
mod written;

pub use format::{PageFormat, Part};
pub use layout::{ALIGNMENT, HeadPlace, PageLayout, PageShape, Section};
pub use page::{Page, PageRead, Slot};
pub use page_set::PageSet;
pub use staging::Staging;
pub use written::WrittenMarks;
