//! ONNX models: graphs that are read and rewritten, as `kvtide-onnx` does it, and run by a library of onnxruntime.
//!
//! ```text
//! graph.rs      a graph that is read; its facts            rewritten.rs   what a rewrite makes of it
//! library.rs    onnxruntime, as somebody has loaded it     api.rs         its functions: a table
//! operator.rs   kvtide::Attention                          session.rs     a model that is run, step by step
//! ```

mod api;
mod graph;
mod library;
mod operator;
mod rewritten;
mod session;
mod task;
