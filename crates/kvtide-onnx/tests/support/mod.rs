//! Fixtures.
#![allow(dead_code, reason = "each test target uses some of it")]

use std::path::PathBuf;

/// Graphs of one tiny Llama.
pub const GRAPHS: [&str; 6] =
    ["onnx", "onnx-gqa-f32", "onnx-gqa-f32-ext", "onnx-gqa-f16", "onnx-gqa-pos-f32", "onnx-gqa-int4"];

pub fn path(graph: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../__test__/fixtures/llama");
    root.join(graph).join("model.onnx")
}

pub fn bytes(graph: &str) -> Vec<u8> {
    std::fs::read(path(graph)).expect("the fixture is there")
}

pub mod build;
pub mod hybrid;
pub mod runtime;
