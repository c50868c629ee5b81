//! Subgraphs of rewritten graphs, run by onnxruntime-node with a naive attention between them.

use std::path::{Path, PathBuf};
use std::process::Command;

use kvtide_onnx::{FileSource, Layout, Model, Options, PartState, Rewritten, Source, Weights};
use serde_json::{Value, json};

use super::skip::skipped;

fn runtime() -> PathBuf {
    root().join("node_modules/onnxruntime-node")
}

/// Returns true if onnxruntime-node is installed; prints a message if not.
pub fn is_there() -> bool {
    let there = runtime().exists();
    if !there {
        skipped("onnxruntime-node is not installed");
    }
    there
}

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(path: &Path) -> FileSource {
    FileSource::open(path).unwrap()
}

fn plan(rewritten: &Rewritten, options: &Options) -> Value {
    let layers: Vec<Value> = rewritten
        .layers()
        .iter()
        .map(|layer| {
            json!({
                "layer": layer.layer, "source": layer.source, "num_heads": layer.num_heads, "kv_num_heads": layer.kv_num_heads,
                "head_dim": layer.head_dim, "value_dim": layer.value_dim, "scale": layer.scale, "softcap": layer.softcap,
                "window": layer.window, "pasts": layer.pasts, "sinks": layer.sinks, "slopes": layer.alibi_slopes, "form": layer.form.to_string(), "heads_first": layer.layout == Layout::HeadsFirst,
            })
        })
        .collect();
    let states = rewritten.states().iter().map(|state| json!({ "past": state.past, "shape": state.shape }));
    let states: Vec<Value> = states.collect();
    let rope = rewritten.long_rope().map(|rope| json!({ "threshold": rope.threshold, "offset": rope.offset }));
    json!({ "layers": layers, "states": states, "rope": rope, "rows": options.logit_rows, "tokens": "input_ids", "logits": "references", "steps": 64 })
}

/// Writes the parts of a model and runs them against references.
pub fn check(
    path: &Path,
    name: &str,
    options: &Options,
    weights: Weights<'_>,
    references: &Path,
    change: impl Fn(&mut Value),
) -> Option<Value> {
    if !is_there() {
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
    plan["parts"] = parts(&folder, &rewritten, &source, weights).into();
    change(&mut plan);
    Some(run(name, &folder, &plan, references))
}

/// Writes the parts of a model, and describes them.
fn parts(folder: &Path, rewritten: &Rewritten, source: &dyn Source, weights: Weights<'_>) -> Vec<Value> {
    let mut parts = Vec::new();
    for (index, part) in rewritten.parts(source).unwrap().iter().enumerate() {
        let file = format!("part.{index}.onnx");
        std::fs::write(folder.join(&file), part.model.to_bytes(source, weights).unwrap()).unwrap();
        let attentions: Vec<Value> = part
            .attentions
            .iter()
            .map(|call| json!({ "layer": call.layer, "inputs": call.inputs, "output": call.output }))
            .collect();
        let state = |call: &PartState| {
            let attributes: serde_json::Map<String, Value> =
                call.attributes.iter().map(|(name, numbers)| (name.clone(), json!(numbers))).collect();
            json!({ "operator": call.operator, "attributes": attributes, "inputs": call.inputs, "output": call.output })
        };
        let states: Vec<Value> = part.states.iter().map(state).collect();
        let empty = part.outputs.is_empty();
        parts.push(json!({
            "file": file, "inputs": part.inputs, "outputs": part.outputs, "attentions": attentions, "states": states, "empty": empty,
        }));
    }
    parts
}

/// Runs what was written, and gives what it says.
fn run(name: &str, folder: &Path, plan: &Value, references: &Path) -> Value {
    std::fs::write(folder.join("plan.json"), plan.to_string()).unwrap();
    let text = script("check.mjs", folder, &[&references.display().to_string()]);
    eprintln!("{name}: {}", text.trim());
    serde_json::from_str(text.lines().next_back().unwrap()).unwrap()
}

/// Runs a script of `tests/runtime` with a folder and the runtime, and gives what it prints.
pub fn script(script: &str, folder: &Path, rest: &[&str]) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/runtime").join(script);
    let output = Command::new("node").arg(path).arg(folder).arg(runtime()).args(rest).output().unwrap();
    assert!(output.status.success(), "{}: {}", folder.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Compares a model with what it was before, on prompts of several lengths.
pub fn same_as_before(name: &str, bytes: &[u8], rewritten: &Rewritten) {
    same_as(name, bytes, bytes, rewritten, &Options::default());
}

/// Compares a rewritten model, read from `bytes`, with another one.
pub fn same_as(name: &str, other: &[u8], bytes: &[u8], rewritten: &Rewritten, options: &Options) {
    near(name, [other, bytes], rewritten, options, 1e-4);
}

/// The same with a limit of its own: models that round activations are only near each other.
pub fn near(name: &str, [other, bytes]: [&[u8]; 2], rewritten: &Rewritten, options: &Options, limit: f64) {
    if !is_there() {
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("forms.{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("model.onnx"), other).unwrap();
    let ids = |count: usize| (0..count).map(|index| (index * 7 + 3) % 40).collect::<Vec<_>>();
    let references =
        json!({ "vocab_size": 40, "prompts": { "p1": ids(1), "p3": ids(3), "p13": ids(13) }, "greedy": {} });
    std::fs::write(folder.join("references.json"), references.to_string()).unwrap();
    let mut plan = plan(rewritten, options);
    plan["parts"] = parts(&folder, rewritten, &bytes, Weights::Inline).into();
    plan["logits"] = "none".into();
    plan["original"] = "model.onnx".into();
    let result = run(name, &folder, &plan, &folder);
    assert!(result["original"].as_f64() < Some(limit), "{name}: {result}");
    assert!(result["ragged"].as_f64() < Some(limit), "{name}: {result}");
}
