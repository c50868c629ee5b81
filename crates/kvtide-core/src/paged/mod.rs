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
//!
//! - Sharing. A block counts the chunks that hold it, a chunk the tables and chunks that hold it. A block may be written where
//!   it lies when nothing on its path is counted twice and it is not found by a key; else the writer gets a copy first, of that block
//!   alone. So a fork, a snapshot and a restore are O(1), and what something holds never changes.
//! - Copies and what follows them are planned in one go, and the memory of both is taken (`table/reservation.rs`) before a block is
//!   copied: then the plan is made to write to the copies. So a refused call leaves no copy behind, and of several groups all begin a
//!   step, or end a draft, or none.
//! - A sequence sees the slots below its length that are marked as written. Marks go with the block (four bytes for a block that
//!   is empty or full); what a truncation cut off a block that others hold is forgotten when the sequence grows past it.
//! - Transactions put tokens behind those of the sequence (`Drafts`, as in the contiguous caches). What they may take back is
//!   neither quantised nor found by a key. A path is moved row by row, then the rest is cut off. To drop one is never refused: an open
//!   step of its sequence goes along, and is stale from then on.
//! - Steps take slots of all layers at once, mark them layer by layer, and move lengths on once. A layer is attended to once it is
//!   marked; to be stale comes before every other refusal. Undoing one gives back what it took,
//!   not what was evicted or copied for it: so what a caller can get wrong, sources of all layers and arrays of tables, is looked at on the
//!   plan, before a step is opened.
//! - Windows give back blocks that left the window of the last committed token; their places stay empty in the table, `NO_BLOCK` in a
//!   step's, and pages are read around the gap. Attention over pages sees the cache's window unless it names one, and refuses a query that
//!   would see what is gone: what is shown never depends on the size of blocks.
//! - Handles of the public `BlockPool` are an index and a generation of 21 bits, so that one that was given back is refused; a
//!   block whose generations are used up is retired. The planner needs none: it never shows a block to anyone who could keep it.
//! - Counts and eviction (`pool/`): every block is active, cached, free or never handed out. A cached one lies in the list of
//!   its rank; the lowest rank goes first, and in it the block released first, also once a limit is over: blocks whose rank changes wait
//!   in a queue by rank and turn (`pool/queue.rs`, `pool/order.rs`). A sequence lets go of its blocks tail first and hands the highest rank on,
//!   also to blocks that stay, so that no head goes before its tail, whatever limits and policies say, unless a new priority says so: the
//!   rule is with `retain`. A policy is a function of priority and depth, and so can be a table (`RankTable`). The time is told, never asked for.
//! - Prefixes (`index/`): a key a block, chained by keyed BLAKE3, and an index from keys to blocks by two tables of lists
//!   through the records: no tombstones, so removing and inserting for ever takes no memory. What a key finds is compared with
//!   parent, tokens and extras. A walk makes eight keys ahead, so that the look-ups of eight blocks wait for memory together.
//!   `PrefixNamer` makes the same keys from the options of a cache alone.
//! - A step's tables (`planner/step_tables.rs`) go to arrays of the caller's. A row is known by its sequence and the sequence's epoch, which
//!   counts changes of what its table had before; while both stay, only blocks that were added are written.
//! - Groups of layers are planners in lockstep (`index/prefix_match.rs`): a prefix counts as far as every group can go on from it, a sliding
//!   one from its sinks, the window that the next token sees and the block of the prefix's last token. Its other blocks are places without a block. Events and lists of keys are those
//!   of the first group that keeps everything. A cache with a window is one such group.
//! - Whose tokens they are stays with a sequence: a snapshot goes back to sequences of its salt and extras alone. What is only drafted has
//!   no key, also in forks and snapshots of it, which know the ids of what was committed and no more.
//! - Two blocks with the same tokens both have the key, one is found, the others wait (`index/twins.rs`). When the one found makes
//!   room or is written over, another takes its place at once. What was forgotten stays so: a snapshot from before is not found again, nor what follows it.

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
