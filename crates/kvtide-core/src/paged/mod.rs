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
//! A folder imports only from those above it, and its fields are private to it:
//!
//! ```text
//! pages      one layer of a block: layout, formats, staging, which slots were written
//! index      which block holds which prefix: keys, events
//! pool       who holds a block, which block is evicted next
//! table      the lists of blocks of sequences, as trees that share what they have in common
//! sequence   the blocks and tokens of a sequence, its open drafts and step; what else holds blocks
//! plan       what a write, the copies before it, or the end of a draft will do
//! planner    the calls: what they refuse, and what they change
//! ```
//!
//! A block holds `block_size` tokens of every layer. One layer of it is a page; low-bit pages are staged until they are full.
//! [`BlockTable`] is the plain list of blocks per layer, for callers who keep their own sequences on a [`BlockPool`].
//!
//! - Sharing. A block that others hold, or that prompts find, is never written: the writer gets a copy of that one block. So a
//!   fork, a snapshot and a restore are O(1), and what is held never changes.
//! - Copies and the write after them are planned together, and the memory of both is taken before a block is copied. A refused
//!   call leaves no copy behind. Several groups begin a step, or end a draft, all of them or none.
//! - Marks. A sequence sees the slots below its length that are marked as written. Marks belong to the block. When a truncation
//!   cuts into a block that others hold, the slots behind the cut are forgotten once the sequence grows past them.
//! - Transactions put their tokens behind those of the sequence. Tokens that may be taken back are neither quantised nor given a
//!   key, also in forks and snapshots. Dropping a transaction is never refused; an open step of its sequence ends with it.
//! - Steps take slots of all layers at once, mark them layer by layer, and advance lengths once. `STALE_STEP` comes before every
//!   other refusal. Undoing a step gives its blocks back, but not what was evicted or copied for it. So a caller's mistakes are
//!   found on the plan, before a step is opened.
//! - Windows give back the blocks that the last committed token no longer sees. Their places in the table stay empty. Results
//!   never depend on the block size: a query that would see tokens that are gone is refused.
//! - Eviction. The block of the lowest rank goes first, and within a rank the one that was released first. No block goes before
//!   those that follow it: [`retain`](PagedPlanner::retain) has the whole rule. The planner has no clock: callers tell the time.
//! - Prefixes. Each full block has a key, chained by keyed BLAKE3. A block that a key leads to is compared in parent, tokens and
//!   extras. Forgotten prefixes stay forgotten: an older snapshot is not found again, nor is what follows it.
//! - Groups of layers are planners in lockstep. A prefix counts as far as every group can continue from it. A snapshot can be
//!   restored only to sequences of the same salt and extras.

mod index;
mod pages;
mod per_block;
mod plan;
mod planner;
mod pool;
mod sequence;
mod table;
mod window;

pub use index::{
    BlockKey, BlockName, Event, Explanation, Extra, Extras, Identity, MissReason, PromptBlocks, UnseenEvents,
};
pub use pages::{
    ALIGNMENT, HeadPlace, KeyOrValue, Page, PageFormat, PageLayout, PageRead, PageShape, SectionLayout, Slot,
};
pub use plan::{
    Append, BlockCopy, CheckedWrite, CopyPlan, EndPlan, Keep, PageWrite, RowMove, Seal, SlotRun, StagingContent,
    WritePlan, WriteTarget, Writer,
};
pub use planner::{
    Admission, AdmissionRequest, Admitted, Lacking, NO_BLOCK, PagedPlanner, PlannerCounters, PoolStats, SavedContent,
    SavedRow, StepTableRows, StepTables, admit_in_groups, can_allocate_in_groups, explain_in_groups, find_in_groups,
    prompt_in_groups,
};
pub use pool::{
    BlockHandle, BlockPool, BlockTable, EvictionPolicy, LeastRecentlyUsed, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX,
    RankTable, ReleasedBlock,
};
pub use sequence::{HeldContent, SavedChain};
pub use window::Window;

/// What planners are put together from, for the tests and the benches of this crate. Not for others: it changes without notice.
#[doc(hidden)]
pub mod parts {
    pub use super::index::{FoundPrefix, PrefixIndex};
    pub use super::pool::{BlockState, Blocks, RankChain, Release, TakenBlock};
}
