//! Pages, each one layer of one block: in which form they keep rows, where those lie, which slots were written.
//!
//! ```text
//! format -> layout -> staging        written
//! ```

mod format;
mod layout;
mod staging;
mod written;

pub use format::{KeyOrValue, PageFormat};
pub use layout::{ALIGNMENT, HeadPlace, Page, PageLayout, PageRead, PageShape, SectionLayout, Slot};
pub use staging::Staging;
pub use written::WrittenMarks;
