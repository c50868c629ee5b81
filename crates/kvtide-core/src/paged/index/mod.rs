//! The prefix cache's index: finds blocks by their tokens, so that a prompt that was seen before is not computed again.
//!
//! ```text
//! key -> identity                        the keys of a prompt's blocks
//! key -> events, evicted, records, roots, name -> prefix_index
//! prefix_index -> group_index -> prompt_blocks -> prefix_match -> explain
//! ```
//!
//! A block that a key leads to is compared before it counts as found. [`PrefixIndex`] knows blocks by their indices;
//! the pool counts their holders and decides which are evicted.
//!
//! Looking up a block is O(1), plus hashing and comparing its tokens.

mod events;
mod evicted;
mod explain;
mod group_index;
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
pub use group_index::{GroupIndex, groups_of_tokens};
pub use identity::Identity;
pub use key::{BlockKey, Extra, Extras};
pub use name::BlockName;
pub use prefix_index::{FoundPrefix, PrefixIndex};
pub use prefix_match::PrefixMatch;
pub use prompt_blocks::PromptBlocks;
