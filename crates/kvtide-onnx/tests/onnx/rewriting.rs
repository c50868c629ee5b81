//! The nodes that a rewrite keeps and drops; no model causes a panic.

use kvtide_onnx::{Error, FileSource, Form, Layout, Model, Options, Rewritten, Weights};
use proptest::prelude::*;

use crate::support;
use crate::support::build::{Attr, BOOL, Decoder, F32, Graph, HEADS, I64, Size};
use crate::support::runtime::same_as_before;

fn cases() -> u32 {
    std::env::var("KVTIDE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200)
}

fn rewritten(bytes: &[u8], options: &Options) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, options)
}

/// A plain attention in one head layout, with positions given by `turn`.
fn turned(positions: bool, turn: impl Fn(&mut Decoder, &str, &str) -> String) -> Graph {
    Decoder::new(HEADS, positions).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let [query, key] = [query, key].map(|name| turn(decoder, name, &pasts[0]));
        let query = decoder.heads_first(&query, HEADS);
        let cached: Vec<String> = [key.as_str(), value]
            .iter()
            .enumerate()
            .map(|(side, name)| {
                let new = decoder.heads_first(name, HEADS);
                let axis = Attr::Int("axis", -2);
                decoder.graph.node_to("Concat", &[&pasts[side], &new], &[&presents[side]], &[axis]);
                presents[side].clone()
            })
            .collect();
        let seen = decoder.seen(&pasts[0], None);
        let graph = &mut decoder.graph;
        let keys = graph.node("Transpose", &[&cached[0]], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let scores = graph.node("MatMul", &[&query, &keys], &[]);
        let low = graph.floats(&[], &[-1e9]);
        let scores = graph.node("Where", &[&seen, &scores, &low], &[]);
        let weights = graph.node("Softmax", &[&scores], &[]);
        let attended = graph.node("MatMul", &[&weights, &cached[1]], &[]);
        decoder.packed(&attended)
    })
}

/// Adds an embedding of positions to queries and keys: what they are counted by shows in the numbers.
fn embedded(decoder: &mut Decoder, name: &str, positions: &str) -> String {
    let table = decoder.graph.weight(&[64, HEADS * support::build::DIM], 1.);
    let rows = decoder.graph.node("Gather", &[&table, positions], &[]);
    decoder.graph.node("Add", &[name, &rows], &[])
}

#[test]
fn positions_from_the_length_of_the_past_become_an_input() {
    let graph = turned(false, |decoder, name, past| {
        let [queries, _] = decoder.positions(past);
        let shape = decoder.graph.ints(&[2], &[1, -1]);
        let row = decoder.graph.node("Reshape", &[&queries, &shape], &[]);
        embedded(decoder, name, &row)
    });
    let bytes = graph.model(18);
    let rewritten = rewritten(&bytes, &Options::default()).unwrap();
    assert_eq!(rewritten.inspection().added_inputs, ["position_ids"]);
    same_as_before("positions.past", &bytes, &rewritten);
}

/// Rows of a table that a graph first cuts to the length of the sequence.
fn first_rows(decoder: &mut Decoder, name: &str, end: &str) -> String {
    let table = decoder.graph.weight(&[64, HEADS * support::build::DIM], 1.);
    let (first, axes) = (decoder.graph.ints(&[1], &[0]), decoder.graph.ints(&[1], &[0]));
    let rows = decoder.graph.node("Slice", &[&table, &first, end, &axes], &[]);
    let rows = decoder.graph.node("Gather", &[&rows, "position_ids"], &[]);
    decoder.graph.node("Add", &[name, &rows], &[])
}

/// Rows of one of two tables, which a graph chooses by the length of the sequence.
fn chosen(decoder: &mut Decoder, name: &str, length: &str) -> String {
    let limit = decoder.graph.ints(&[], &[8]);
    let is_long = decoder.graph.node("Greater", &[length, &limit], &[]);
    let branch = |which: &str, scale: f32| {
        let mut inner = Graph::default();
        let table = inner.weight(&[64, HEADS * support::build::DIM], scale);
        let output = inner.node("Identity", &[&table], &[]);
        inner.output(&output, F32, &[]);
        inner.fields.clone().text(2, which)
    };
    let branches = [Attr::Graph("then_branch", branch("long", 2.)), Attr::Graph("else_branch", branch("short", 1.))];
    let table = decoder.graph.node("If", &[&is_long], &branches);
    let rows = decoder.graph.node("Gather", &[&table, "position_ids"], &[]);
    decoder.graph.node("Add", &[name, &rows], &[])
}

