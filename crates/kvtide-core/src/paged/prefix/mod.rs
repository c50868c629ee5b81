//! Finding blocks by what is in them, so that a prompt that was seen before is not computed again.
//!
//! ```text
//! tokens, extras --key.rs--> key --index.rs--> block        compared once more before it is believed
//! ```
//!
//! [`PrefixIndex`] knows blocks by their indices; who holds them, and which are evicted, is the business of the counts.

mod events;
mod evicted;
mod explain;
mod extra;
mod index;
mod key;
mod matching;
mod records;
mod roots;
mod twins;

pub use events::{Event, EventLog, Unseen};
pub use explain::{Explanation, Reason};
pub use extra::{Extra, Extras};
pub use index::PrefixIndex;
pub use key::Key;
pub use matching::Found;
