//! ONNX models: graphs that are read and rewritten, as `kvtide-onnx` does it.

mod graph;
mod rewritten;
mod task;
