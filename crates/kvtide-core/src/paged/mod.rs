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
//! Each folder takes from those before it alone, and keeps its fields to itself:
//!
//! ```text
//! pages      one layer of a block: layout, formats, staging, what was written
//! index      which block holds which prefix: keys, events
//! pool       who holds a block, which is evicted, what becomes of it
//! table      the lists of blocks of sequences, which share what they have in common
//! sequence   blocks and tokens, what of them is only tried, and what holds them
//! plan       what a write, the copies before it, or the end of a draft will do
//! planner    the calls: what they refuse, and what they change
//! ```
//!
//! A block holds `block_size` tokens of every layer; one layer of it is a page. Low-bit pages are [staged](Staging) until
//! they are full. [`BlockTable`] is the plain list of blocks per layer, for callers who keep their own sequences on a
//! [`BlockPool`].

mod index;
mod pages;
mod per_block;
mod plan;
mod planner;
mod pool;
mod sequence;
mod table;
mod window;

pub use index::{Event, EventLog, Explanation, Extra, Extras, Identity, Key, Reason, Unseen};
pub use pages::{
    ALIGNMENT, HeadPlace, Page, PageFormat, PageLayout, PageRead, PageShape, Part, Section, Slot, Staging,
};
pub use plan::{
    Append, Before, BlockCopy, CheckedWrite, CopyPlan, EndPlan, Keep, PageWrite, RowMove, Seal, SlotRun, Target,
    WritePlan, Writer,
};
pub use planner::{
    Counters, NO_BLOCK, PagedPlanner, PoolStats, StepRows, StepTables, can_allocate_in_groups, explain_in_groups,
    find_in_groups,
};
pub use pool::{
    BlockHandle, BlockPool, EvictionPolicy, LeastRecentlyUsed, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX, RankTable,
    Released,
};
pub use sequence::Held;
pub use table::BlockTable;
pub use window::Window;

/// What planners are put together from, for the tests and the benches of this crate. Not for others: it changes without notice.
#[doc(hidden)]
pub mod parts {
    pub use super::index::{FoundPrefix, PrefixIndex};
    pub use super::pool::{Blocks, Chain, Release, Set, Taken};
}
