//! A cache of a model's layers: its meaning, misuse, and random calls against sequences that are kept apart.

mod attending;
mod background;
mod drafts;
mod halfway;
mod ledger;
mod masks;
mod memory;
mod model;
mod naming;
mod random;
mod refusals;
mod runs;
mod semantics;
mod steps;
mod subject;
mod world;

#[path = "../attention/oracle.rs"]
mod oracle;
#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
