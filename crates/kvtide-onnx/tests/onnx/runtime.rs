//! Subgraphs of rewritten graphs, run by onnxruntime-node with a naive attention between them, give the numbers and
//! tokens of the references. Skipped if onnxruntime-node is not installed.

use std::path::{Path, PathBuf};

use kvtide_onnx::{Options, Weights};
use serde_json::Value;

use crate::support;
use crate::support::runtime::{check, root};

/// Logits may be this far from the references, and tokens have to be the same.
fn close(result: Option<Value>, limit: f64) {
    let Some(result) = result else { return };
    for way in ["prefill", "decode", "ragged", "rows"] {
        assert!(result[way].as_f64().unwrap() < limit, "{way}: {result}");
    }
    assert_eq!(result["same"], result["of"], "{result}");
    assert!(result["of"].as_i64() > Some(0), "{result}");
}

fn references() -> PathBuf {
    root().join("__test__/fixtures/llama")
}

#[test]
fn graphs_in_floats_give_the_references() {
    let rows = Options { logit_rows: true, ..Options::default() };
    for graph in ["onnx", "onnx-gqa-f32", "onnx-gqa-f32-ext", "onnx-gqa-pos-f32"] {
        let path = support::path(graph);
        close(check(&path, graph, &Options::default(), Weights::Inline, &references(), |_| ()), 1e-4);
        let few = |plan: &mut Value| plan["steps"] = 4.into();
        let small = format!("{graph}-references");
        let result = check(&path, &small, &rows, Weights::External("model.onnx"), &references(), few);
        close(result, 1e-4);
    }
}

#[test]
fn a_graph_in_half_floats_is_close_to_the_references() {
    let path = support::path("onnx-gqa-f16");
    close(check(&path, "onnx-gqa-f16", &Options::default(), Weights::Inline, &references(), |_| ()), 0.1);
}

#[test]
fn a_graph_with_weights_of_four_bits_gives_its_own_tokens() {
    let path = support::path("onnx-gqa-int4");
    let recorded = std::fs::read(path.with_file_name("check.json")).unwrap();
    let recorded: Value = serde_json::from_slice(&recorded).unwrap();
    let own = |plan: &mut Value| {
        plan["logits"] = "none".into();
        plan["greedy"] = recorded["python_ort_1.30.0"]["own_greedy"].clone();
    };
    let result = check(&path, "onnx-gqa-int4", &Options::default(), Weights::Inline, &references(), own);
    // Its products round activations to 8 bits: the last bit of an attention may turn a token that is nearly two.
    let Some(result) = result else { return };
    let [same, of] = ["same", "of"].map(|name| result[name].as_i64().unwrap());
    assert!(of == 320 && same >= 316, "{result}");
}

/// Every graph below `KVTIDE_ONNX_FAMILIES`, as `scripts/onnx/matrix/make.py` writes them; a few of them are fixtures.
#[test]
fn graphs_of_many_families_give_their_references() {
    let given = std::env::var_os("KVTIDE_ONNX_FAMILIES").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| root().join("__test__/fixtures/families"));
    let folders = |path: &Path| {
        let mut all: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.retain(|path| path.is_dir());
        all.sort();
        all
    };
    let mut failed = Vec::new();
    for family in folders(&folder) {
        for graph in folders(&family).iter().map(|way| way.join("model.onnx")).filter(|graph| graph.exists()) {
            let name = graph.parent().unwrap().strip_prefix(&folder).unwrap().display().to_string();
            let name = format!("families.{}", name.replace(['/', '\\'], "."));
            // One scale for all rows of a call: `onnx/families` compares such a graph, one prompt after the other.
            if name.ends_with("quantised") {
                continue;
            }
            // On a CPU, the runtime refuses what a builder for GPUs put into its operators, and rotary of few columns. Pasts
            // of codes round.
            let is_refused =
                name.contains("cuda") || ["nemotron.builder", "phi.builder"].iter().any(|one| name.contains(one));
            let runs = !is_refused && !name.ends_with("-past");
            let original = |plan: &mut Value| plan["original"] = if runs { "model.onnx".into() } else { Value::Null };
            let run = || {
                let source = std::fs::read(&graph).unwrap();
                if let Err(error) = kvtide_onnx::Model::read(&source) {
                    return eprintln!("{name}: the graph itself is broken: {error}");
                }
                let options = Options { logit_rows: true, ..Options::default() };
                let result = check(&graph, &name, &options, Weights::Inline, &family, original);
                let Some(result) = result else { return };
                let limit = if name.contains("f16") {
                    0.05
                } else if is_refused {
                    1e-3
                } else {
                    1e-4
                };
                assert!(!runs || result["original"].as_f64() < Some(limit), "{result}");
                // An exporter may have been wrong itself.
                if !runs || result["itself"].as_f64() < Some(limit) {
                    close(Some(result), limit);
                } else {
                    eprintln!("{name}: the graph itself is {} off", result["itself"]);
                }
            };
            if std::panic::catch_unwind(run).is_err() {
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
