//! Descriptions of models: by hand, and from `config.json`.

mod classes;
mod config;
mod description;
mod hybrids;
mod refusals;
mod states;
#[path = "../support/mod.rs"]
mod support;
