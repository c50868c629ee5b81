//! The four caches on tensors: values, misuse, hazards, and random calls against caches that never forget.

mod aliasing;
mod any_kernels;
mod cost;
mod kv_cache;
mod kv_pair;
mod kv_random;
mod large;
mod memory_limit;
mod numbers;
mod outcome;
mod paged_bulk;
mod paged_engine;
mod paged_kv_cache;
mod paged_random;
mod races;
mod readers;
mod rollback_cache;
mod rollback_pair;
mod rollback_random;
mod rotating_cache;
mod rotating_call;
mod rotating_kv_cache;
mod rotating_model;
mod rotating_pair;
mod rotating_random;
mod sightings;
mod snapshots;
mod sources;
mod tokens;
mod transactions;
mod views;
mod windows;

#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
