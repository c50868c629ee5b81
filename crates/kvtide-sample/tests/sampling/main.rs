//! Sampling against a naive oracle, and what has to hold of draws, drafts and lookups.

mod filters;
mod lookup;
mod naive;
mod refusals;
mod seeds;
#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
mod verify;
