//! Compares sampling with a naive oracle, and checks properties of draws, drafts and lookups.

mod filters;
mod lookup;
mod naive;
mod refusals;
mod seeds;
#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
mod verify;
