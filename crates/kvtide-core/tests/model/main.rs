//! Descriptions of models: by hand, and from `config.json`.

mod classes;
mod config;
mod description;
mod refusals;
mod states;
#[path = "../support/mod.rs"]
mod support;
