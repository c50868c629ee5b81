//! The four caches on tensors: values, misuse, hazards, and random calls against caches that never forget.

mod aliasing;
mod any_kernels;
mod cost;
mod growing;
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
mod rollback;
mod rotating;
mod sequences;
mod sightings;
mod snapshots;
mod sources;
mod tokens;
mod transactions;
mod views;
mod windows;

#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
