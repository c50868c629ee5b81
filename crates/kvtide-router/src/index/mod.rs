//! Which worker has which blocks, and who has the longest prefix of a prompt. No I/O, no clock.
//!
//! ```text
//! worker_index -> node_tree -> key_table, worker_sets       what events change
//! search, choice                                            what prompts ask; nothing changes
//! feed                                                      events as workers publish them
//! ```

mod choice;
mod feed;
mod key_table;
mod node_tree;
mod search;
mod tier;
mod worker_index;
mod worker_sets;

pub use choice::{Choice, Policy};
pub use feed::WorkerFeed;
pub use search::{HeldPrefix, TierCounts, WorkerPrefix};
pub use tier::Tier;
pub use worker_index::{IndexUsage, WORKERS_MAX, WorkerId, WorkerIndex};
pub use worker_sets::Workers;
