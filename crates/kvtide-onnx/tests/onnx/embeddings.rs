//! Decoders that take embeddings instead of ids, and positions with three rows.

use kvtide_onnx::{Error, Model, Options, Rewritten};

use crate::support;
use crate::support::build::{Attr, DIM, Decoder, F32, Graph, I64, Size, WIDTH};

fn rewritten(bytes: &[u8], embedded: &[&str]) -> Result<Rewritten, Error> {
    let embedded = embedded.iter().map(|&name| name.into()).collect();
    let options = Options { logit_rows: true, embedded, ..Options::default() };
    Rewritten::new(&bytes, &Model::read(&bytes)?, &options)
}

/// The node and the reason of a refusal.
fn refused(bytes: &[u8], embedded: &[&str]) -> (String, String) {
    match rewritten(bytes, embedded).expect_err("it is refused") {
        Error::Unrecognised { node, reason, .. } => (node, reason),
        other => panic!("{other}"),
    }
}

fn inputs(rewritten: &Rewritten) -> Vec<(String, Vec<String>)> {
    rewritten.model().inputs().into_iter().map(|port| (port.name, port.dims)).collect()
}

#[test]
fn embeddings_are_an_input_if_a_step_gives_them() {
    let bytes = std::fs::read(support::path("../vision/qwen2-vl").with_file_name("decoder_model_merged.onnx")).unwrap();
    let (node, reason) = refused(&bytes, &[]);
    assert_eq!(node, "inputs_embeds");
    assert!(reason.contains("the model of its embeddings"), "{reason}");
    let rewritten = rewritten(&bytes, &["inputs_embeds"]).unwrap();
    let dims = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let wanted = [
        ("inputs_embeds".to_owned(), dims(&["batch_size", "sequence_length", "32"])),
        ("position_ids".to_owned(), dims(&["3", "batch_size", "sequence_length"])),
    ];
    assert_eq!(inputs(&rewritten)[..2], wanted);
    assert_eq!(rewritten.layers().len(), 2);
    assert_eq!(rewritten.inspection().vocabulary, Some(72));
    let parts = rewritten.parts(&bytes.as_slice()).unwrap();
    assert_eq!(parts.len(), 3);
    assert!(parts[0].inputs.iter().any(|name| name == "inputs_embeds"), "{:?}", parts[0].inputs);
}

/// A decoder of two layers over GroupQueryAttention, with positions of these dimensions and rotary tables if wanted.
fn grouped(positions: &[Size], tables: bool) -> Graph {
    let mut decoder = Decoder::new(2, false);
    decoder.graph.input("position_ids", I64, positions);
    let mut rows = Vec::new();
    if tables {
        rows = (0..2).map(|_| decoder.graph.weight(&[64, DIM / 2], 1.)).collect();
        rows.push("position_ids".into());
    }
    decoder.layers(move |decoder, layer, operands| {
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        decoder.grouped(layer, operands, &rows)
    })
}

const FLAT: [Size; 2] = [Size::Named("batch"), Size::Named("new")];
const THREE: [Size; 3] = [Size::Is(3), Size::Named("batch"), Size::Named("new")];

#[test]
fn three_rows_of_positions_do_not_turn_the_keys_of_an_operator() {
    assert!(rewritten(&grouped(&FLAT, true).model(18), &[]).is_ok());
    let (node, reason) = refused(&grouped(&THREE, true).model(18), &[]);
    assert_eq!(node, "position_ids");
    assert!(reason.contains("the index of each token"), "{reason}");
    let four = [Size::Is(4), Size::Named("batch"), Size::Named("new")];
    assert!(refused(&used(&four).model(18), &[]).1.contains("2 dimensions"));
    assert!(rewritten(&used(&THREE).model(18), &[]).is_ok());
}

/// The same without tables: positions are added to queries as numbers of their first row.
fn used(positions: &[Size]) -> Graph {
    let mut decoder = Decoder::new(2, false);
    decoder.graph.input("position_ids", I64, positions);
    decoder.layers(|decoder, layer, [query, key, value]| {
        let zero = decoder.graph.ints(&[], &[0]);
        let table = decoder.graph.weight(&[64, 4 * DIM], 1.);
        let row = decoder.graph.node("Gather", &["position_ids", &zero], &[Attr::Int("axis", 0)]);
        let rows = decoder.graph.node("Gather", &[&table, &row], &[]);
        let query = decoder.graph.node("Add", &[query, &rows], &[]);
        decoder.grouped(layer, [&query, key, value], &[])
    })
}

#[test]
fn the_index_of_a_token_does_not_follow_from_three_rows() {
    // Its table is read by the length of the past, beside positions with three rows.
    let by_past = |positions: &[Size]| {
        let mut decoder = Decoder::new(2, false);
        decoder.graph.input("position_ids", I64, positions);
        decoder.layers(|decoder, layer, [query, key, value]| {
            let [pasts, _] = ["past_key_values", "present"].map(|stem| format!("{stem}.{layer}.key"));
            let output = decoder.grouped(layer, [query, key, value], &[]);
            let [queries, _] = decoder.positions(&pasts);
            let shape = decoder.graph.ints(&[2], &[1, -1]);
            let row = decoder.graph.node("Reshape", &[&queries, &shape], &[]);
            let table = decoder.graph.weight(&[64, 4 * DIM], 1.);
            let rows = decoder.graph.node("Gather", &[&table, &row], &[]);
            decoder.graph.node("Add", &[&output, &rows], &[])
        })
    };
    assert!(rewritten(&by_past(&FLAT).model(18), &[]).is_ok());
    assert_eq!(refused(&by_past(&THREE).model(18), &[]).0, "position_ids");
}

