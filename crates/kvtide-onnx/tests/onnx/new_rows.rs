//! A suffix appended to a model's bytes adds outputs with new rows, equal bit for bit to those of the presents, and
//! changes nothing else. Tests that need a runtime are skipped, with a message, if onnxruntime-node is not installed.

use std::path::{Path, PathBuf};

use kvtide_onnx::{Error, Model, NEW_ROWS, Options, Rewritten, Weights, new_rows_of};

use crate::support;
use crate::support::build::{Attr, DIM, Decoder, F32, Graph, HEADS, I64, Size};
use crate::support::runtime::{is_there, root, script};

fn presents(model: &Model) -> Vec<String> {
    model.outputs().into_iter().map(|port| port.name).filter(|name| name.starts_with("present")).collect()
}

fn with_suffix(bytes: &[u8]) -> Vec<u8> {
    let model = Model::read(&bytes).unwrap();
    let presents = presents(&model);
    let names: Vec<&str> = presents.iter().map(String::as_str).collect();
    let suffix = model.new_rows_suffix(&names).unwrap();
    let both = [bytes, &suffix].concat();
    let again = Model::read(&both.as_slice()).unwrap();
    let names = |ports: Vec<kvtide_onnx::Port>| ports.into_iter().map(|port| port.name).collect::<Vec<_>>();
    let mut inputs = names(model.inputs());
    inputs.push(NEW_ROWS.into());
    assert_eq!(names(again.inputs()), inputs);
    let mut outputs = names(model.outputs());
    outputs.extend(presents.iter().map(|present| new_rows_of(present)));
    assert_eq!(names(again.outputs()), outputs);
    // What is written of both is a model again, with the same weights.
    let written = again.to_bytes(&both, Weights::Inline).unwrap();
    assert_eq!(Model::read(&written).unwrap().outputs(), again.outputs());
    both
}

/// Runs a model as it is and with its suffix.
fn runs(name: &str, bytes: &[u8], beside: Option<&Path>, [vocabulary, dim]: [u32; 2]) {
    let both = with_suffix(bytes);
    if !is_there() {
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("new-rows.{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("model.onnx"), bytes).unwrap();
    std::fs::write(folder.join("with.onnx"), &both).unwrap();
    if let Some(weights) = beside.filter(|weights| weights.exists()) {
        std::fs::copy(weights, folder.join("model.onnx.data")).unwrap();
    }
    let compared = script("new-rows.mjs", &folder, &[&vocabulary.to_string(), &dim.to_string()]);
    let compared: u32 = compared.trim().parse().unwrap();
    assert!(compared >= 16, "{name}: {compared}");
}

#[test]
fn every_graph_of_the_fixtures_gives_its_new_rows() {
    let llama = support::GRAPHS.map(|graph| (format!("llama.{graph}"), support::path(graph), [320, 16]));
    // `llama/builder-f16` is left out: its own shapes are wrong, and the runtime refuses it with any past.
    let families =
        ["gemma2/builder", "gpt-oss/builder", "llama/dynamo", "qwen2-window/builder", "qwen2-window/optimum"];
    let sizes = |graph: &str| [72, if graph.starts_with("gemma2") { 32 } else { 16 }];
    let family = |graph: &str| root().join("__test__/fixtures/families").join(graph).join("model.onnx");
    let families = families.map(|graph| (graph.replace('/', "."), family(graph), sizes(graph)));
    for (name, path, sizes) in llama.into_iter().chain(families) {
        let bytes = std::fs::read(&path).unwrap();
        runs(&name, &bytes, Some(&path.with_file_name("model.onnx.data")), sizes);
    }
}

/// A graph that is not recognised: its softmax stands inside of a branch.
fn in_a_branch() -> Graph {
    Decoder::new(HEADS, false).layers(|decoder, layer, [query, key, value]| {
        let query = decoder.heads_first(query, HEADS);
        let [pasts, presents] = decoder.joined(layer, [key, value], HEADS);
        let seen = decoder.seen(&pasts[0], None);
        let added = decoder.added(&seen);
        let graph = &mut decoder.graph;
        let keys = graph.node("Transpose", &[&presents[0]], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let scores = graph.node("MatMul", &[&query, &keys], &[]);
        let scores = graph.node("Add", &[&scores, &added], &[]);
        let branch = |stem: &str| {
            let mut branch = Graph::default();
            let output = format!("{stem}.{layer}");
            branch.node_to("Softmax", &[&scores], &[&output], &[]);
            branch.output(&output, F32, &[]);
            branch.fields.clone().text(2, stem)
        };
        let (one, count) = (graph.ints(&[], &[1]), graph.node("Size", &["input_ids"], &[]));
        let first = graph.node("Equal", &[&count, &one], &[]);
        let branches = [Attr::Graph("then_branch", branch("then")), Attr::Graph("else_branch", branch("else"))];
        let weights = graph.node("If", &[&first], &branches);
        let attended = graph.node("MatMul", &[&weights, &presents[1]], &[]);
        decoder.packed(&attended)
    })
}

#[test]
fn a_graph_that_is_not_recognised_gives_its_new_rows() {
    let bytes = in_a_branch().model(17);
    let model = Model::read(&bytes).unwrap();
    let refusal = Rewritten::new(&bytes, &model, &Options::default()).unwrap_err();
    assert!(matches!(refusal, Error::Unrecognised { .. }), "{refusal}");
    runs("branch", &bytes, None, [40, DIM as u32]);
}

#[test]
fn a_suffix_is_small_and_reads_no_weight() {
    let bytes = support::bytes("onnx-gqa-f32");
    let model = Model::read(&bytes).unwrap();
    let presents = presents(&model);
    let names: Vec<&str> = presents.iter().map(String::as_str).collect();
    assert!(model.new_rows_suffix(&names).unwrap().len() < 300 * names.len());
}

fn refused(bytes: &[u8], presents: &[&str]) -> (String, String) {
    match Model::read(&bytes).unwrap().new_rows_suffix(presents) {
        Err(Error::Unrecognised { node, operator, reason, .. }) if operator == "output" => (node, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_present_is_refused_by_name() {
    let bytes = in_a_branch().model(17);
    let missing = refused(&bytes, &["present.0.key", "present.7.key"]);
    assert_eq!(missing, ("present.7.key".into(), "the graph has no output of this name".into()));
    let (node, reason) = refused(&bytes, &["logits"]);
    assert!(node == "logits" && reason.contains("3 dimensions"), "{reason}");
    let (node, reason) = refused(&bytes, &["present.0.key", "present.0.key"]);
    assert!(node == "kvtide.new.present.0.key" && reason.contains("already"), "{reason}");
    let twice = with_suffix(&bytes);
    let (node, reason) = refused(&twice, &["present.0.key"]);
    assert!(node == NEW_ROWS && reason.contains("already"), "{reason}");
    let mut graph = in_a_branch();
    graph.input(NEW_ROWS, I64, &[Size::Is(DIM)]);
    assert_eq!(refused(&graph.model(17), &["present.0.key"]).0, NEW_ROWS);
}
