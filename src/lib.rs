//! The Node-API addon of kvtide: glue alone.
//!
//! One file per exported class. Arguments were checked by the TypeScript layer; what arrives here is checked again where a
//! wrong value could reach memory. Every call runs inside [`guard`], so that a refusal becomes a coded error and a panic
//! never leaves the addon.
#![deny(unsafe_code)]

mod attend;
mod attend_answer;
mod attend_lists;
mod attend_queries;
mod attend_request;
mod attend_task;
mod batch;
mod block_pool;
mod block_table;
mod bytes;
mod device;
mod guard;
mod handed;
mod kv_cache;
mod memory;
mod model_cache;
mod model_drafts;
mod model_options;
mod model_prompts;
mod model_step;
mod number;
mod open_step;
mod paged_draft;
mod paged_events;
mod paged_kv_cache;
mod paged_options;
mod paged_pool;
mod paged_prefix;
mod paged_sequence;
mod paged_step;
mod prefix_namer;
mod raise;
mod read_task;
mod rollback_cache;
mod rotating_cache;
mod rotating_snapshot;
mod shown;
mod source;
mod stats;
mod step_batch;
mod stop;
mod tensor;
mod threads;
mod transaction;
