//! Layers with states: what a step reads and writes, and every way in which a sequence comes to a state.

mod compute;
mod random;
mod rules;
mod saving;
mod world;

#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
