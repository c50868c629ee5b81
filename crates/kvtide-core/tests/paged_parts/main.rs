//! Counts, eviction and the prefix index: random calls against lists and maps.

mod blocks;
mod calls;
mod engine;
mod eviction;
mod index;
mod memory;
mod model;
#[path = "../support/policies.rs"]
mod policies;
#[path = "../support/ranks.rs"]
mod ranks;
#[path = "../support/mod.rs"]
mod support;

type Done = Result<(), proptest::test_runner::TestCaseError>;
