//! ONNX models: `kvtide-onnx` reads and rewrites their graphs, and a loaded onnxruntime computes them. Attention runs
//! inside the graph, on the cache's pages, as the operator `kvtide::Attention`. No weights are read until a model is
//! written or a session is created.
//!
//! ```text
//! open_graph.rs a parsed graph                             graph.rs       the same for JavaScript
//! rewritten.rs  a rewritten graph
//! library.rs    an onnxruntime that the process has loaded api.rs         the table of its functions
//! allocator.rs  memory of sessions in huge pages
//! operator.rs   kvtide::Attention                          kernel.rs      one attention node and its computation
//! rotary.rs     rotates its queries and keys
//! shared.rs     state that the kernels of a session share
//! session.rs    a model loaded by onnxruntime              run.rs         one step of it
//! embeddings.rs the model of its embeddings                native_session.rs   the same for JavaScript
//! ```

#[cfg(target_os = "linux")]
mod allocator;
mod api;
mod embeddings;
mod graph;
mod kernel;
mod library;
mod native_session;
mod open_graph;
mod operator;
mod rewritten;
mod rotary;
mod run;
mod session;
mod shared;
mod tensor;
