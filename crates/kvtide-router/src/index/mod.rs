//! The blocks of each worker, and the search for the longest prefix of a prompt. No I/O, no clock. Prompts never change
//! the index; only events do.
//!
//! ```text
//! worker_index -> node_tree, state_marks -> key_table, worker_sets       changed by events
//! search, choice, resumable                                 lookups of prompts; they change nothing
//! feed                                                      applies a worker's events
//! name_check                                                detects workers that compute other block keys
//! ```

mod choice;
mod feed;
mod key_table;
mod name_check;
mod node_tree;
mod resumable;
mod search;
mod state_marks;
mod tier;
mod worker_id;
mod worker_index;
mod worker_sets;

pub use choice::{Choice, Policy};
pub use feed::WorkerFeed;
pub use name_check::NameCheck;
pub use search::{HeldPrefix, TierCounts, WorkerPrefix};
pub use tier::Tier;
pub use worker_id::{WORKERS_MAX, WorkerId};
pub use worker_index::{IndexUsage, WorkerIndex};
pub use worker_sets::Workers;
