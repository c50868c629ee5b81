//! Blocks, tables and sequences: the planners of the paged cache.
//!
//! ```text
//! sequence 7   [ block 2 ][ block 0 ]     PagedPlanner: which block and slot a token of a sequence lies in
//!                   |          |
//! pool         0  1  2  3  4  5  6  7     BlockPool: which blocks are in use, and by which handle
//!                   |
//! slab         bytes of block 2           PageLayout: where a row of a block lies, in which PageFormat
//! ```
//!
//! A block holds `block_size` tokens of every layer; one layer of it is a page. Low-bit pages are [staged](Staging) until
//! they are full. [`BlockTable`] is the plain list of blocks per layer, for callers who keep their own sequences on a
//! [`BlockPool`].

mod blocks;
mod checking;
mod chunked;
mod chunks;
mod copying;
mod cutting;
mod drafts;
mod finding;
mod format;
mod groups;
mod handle;
mod holding;
mod id_hasher;
mod identity;
mod keys;
mod layout;
mod page_set;
mod pool;
mod prefix;
mod reading;
mod room;
mod sequence;
mod sequences;
mod slot;
mod staging;
mod steps;
mod store;
mod table;
mod tables;
mod targets;
mod trees;
mod window;
mod write_plan;
mod writing;
mod written;

pub use blocks::{EvictionPolicy, LeastRecentlyUsed, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX, RankTable, Released};
pub use copying::{BlockCopy, CopyPlan, Target};
pub use drafts::{EndPlan, Keep, RowMove};
pub use finding::PoolStats;
pub use format::PageFormat;
pub use groups::{can_allocate_in_groups, explain_in_groups, find_in_groups};
pub use handle::BlockHandle;
pub use holding::Held;
pub use identity::Identity;
pub use layout::{ALIGNMENT, HeadPlace, PageLayout, PageShape, Part, Section};
pub use pool::BlockPool;
pub use prefix::{Event, EventLog, Explanation, Extra, Extras, Key, Reason, Unseen};
pub use reading::PageRead;
pub use sequences::{Counters, PagedPlanner};
pub use slot::Slot;
pub use staging::{Page, Staging};
pub use table::BlockTable;
pub use tables::{NO_BLOCK, StepRows, StepTables};
pub use targets::{Append, Writer};
pub use window::Window;
pub use write_plan::{Before, PageWrite, Seal, SlotRun, WritePlan};

/// What planners are put together from, for the tests and the benches of this crate. Not for others: it changes without notice.
#[doc(hidden)]
pub mod parts {
    pub use super::blocks::{Blocks, Chain, Release, Set, Taken};
    pub use super::prefix::{Found, PrefixIndex};
}
