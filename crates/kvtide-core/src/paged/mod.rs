//! Blocks, tables and sequences: the planners of the paged cache.
//!
//! ```text
//! sequence 7   [ block 2 ][ block 0 ]     PagedPlanner: the block and slot of each token of a sequence
//!                   |          |
//! pool         0  1  2  3  4  5  6  7     BlockPool: the blocks in use, and their handles
//!                   |
//! slab         bytes of block 2           PageLayout: the place of a row in a block, in its PageFormat
//! ```
//!
//! A folder imports only from those above it in this list, and its fields are private to it:
//!
//! ```text
//! pages      one layer of a block: layout, formats, staging, the slots that were written
//! index      the prefix cache: the block of each key, events
//! pool       reference counts of blocks, and the order of eviction
//! table      the block tables of sequences, as trees that share chunks
//! sequence   the blocks and tokens of a sequence, its open drafts and step; other holders of blocks
//! plan       the changes of a write, of the copies before it, or of the end of a draft
//! planner    the calls: their errors and their changes
//! ```
//!
//! A block holds `block_size` tokens of every layer. One layer of it is a page; low-bit pages are staged until they are full.
//! [`BlockTable`] is the plain list of blocks per layer, for callers who keep their own sequences on a [`BlockPool`].
//!
//! - Sharing is copy on write: a block that others hold, or that prompts can find, is never written; the writer gets a copy of
//!   that one block. So a fork, a snapshot and a restore are O(1), and held content never changes.
//! - Copies and the write after them are planned together, and the memory of both is reserved before a block is copied. A call that
//!   fails leaves no copy behind. Several groups begin a step, or end a draft, all together or not at all.
//! - Marks. A sequence sees the slots below its length that are marked as written. Marks belong to the block. If a truncation
//!   cuts into a block that others hold, the slots behind the cut lose their marks once the sequence grows past them.
//! - Transactions put their tokens behind those of the sequence. Tokens that can be rolled back are neither quantised nor given a
//!   key, also in forks and snapshots. Dropping a transaction always succeeds; an open step of its sequence ends with it.
//! - Steps take slots of all layers at once, mark them layer by layer, and advance lengths once. `STALE_STEP` takes precedence over
//!   every other error. Forks and snapshots of a step's sequences have the content from before it. Undoing a step returns its
//!   blocks, but not what was evicted or copied for it, so a caller's mistakes are detected on the plan, before a step is opened.
//! - Windows release the blocks that the last committed token no longer sees. Their places in the table stay empty. Results
//!   never depend on the block size: a query that would see dropped tokens is an error.
//! - Eviction takes the block of the lowest rank first, and within a rank the one that was released first. No block is evicted before
//!   the blocks that follow it: [`retain`](PagedPlanner::retain) has the whole rule. The planner has no clock: callers pass the time.
//! - Prefixes. Each full block has a key, chained by keyed BLAKE3. When a key leads to a block, its parent, tokens and extras are
//!   compared too. Forgotten prefixes stay forgotten: neither an older snapshot nor what follows it is found again.
//! - Groups of layers have planners that change in lockstep. A prefix is as long as every group can continue from it. A snapshot
//!   can be restored only to sequences with the same salt and extras.

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
    Admission, AdmissionRequest, Admitted, Growth, GrowthRequest, Lacking, NO_BLOCK, PagedPlanner, PlannerCounters,
    PoolStats, PromptStates, SavedContent, SavedRow, Shortage, StepTableRows, StepTables, admit_in_groups,
    can_allocate_in_groups, explain_in_groups, find_in_groups, find_named_in_groups, prompt_in_groups,
    prompt_in_groups_again, prompt_states, shortage_in_groups,
};
pub use pool::{
    BlockHandle, BlockPool, BlockTable, EvictionPolicy, LeastUseful, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX,
    RankTable, ReleasedBlock,
};
pub use sequence::{HeldContent, SavedChain};
pub use window::Window;

/// The building blocks of planners, for the tests of this crate only. They change without notice.
#[doc(hidden)]
pub mod parts {
    pub use super::index::{FoundPrefix, PrefixIndex};
    pub use super::pool::{BlockState, Blocks, RankChain, Release};
}
