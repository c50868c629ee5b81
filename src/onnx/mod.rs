//! ONNX models: graphs that are read and rewritten, as `kvtide-onnx` does it, and run by a library of onnxruntime.
//!
//! ```text
//! open_graph.rs a graph that is read                       graph.rs       the same for JavaScript
//! rewritten.rs  what a rewrite makes of it
//! library.rs    onnxruntime, as somebody has loaded it     api.rs         its functions: a table
//! operator.rs   kvtide::Attention                          kernel.rs      one attention, and a call of it
//! shared.rs     what kernels of a session share
//! session.rs    a model in the library                     run.rs         one step of it
//! native_session.rs   the same for JavaScript
//! ```

mod api;
mod graph;
mod kernel;
mod library;
mod native_session;
mod open_graph;
mod operator;
mod rewritten;
mod run;
mod session;
mod shared;
mod tensor;