#[test]
fn a_choice_by_the_length_of_a_whole_step_is_refused_by_name() {
    let refused = |graph: Graph, operator: &str| match rewritten(&graph.model(18), &Options::default()) {
        Err(Error::Unrecognised { operator: found, reason, .. }) => {
            assert_eq!(found, operator);
            assert!(reason.contains("the longest sequence"), "{reason}");
        }
        other => panic!("{other:?}"),
    };
    // LongRoPE: two tables.
    let by_mask = turned(true, |decoder, name, _| {
        let total = decoder.size_of("attention_mask", 1);
        chosen(decoder, name, &total)
    });
    refused(by_mask, "Greater");
    let by_positions = turned(true, |decoder, name, _| {
        let last = decoder.graph.node("ReduceMax", &["position_ids"], &[Attr::Int("keepdims", 0)]);
        let one = decoder.graph.ints(&[], &[1]);
        let total = decoder.graph.node("Add", &[&last, &one], &[]);
        chosen(decoder, name, &total)
    });
    refused(by_positions, "Greater");
    let by_past = turned(true, |decoder, name, past| {
        let (before, new) = (decoder.size_of(past, 2), decoder.size_of("input_ids", 1));
        let total = decoder.graph.node("Add", &[&before, &new], &[]);
        chosen(decoder, name, &total)
    });
    refused(by_past, "Greater");
    // Dynamic NTK: a base that grows with the length.
    let by_base = turned(true, |decoder, name, _| {
        let total = decoder.size_of("attention_mask", 1);
        let total = decoder.graph.node("Cast", &[&total], &[Attr::Int("to", F32)]);
        let (least, power) = (decoder.graph.floats(&[], &[8.]), decoder.graph.floats(&[], &[0.5]));
        let length = decoder.graph.node("Max", &[&total, &least], &[]);
        let base = decoder.graph.node("Pow", &[&length, &power], &[]);
        decoder.graph.node("Mul", &[name, &base], &[])
    });
    refused(by_base, "Max");
}

#[test]
fn positions_from_the_mask_become_an_input() {
    let graph = turned(false, |decoder, name, _| {
        let (axis, one) = (decoder.graph.ints(&[], &[1]), decoder.graph.ints(&[], &[1]));
        let sums = decoder.graph.node("CumSum", &["attention_mask", &axis], &[]);
        let all = decoder.graph.node("Sub", &[&sums, &one], &[]);
        let new = decoder.size_of("input_ids", 1);
        let new = decoder.graph.node("Neg", &[&new], &[]);
        let shape = decoder.graph.ints(&[1], &[1]);
        let first = decoder.graph.node("Reshape", &[&new, &shape], &[]);
        let (end, axes) = (decoder.graph.ints(&[1], &[i64::MAX]), decoder.graph.ints(&[1], &[1]));
        let last = decoder.graph.node("Slice", &[&all, &first, &end, &axes], &[]);
        embedded(decoder, name, &last)
    });
    let bytes = graph.model(18);
    let rewritten = rewritten(&bytes, &Options::default()).unwrap();
    assert_eq!(rewritten.inspection().added_inputs, ["position_ids"]);
    assert!(rewritten.inspection().dropped_inputs.contains(&"attention_mask".to_owned()));
    same_as_before("positions.mask", &bytes, &rewritten);
}

#[test]
fn the_length_of_all_tokens_is_made_of_positions() {
    let graph = turned(true, |decoder, name, past| {
        let before = decoder.size_of(past, 2);
        let new = decoder.size_of("input_ids", 1);
        let total = decoder.graph.node("Add", &[&before, &new], &[]);
        let shape = decoder.graph.ints(&[1], &[1]);
        let end = decoder.graph.node("Reshape", &[&total, &shape], &[]);
        first_rows(decoder, name, &end)
    });
    let bytes = graph.model(18);
    same_as_before("positions.total", &bytes, &rewritten(&bytes, &Options::default()).unwrap());
}

#[test]
fn layers_are_counted_as_their_pasts_are() {
    let graph = Decoder::new(HEADS, true).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(10 - layer);
        let output = decoder.graph.fresh("attended");
        let inputs = [query, key, value, "", "", "", &pasts[0], &pasts[1]];
        let attributes = [Attr::Int("num_heads", HEADS), Attr::Int("unidirectional", 1)];
        let outputs = [output.as_str(), &presents[0], &presents[1]];
        decoder.graph.node_to("com.microsoft.MultiHeadAttention", &inputs, &outputs, &attributes);
        output
    });
    let bytes = graph.model(18);
    let rewritten = rewritten(&bytes, &Options::default()).unwrap();
    let pasts: Vec<(u32, &str)> =
        rewritten.layers().iter().map(|layer| (layer.layer, layer.pasts[0].as_str())).collect();
    assert_eq!(pasts, [(0, "past_key_values.9.key"), (1, "past_key_values.10.key")]);
    let parts = rewritten.parts(&bytes).unwrap();
    let order: Vec<u32> = parts.iter().flat_map(|part| &part.attentions).map(|call| call.layer).collect();
    assert_eq!(order, [1, 0]);
    same_as_before("numbers", &bytes, &rewritten);
}

