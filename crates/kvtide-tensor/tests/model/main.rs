//! A cache of a model's layers: its semantics, misuse, and random calls compared with sequences that are stored separately.

mod attending;
mod background;
mod drafts;
mod forks_in_steps;
mod halfway;
mod layers_without_kv;
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
