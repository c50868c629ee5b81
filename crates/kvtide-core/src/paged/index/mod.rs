//! Finding blocks by what is in them, so that a prompt that was seen before is not computed again.
//!
//! ```text
//! key -> identity                        a prompt's blocks have names
//! key -> events, evicted, records, roots, name -> prefix_index -> prefix_match, prompt_blocks -> explain
//! ```
//!
//! What a key leads to is compared once more before it is believed. [`PrefixIndex`] knows blocks by their indices; who holds them,
//! and which are evicted, is the business of the pool.

mod events;
mod evicted;
mod explain;
mod identity;
mod key;
mod name;
mod needed;
mod prefix_index;
mod prefix_match;
mod prompt_blocks;
mod records;
mod roots;

pub use events::{Event, UnseenEvents};
pub use explain::{Explanation, MissReason};
pub use identity::Identity;
pub use key::{BlockKey, Extra, Extras};
pub use name::BlockName;
pub use prefix_index::{FoundPrefix, PrefixIndex};
pub use prefix_match::{GroupIndex, PrefixMatch};
pub use prompt_blocks::PromptBlocks;