#[test]
fn what_needs_the_past_itself_is_refused() {
    let graph = turned(true, |decoder, name, past| {
        let before = decoder.size_of(past, 2);
        let before = decoder.graph.node("Cast", &[&before], &[Attr::Int("to", F32)]);
        decoder.graph.node("Add", &[name, &before], &[])
    });
    let bytes = graph.model(18);
    let error = rewritten(&bytes, &Options::default()).unwrap_err();
    let Error::Unrecognised { operator, reason, .. } = error else { panic!("{error}") };
    assert_eq!(operator, "Shape");
    assert!(reason.contains("past_key_values.") && reason.contains("the rewrite drops"), "{reason}");
}

#[test]
fn what_a_branch_takes_from_outside_is_kept() {
    let graph = turned(true, |decoder, name, _| {
        let graph = &mut decoder.graph;
        let shift = graph.weight(&[1], 1.);
        let mut branch = Graph::default();
        branch.node_to("Add", &[name, &shift], &["inside"], &[]);
        let width = Size::Is(HEADS * support::build::DIM);
        branch.output("inside", F32, &[Size::Named("batch"), Size::Named("new"), width]);
        let new = decoder.size_of("input_ids", 1);
        let graph = &mut decoder.graph;
        let one = graph.ints(&[], &[1]);
        let yes = graph.node("GreaterOrEqual", &[&new, &one], &[]);
        let body = branch.fields.text(2, "branch");
        graph.node("If", &[&yes], &[Attr::Graph("then_branch", body.clone()), Attr::Graph("else_branch", body)])
    });
    let bytes = graph.model(18);
    same_as_before("branches", &bytes, &rewritten(&bytes, &Options::default()).unwrap());
}

#[test]
fn an_attention_inside_of_a_branch_is_refused() {
    let graph = turned(true, |decoder, name, _| {
        let mut branch = Graph::default();
        branch.node_to("Softmax", &[name], &["inside"], &[]);
        branch.output("inside", F32, &[]);
        let graph = &mut decoder.graph;
        let one = graph.ints(&[], &[1]);
        let yes = graph.node("Cast", &[&one], &[Attr::Int("to", BOOL)]);
        let body = branch.fields.text(2, "branch");
        graph.node("If", &[&yes], &[Attr::Graph("then_branch", body.clone()), Attr::Graph("else_branch", body)])
    });
    let error = rewritten(&graph.model(18), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("node of inside") && error.contains("it is inside a subgraph of"), "{error}");
}