/// Layer 0 is an operator, layer 1 attends over its presents, or over one of them and a past of its own.
fn over_presents(values: &str) -> Graph {
    Decoder::new(2, false).layers(|decoder, layer, operands| {
        if layer == 0 {
            return decoder.grouped(layer, operands, &[]);
        }
        let graph = &mut decoder.graph;
        let [keys, values] = ["present.0.key", values].map(|name| {
            let (axis, shape) = (graph.ints(&[1], &[2]), graph.ints(&[5], &[1, 1, 2, 1, 1]));
            let apart = graph.node("Unsqueeze", &[name, &axis], &[]);
            let repeated = graph.node("Expand", &[&apart, &shape], &[]);
            let shape = graph.ints(&[4], &[0, 4, -1, DIM]);
            graph.node("Reshape", &[&repeated, &shape], &[])
        });
        let query = decoder.heads_first(operands[0], 4);
        let seen = decoder.seen("past_key_values.0.key", None);
        let graph = &mut decoder.graph;
        let keys = graph.node("Transpose", &[&keys], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let scores = graph.node("MatMul", &[&query, &keys], &[]);
        let low = graph.floats(&[], &[-1e9]);
        let scores = graph.node("Where", &[&seen, &scores, &low], &[]);
        let weights = graph.node("Softmax", &[&scores], &[]);
        let attended = graph.node("MatMul", &[&weights, &values], &[]);
        decoder.packed(&attended)
    })
}

#[test]
fn a_layer_over_the_presents_of_an_operator_has_no_keys_of_its_own() {
    let bytes = over_presents("present.0.value").model(18);
    let rewritten = rewritten(&bytes, &[]).unwrap();
    let sources: Vec<_> = rewritten.layers().iter().map(|layer| layer.source).collect();
    assert_eq!(sources, [None, Some(0)]);
    assert_eq!(rewritten.inspection().dropped_outputs, ["present.0.key", "present.0.value"]);
    let parts = rewritten.parts(&bytes.as_slice()).unwrap();
    let [query, key, value] = &parts[1].attentions[0].inputs;
    assert!(query == key && query == value);
    // Its keys as values are not the pair of a layer.
    let (_, reason) = refused(&over_presents("present.0.key").model(18), &[]);
    assert!(reason.contains("read by another attention"), "{reason}");
}

#[test]
fn other_floats_are_refused() {
    let with = |dims: &[Size], summed: &[i64]| {
        let mut decoder = Decoder::new(2, false);
        decoder.graph.input("per_layer_inputs", F32, dims);
        decoder.layers(|decoder, layer, [query, key, value]| {
            let axes = decoder.graph.ints(&[summed.len() as i64], summed);
            let row = decoder.graph.node("ReduceSum", &["per_layer_inputs", &axes], &[]);
            let query = decoder.graph.node("Add", &[query, &row], &[]);
            decoder.grouped(layer, [&query, key, value], &[])
        })
    };
    let wide = [Size::Named("batch"), Size::Named("new"), Size::Is(WIDTH)];
    let bytes = with(&wide, &[-1]).model(18);
    assert!(refused(&bytes, &[]).1.contains("its purpose is not known"));
    assert!(rewritten(&bytes, &["per_layer_inputs"]).is_ok());
    assert!(refused(&with(&FLAT, &[0, 1]).model(18), &["per_layer_inputs"]).1.contains("fewer than 3 dimensions"));
}

#[test]
fn rows_of_each_layer_may_have_a_dimension_of_their_own() {
    let names = [Size::Named("batch"), Size::Named("new")];
    for [batch, new] in [names, [Size::Named("sequences"), Size::Named("tokens")]] {
        let mut decoder = Decoder::new(2, false);
        decoder.graph.input("per_layer_inputs", F32, &[batch, new, Size::Is(2), Size::Is(WIDTH)]);
        let graph = decoder.layers(|decoder, layer, [query, key, value]| {
            let index = decoder.graph.ints(&[], &[layer as i64]);
            let rows = decoder.graph.node("Gather", &["per_layer_inputs", &index], &[Attr::Int("axis", 2)]);
            let weight = decoder.graph.weight(&[WIDTH, 4 * DIM], 1.);
            let rows = decoder.graph.node("MatMul", &[&rows, &weight], &[]);
            let query = decoder.graph.node("Add", &[query, &rows], &[]);
            decoder.grouped(layer, [&query, key, value], &[])
        });
        let bytes = graph.model(18);
        assert!(rewritten(&bytes, &[]).is_err());
        let rewritten = rewritten(&bytes, &["per_layer_inputs"]).unwrap();
        assert_eq!(rewritten.layers().len(), 2);
        assert_eq!(inputs(&rewritten)[1].0, "per_layer_inputs");
    }
}
