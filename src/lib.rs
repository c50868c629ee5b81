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
mod block_pool;
mod block_table;
mod bytes;
mod device;
mod guard;
mod handed;
mod kv_cache;
mod memory;
mod number;
mod raise;
mod read_task;
mod rollback_cache;
mod rotating_cache;
mod rotating_snapshot;
mod sequences;
mod shown;
mod source;
mod stats;
mod stop;
mod tensor;
mod threads;
mod transaction;
