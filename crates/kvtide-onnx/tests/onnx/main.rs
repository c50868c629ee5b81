//! Graphs of all forms: read, recognised, rewritten, and run by onnxruntime-node where it is installed.

mod apart;
mod apart_kept;
mod context;
mod embeddings;
mod forms;
mod fusing;
mod heads;
mod hostile;
mod long_rope;
mod merged;
mod new_rows;
mod pairs;
mod quantised_pasts;
mod reading;
mod rewriting;
mod runtime;
mod states;
mod states_refused;
mod static_caches;
#[path = "../support/mod.rs"]
mod support;
mod tables;
