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
//! A block holds `block_size` tokens of every layer; one layer of it is a page. Low-bit pages are [staged](Staging) until
//! they are full. [`BlockTable`] is the plain list of blocks per layer, for callers who keep their own sequences on a
//! [`BlockPool`].
//!
//! - Sharing. A block counts the chunks that hold it; a chunk counts the tables and chunks that hold it. A block may be written
//!   in place if nothing on its path is counted twice and it has no key. Otherwise the writer gets a copy of that one block
//!   first. So a fork, a snapshot and a restore are O(1), and what is held never changes.
//! - Copies and the write after them are planned together, and the memory of both is taken (`table/reservation.rs`) before a
//!   block is copied. Then the plan is redirected to the copies. A refused call leaves no copy behind, and several groups begin
//!   a step, or end a draft, all of them or none.
//! - Marks. A sequence sees the slots below its length that are marked as written. Marks belong to the block: four bytes if it is
//!   empty or full. When a truncation cuts into a block that others hold, the slots behind the cut are forgotten once the
//!   sequence grows past them.
//! - Transactions put their tokens behind those of the sequence (`Drafts`, as in the contiguous caches). Tokens that may be taken
//!   back are neither quantised nor given a key. A path is moved row by row, then the rest is cut off. Dropping a transaction is
//!   never refused; an open step of its sequence ends with it and is stale.
//! - Steps take slots of all layers at once, mark them layer by layer, and advance lengths once. A layer can be attended to once
//!   it is marked. `STALE_STEP` comes before every other refusal. Undoing a step gives back the blocks it took, but not what was
//!   evicted or copied for it. So a caller's mistakes, in sources of any layer or in arrays of tables, are found on the plan,
//!   before a step is opened.
//! - Windows give back the blocks that the last committed token no longer sees. Their places in the table stay empty, and are
//!   `NO_BLOCK` in a step's tables. Attention over pages uses the cache's window unless it names one, and refuses a query that
//!   would see tokens that are gone: results never depend on the block size.
//! - Handles of the public `BlockPool` are an index and a generation of 21 bits, so that an old handle is refused; a block whose
//!   generations are used up is retired. The planner needs no handles: it never shows a block to anyone who could keep it.
//! - Eviction (`pool/`). Every block is active, cached, free or never handed out. A cached one lies in the list of its rank. The
//!   lowest rank goes first, and within a rank the block that was released first. Blocks whose rank changes with time wait in a
//!   queue by rank and turn (`pool/queue.rs`, `pool/order.rs`). A sequence releases its blocks from its end to its start and hands
//!   the highest rank on, also to blocks that stay, so that no block goes before those that follow it;
//!   [`retain`](PagedPlanner::retain) has the whole rule. A policy is a function of priority and depth, and so can be a table
//!   (`RankTable`). The planner has no clock: callers tell it the time.
//! - Prefixes (`index/`). Each full block has a key, chained by keyed BLAKE3, and an index leads from keys to blocks through two
//!   hash tables of linked records: without tombstones, so that it does not grow with what was removed. A block that a key leads
//!   to is compared in parent, tokens and extras. Eight keys are made ahead, so that the look-ups of eight blocks wait for memory
//!   together. `PrefixNamer` makes the same keys from the options of a cache alone.
//! - Step tables (`planner/step_tables.rs`) are written to arrays of the caller's. A row is known by its sequence and that
//!   sequence's epoch, which counts changes to blocks that were in its table before. While both stay the same, only new blocks
//!   are written.
//! - Groups of layers are planners in lockstep (`index/prefix_match.rs`). A prefix counts as far as every group can continue
//!   from it. A sliding group needs its sinks, the window of the next token and the block of the prefix's last token; its other
//!   places have no block. Events and lists of keys come from the first group that keeps everything. A cache with a window is one
//!   such group.
//! - Identity. A snapshot can be restored only to sequences of the same salt and extras. Drafted tokens get no key, also in forks
//!   and snapshots, which know the ids of committed tokens only.
//! - Blocks with the same tokens have the same key. One of them is found, the others wait (`index/twins.rs`), and one of those
//!   takes its place as soon as it is evicted or overwritten. Forgotten prefixes stay forgotten: an older snapshot is not found
//!   again, nor is what follows it.

mod index;
mod pages;
mod per_block;
mod plan;
mod planner;
mod pool;
mod sequence;
mod table;
mod window;

pub use index::{BlockKey, Event, EventLog, Explanation, Extra, Extras, Identity, MissReason, UnseenEvents};
pub use pages::{
    ALIGNMENT, HeadPlace, KeyOrValue, Page, PageFormat, PageLayout, PageRead, PageShape, SectionLayout, Slot, Staging,
};
pub use plan::{
    Append, BlockCopy, CheckedWrite, CopyPlan, EndPlan, Keep, PageWrite, RowMove, Seal, SlotRun, StagingContent,
    WritePlan, WriteTarget, Writer,
};
pub use planner::{
    NO_BLOCK, PagedPlanner, PlannerCounters, PoolStats, StepTableRows, StepTables, can_allocate_in_groups,
    explain_in_groups, find_in_groups,
};
pub use pool::{
    BlockHandle, BlockPool, EvictionPolicy, LeastRecentlyUsed, PRIORITY_DEFAULT, PRIORITY_MAX, RANK_MAX, RankTable,
    ReleasedBlock,
};
pub use sequence::HeldContent;
pub use table::BlockTable;
pub use window::Window;

/// What planners are put together from, for the tests and the benches of this crate. Not for others: it changes without notice.
#[doc(hidden)]
pub mod parts {
    pub use super::index::{FoundPrefix, PrefixIndex};
    pub use super::pool::{BlockState, Blocks, RankChain, Release, TakenBlock};
}
