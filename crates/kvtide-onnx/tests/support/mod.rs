//! Fixtures.
#![allow(dead_code, reason = "each test target uses some of it")]

use std::path::PathBuf;

use kvtide_onnx::{Model, Options, Rewritten, Weights};

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

/// The attribute `transB` of a graph's fused form, if there is one: true if the product of its head reads its weight
/// transposed. Without a Gemm, no other node has this attribute.
pub fn reads_transposed(bytes: &[u8], options: &Options) -> Option<bool> {
    let rewritten = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), options).unwrap();
    let written = rewritten.fused().to_bytes(&bytes, Weights::Inline).unwrap();
    let at = written.windows(7).position(|window| window == b"transB\x18")?;
    Some(written[at + 7] == 1)
}

pub mod apart;
pub mod build;
pub mod hybrid;
pub mod runtime;
#[path = "../../../kvtide-core/tests/support/skipped.rs"]
mod skip;
