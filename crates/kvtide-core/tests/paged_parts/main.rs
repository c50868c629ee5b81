//! Reference counts, eviction and the prefix index: compares random calls with lists and maps.

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
mod usefulness;

type Done = Result<(), proptest::test_runner::TestCaseError>;
