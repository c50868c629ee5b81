//! What a router is worth: a trace of chats over workers with caches of limited size, by several ways of choosing. Numbers only; the same
//! options give the same report.
//!
//! ```text
//! trace          who asks what when: sessions of several turns, each behind a system prompt that others share
//! worker_cache   the blocks of one worker, the least recently used out first
//! cluster        brings them together: chooses, looks up, computes, evicts, tells the index
//! ```
//!
//! A worker computes one prompt after the other; decoding runs beside that and costs nothing here. The index is told at once. O(blocks of
//! prompts).

mod cluster;
mod random;
mod trace;
mod worker_cache;

pub use cluster::{Report, Routing, SimulatorOptions, simulate};
pub use trace::TraceOptions;
