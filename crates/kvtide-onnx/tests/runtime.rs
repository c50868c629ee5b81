//! The parts of rewritten graphs, run by onnxruntime-node with a naive attention between them, give the numbers and
//! tokens of the references. Skipped where `bench/onnxruntime` is not installed.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use kvtide_onnx::{FileSource, Layout, Model, Options, Rewritten, Weights};
use serde_json::{Value, json};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(path: &Path) -> FileSource {
    FileSource::new(std::fs::File::open(path).unwrap()).unwrap()
}

fn plan(rewritten: &Rewritten, options: &Options) -> Value {
    let layers: Vec<Value> = rewritten
        .layers()
        .iter()
        .map(|layer| {
            json!({
                "layer": layer.layer, "num_heads": layer.num_heads, "kv_num_heads": layer.kv_num_heads,
                "head_dim": layer.head_dim, "value_dim": layer.value_dim, "scale": layer.scale, "softcap": layer.softcap,
                "window": layer.window, "sinks": layer.sinks, "heads_first": layer.layout == Layout::HeadsFirst,
            })
        })
        .collect();
    json!({ "layers": layers, "rows": options.logit_rows, "tokens": "input_ids", "logits": "references", "steps": 64 })
}

/// Writes the parts of a model and runs them against references.
fn check(
    path: &Path,
    name: &str,
    options: &Options,
    weights: Weights<'_>,
    references: &Path,
    change: impl Fn(&mut Value),
) -> Option<Value> {
    let runtime = root().join("bench/onnxruntime/node_modules/onnxruntime-node");
    if !runtime.exists() {
        eprintln!("SKIPPED: bench/onnxruntime is not installed");
        return None;
    }
    let source = source(path);
    let rewritten = Rewritten::new(&source, &Model::read(&source).unwrap(), options).unwrap();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["model.onnx", "model.onnx.data"].map(|file| path.parent().unwrap().join(file)) {
        if file.exists() {
            std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
        }
    }
    let mut plan = plan(&rewritten, options);
    let mut parts = Vec::new();
    for (index, part) in rewritten.parts(&source).unwrap().iter().enumerate() {
        let file = format!("part.{index}.onnx");
        std::fs::write(folder.join(&file), part.model.to_bytes(&source, weights).unwrap()).unwrap();
        let attentions: Vec<Value> = part
            .attentions
            .iter()
            .map(|call| json!({ "layer": call.layer, "inputs": call.inputs, "output": call.output }))
            .collect();
        let empty = part.outputs.is_empty();
        parts.push(json!({ "file": file, "inputs": part.inputs, "outputs": part.outputs, "attentions": attentions, "empty": empty }));
    }
    plan["parts"] = parts.into();
    change(&mut plan);
    std::fs::write(folder.join("plan.json"), plan.to_string()).unwrap();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/runtime/check.mjs");
    let output = Command::new("node").arg(script).arg(&folder).arg(references).arg(runtime).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    eprintln!("{name}: {}", text.trim());
    Some(serde_json::from_str(text.lines().next_back().unwrap()).unwrap())
}

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
    close(check(&path, "onnx-gqa-int4", &Options::default(), Weights::Inline, &references(), own), 1e-4);
}

/// Every graph below `KVTIDE_ONNX_FAMILIES`, as `scripts/onnx/families.py` writes them.
#[test]
fn graphs_of_many_families_give_their_references() {
    let Some(folder) = std::env::var_os("KVTIDE_ONNX_FAMILIES").map(PathBuf::from) else { return };
    let folders = |path: &Path| {
        let mut all: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    };
    let mut failed = Vec::new();
    for family in folders(&folder) {
        for graph in folders(&family).iter().map(|way| way.join("model.onnx")).filter(|graph| graph.exists()) {
            let name = graph.parent().unwrap().strip_prefix(&folder).unwrap().display().to_string();
            let name = format!("families.{}", name.replace(['/', '\\'], "."));
            let run = || close(check(&graph, &name, &Options::default(), Weights::Inline, &family, |_| ()), 1e-4);
            if std::panic::catch_unwind(run).is_err() {
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