#[test]
fn graphs_that_are_none_are_refused_by_the_node() {
    let fails = |change: &dyn Fn(&mut Graph), expected: &str| {
        let mut graph = turned(true, |_, name, _| name.to_owned());
        change(&mut graph);
        let error = Model::read(&graph.model(18)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    fails(
        &|graph| graph.node_to("Relu", &["input_ids"], &["logits"], &[]),
        "the output of one node and of nothing else",
    );
    fails(&|graph| graph.node_to("Relu", &["nowhere"], &["somewhere"], &[]), "nowhere to be an input");
    let circle = |graph: &mut Graph| {
        graph.node_to("Relu", &["two"], &["one"], &[]);
        graph.node_to("Relu", &["one"], &["two"], &[]);
    };
    fails(&circle, "do not depend on its own outputs");
    fails(&|graph| drop(graph.input("input_ids", I64, &[])), "a name that no other input has");
    fails(&|graph| graph.output("nothing", F32, &[]), "a node that makes this output");
    let short = |graph: &mut Graph| drop(graph.floats(&[3, 2], &[1.; 5]));
    fails(&short, "24 bytes of shape [3, 2] (f32), not 20");
}

#[test]
fn nodes_out_of_order_are_brought_into_one() {
    let bytes = turned(true, |_, name, _| name.to_owned()).model(18);
    let straight = rewritten(&bytes, &Options::default()).unwrap();
    let mut graph = Graph::default();
    graph.node_to("Identity", &["logits"], &["late"], &[]);
    let mut mixed = turned(true, |_, name, _| name.to_owned());
    let late = std::mem::take(&mut graph.fields.0);
    mixed.fields.0.splice(0..0, late);
    mixed.output("late", F32, &[Size::Named("batch")]);
    let bytes = mixed.model(18);
    let sorted = rewritten(&bytes, &Options::default()).unwrap();
    assert_eq!(sorted.inspection().nodes[1], straight.inspection().nodes[1] + 1);
    same_as_before("order", &bytes, &sorted);
}

#[test]
fn fixtures_are_inspected_layer_by_layer() {
    for graph in support::GRAPHS {
        let bytes = support::bytes(graph);
        let rewritten = rewritten(&bytes, &Options { logit_rows: true, ..Options::default() }).unwrap();
        let inspection = rewritten.inspection();
        let plain = graph == "onnx";
        for (number, layer) in inspection.layers.iter().enumerate() {
            assert_eq!(layer.layer, number as u32);
            assert_eq!((layer.num_heads, layer.kv_num_heads, layer.head_dim, layer.scale), (4, 2, 16, 0.25), "{graph}");
            assert_eq!(layer.form, if plain { Form::Plain } else { Form::GroupQueryAttention });
            assert_eq!(layer.layout, if plain { Layout::HeadsFirst } else { Layout::Packed });
            let names = ["key", "value"].map(|side| format!("past_key_values.{number}.{side}"));
            assert_eq!(layer.pasts, names);
        }
        let names: Vec<&str> = inspection.inputs.iter().map(|port| port.name.as_str()).collect();
        assert_eq!(names, ["input_ids", "position_ids", "logit_rows"], "{graph}");
        assert_eq!((inspection.dropped_inputs.len(), inspection.dropped_outputs.len()), (7, 6));
        let text = inspection.to_string();
        // Layers that are alike are one row, and so are names that differ in a number.
        assert_eq!(text.matches("scale 0.25").count(), 1, "{text}");
        assert!(text.contains("\n   0-2   ") && text.contains("present.*.key (3), present.*.value (3)"), "{text}");
        for part in ["scale 0.25", "logits", "dropped inputs", "attention_mask", "bytes in the model"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}

#[test]
fn parts_have_only_the_weights_that_they_use() {
    let bytes = support::bytes("onnx-gqa-f32");
    let rewritten = rewritten(&bytes, &Options::default()).unwrap();
    let parts = rewritten.parts(&bytes).unwrap();
    assert_eq!(parts.len(), 4);
    let sizes: Vec<u64> =
        parts.iter().map(|part| part.model.segments(&bytes, Weights::Inline).unwrap().size()).collect();
    assert!(sizes.iter().sum::<u64>() < bytes.len() as u64 * 11 / 10, "{sizes:?}");
    for (index, part) in parts.iter().enumerate() {
        let calls: Vec<u32> = part.attentions.iter().map(|call| call.layer).collect();
        assert_eq!(calls, if index < 3 { vec![index as u32] } else { vec![] });
        let own = part.model.to_bytes(&bytes, Weights::Inline).unwrap();
        Model::read(&own).unwrap();
    }
    assert_eq!(parts[3].outputs, ["logits"]);
    assert_eq!(parts[0].inputs, ["input_ids", "position_ids"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// Bytes of a graph without its weights are changed: numbers of constants, dimensions, names, attributes.
    #[test]
    fn a_graph_with_some_bytes_changed_is_rewritten_or_refused(
        which in 0..3usize,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let bytes = &small()[which];
        let mut bytes = bytes.clone();
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if let Ok(rewritten) = rewritten(&bytes, &Options { logit_rows: true, ..Options::default() }) {
            let written = rewritten.model().to_bytes(&bytes, Weights::Inline).unwrap();
            Model::read(&written).unwrap();
            let _ = rewritten.parts(&bytes);
        }
    }
}

/// Graphs without their weights.
fn small() -> &'static [Vec<u8>; 3] {
    static SMALL: std::sync::OnceLock<[Vec<u8>; 3]> = std::sync::OnceLock::new();
    SMALL.get_or_init(|| {
        ["onnx", "onnx-gqa-f32", "onnx-gqa-pos-f32"].map(|graph| {
            let bytes = support::bytes(graph);
            Model::read(&bytes).unwrap().to_bytes(&bytes, Weights::External("model.onnx")).unwrap()
        })
    })
}

#[test]
fn the_vocabulary_is_read_off_the_logits() {
    for graph in support::GRAPHS {
        let rewritten = rewritten(&support::bytes(graph), &Options::default()).expect(graph);
        assert_eq!(rewritten.inspection().vocabulary, Some(320), "{graph}");
    }
}

#[test]
fn weights_of_another_file_are_embedded() {
    let (source, inside) =
        (FileSource::open(support::path("onnx-gqa-f32-ext")).unwrap(), support::bytes("onnx-gqa-f32"));
    let model = Model::read(&source).unwrap();
    assert!(!model.check_weights(&source).unwrap().is_empty());
    let embedded = model.to_bytes(&source, Weights::Embedded).unwrap();
    let again = Model::read(&embedded).unwrap();
    assert_eq!(again.check_weights(&embedded).unwrap(), []);
    assert!(embedded.len().abs_diff(inside.len()) < inside.len() / 10, "{} and {} bytes", embedded.len(), inside.len());
    // What has no folder cannot be read.
    let bytes = support::bytes("onnx-gqa-f32-ext");
    assert!(matches!(model.to_bytes(&bytes, Weights::Embedded), Err(Error::Weights { .. })));
}
