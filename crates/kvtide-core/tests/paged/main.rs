//! The parts of the paged engine, each alone.

mod admission;
mod bytes;
mod calls;
mod formats;
mod growth;
mod layout;
mod planner;
mod pool;
mod prefixes;
mod retain;
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod tables;
mod window;
