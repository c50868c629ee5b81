//! Pages: one layer of one block each; in what form they keep rows, where those lie, and which of them were written.
//!
//! ```text
//! format -> layout        page -> staging        written
//! ```

mod format;
mod layout;
mod page;
mod staging;
mod written;

pub use format::{KeyOrValue, PageFormat};
pub use layout::{ALIGNMENT, HeadPlace, PageLayout, PageShape, SectionLayout};
pub use page::{Page, PageRead, Slot};
pub use staging::Staging;
pub use written::WrittenMarks;
