//! Graphs of all forms: read, recognised, rewritten, and run by onnxruntime-node where it is installed.

mod apart;
mod apart_kept;
mod cast_pasts;
mod context;
mod crossed;
mod embeddings;
mod forms;
mod fusing;
mod heads;
mod hostile;
mod long_rope;
mod masked_operators;
mod merged;
mod new_rows;
mod pairs;
mod plain_steps;
mod quantised_pasts;
mod quantised_weights;
mod reading;
mod rewriting;
mod runtime;
mod shared_layers;
mod split_pasts;
mod states;
mod states_refused;
mod static_caches;
#[path = "../support/mod.rs"]
mod support;
mod tables;
