//! Weights of 4 and 8 bits in heads and embeddings: they stay as they are, and rows of logits are chosen before them.

use kvtide_onnx::{Model, Options, Rewritten};

use crate::support::build::{Attr, Decoder, Graph, Size, VOCABULARY, WIDTH};
use crate::support::runtime::near;

/// Rewrites a decoder with a head, chooses all rows, and compares them.
fn accepted(name: &str, limit: f64, opset: i64, head: impl Fn(&mut Graph, &str)) {
    let dims = [Size::Named("batch"), Size::Named("new"), Size::Is(VOCABULARY)];
    let attention = |decoder: &mut Decoder, layer: usize, operands: [&str; 3]| decoder.grouped(layer, operands, &[]);
    let graph = Decoder::new(2, false).layers_to(attention, &dims, |graph, hidden, _| head(graph, hidden));
    let bytes = graph.model(opset);
    let options = Options { logit_rows: true, ..Options::default() };
    let rewritten = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &options);
    let rewritten = rewritten.unwrap_or_else(|error| panic!("{name}: {error}"));
    let inputs: Vec<&str> = rewritten.inspection().inputs.iter().map(|port| port.name.as_str()).collect();
    assert!(inputs.contains(&"logit_rows"), "{name}: {inputs:?}");
    near(&format!("weights.{name}"), [&bytes, &bytes], &rewritten, &options, limit);
}

/// Bytes that look random.
fn codes(count: i64) -> Vec<u8> {
    (0..count).map(|at| (at * 37 % 251) as u8).collect()
}

/// Positive numbers, all different.
fn scales(graph: &mut Graph, dims: &[i64]) -> String {
    let values: Vec<f32> = (0..dims.iter().product()).map(|at: i64| 0.01 + (at % 17) as f32 / 400.).collect();
    graph.floats(dims, &values)
}

#[test]
fn heads_whose_activations_and_weights_are_quantised_and_back() {
    // An activation between two codes may become another one: a step of it is as much as this in a logit.
    accepted("qdq", 0.05, 18, |graph, hidden| {
        let (step, point) = (graph.floats(&[], &[0.02]), graph.bytes(&[], &[128]));
        let whole = graph.node("QuantizeLinear", &[hidden, &step, &point], &[]);
        let rows = graph.node("DequantizeLinear", &[&whole, &step, &point], &[]);
        let (weight, scale) =
            (graph.bytes(&[WIDTH, VOCABULARY], &codes(WIDTH * VOCABULARY)), graph.floats(&[], &[0.01]));
        let weight = graph.node("DequantizeLinear", &[&weight, &scale, &point], &[]);
        graph.node_to("MatMul", &[&rows, &weight], &["logits"], &[]);
    });
}

#[test]
fn heads_with_weights_of_4_bits_in_blocks() {
    accepted("blocks", 1e-4, 21, |graph, hidden| {
        let (size, blocks) = (16, WIDTH / 16);
        let weight = graph.nibbles(&[WIDTH, VOCABULARY], &codes(WIDTH * VOCABULARY / 2));
        let points = graph.nibbles(&[blocks, VOCABULARY], &vec![0x88; (blocks * VOCABULARY / 2) as usize]);
        let scales = scales(graph, &[blocks, VOCABULARY]);
        let attributes = [Attr::Int("axis", 0), Attr::Int("block_size", size)];
        let weight = graph.node("DequantizeLinear", &[&weight, &scales, &points], &attributes);
        graph.node_to("MatMul", &[hidden, &weight], &["logits"], &[]);
    });
}

#[test]
fn rows_of_the_weight_of_a_head_are_embeddings_as_well() {
    accepted("tied", 1e-4, 21, |graph, hidden| {
        let weight = graph.bytes(&[VOCABULARY, 1, WIDTH / 2], &codes(VOCABULARY * WIDTH / 2));
        let scales = scales(graph, &[VOCABULARY]);
        let [flat, rows] = [[VOCABULARY, WIDTH / 2], [VOCABULARY, 1]].map(|dims| graph.ints(&[2], &dims));
        let table = graph.node("Reshape", &[&weight, &flat], &[]);
        let sizes = graph.node("Reshape", &[&scales, &rows], &[]);
        let (bits, block) = (Attr::Int("bits", 4), Attr::Int("block_size", WIDTH));
        let attributes = [bits.clone(), block.clone(), Attr::Int("gather_axis", 0), Attr::Int("quantize_axis", 1)];
        let embedded = graph.node("com.microsoft.GatherBlockQuantized", &[&table, "input_ids", &sizes], &attributes);
        let hidden = graph.node("Add", &[hidden, &embedded], &[]);
        let attributes = [bits, block, Attr::Int("K", WIDTH), Attr::Int("N", VOCABULARY)];
        graph.node_to("com.microsoft.MatMulNBits", &[&hidden, &weight, &scales], &["logits"], &attributes);
    });
}
