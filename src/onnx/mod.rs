//! ONNX models: graphs that are read and rewritten, as `kvtide-onnx` does it, and run by a library of onnxruntime.
//!
//! ```text
//! graph.rs      a graph that is read; its facts            rewritten.rs   what a rewrite makes of it
//! library.rs    onnxruntime, as somebody has loaded it     api.rs         its functions: a table
//! operator.rs   kvtide::Attention                          kernel.rs      one attention, and a call of it
//! session.rs    a model in the library                     run.rs         one step of it
//! native_session.rs   the same for JavaScript
//! ```

mod api;
mod graph;
mod kernel;
mod library;
mod native_session;
mod operator;
mod rewritten;
mod run;
mod session;
mod task;
mod tensor;
