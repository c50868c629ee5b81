//! Graphs of random operators with random inputs and attributes, next to an attention: a rewrite always returns.

use kvtide_onnx::{Error, Model, Options, Rewritten};
use proptest::prelude::*;

use crate::support::build::{Attr, BOOL, Decoder, Graph, HEADS};

const OPERATORS: [&str; 51] = [
    "Shape",
    "Size",
    "Reshape",
    "Flatten",
    "Unsqueeze",
    "Squeeze",
    "Transpose",
    "Expand",
    "Tile",
    "Concat",
    "Slice",
    "Gather",
    "Trilu",
    "Range",
    "ConstantOfShape",
    "Split",
    "ScatterND",
    "GatherElements",
    "Cast",
    "Where",
    "Add",
    "Mul",
    "Div",
    "Mod",
    "Pow",
    "LessOrEqual",
    "And",
    "Not",
    "Neg",
    "Sqrt",
    "MatMul",
    "Gemm",
    "ReduceSum",
    "ReduceMax",
    "CumSum",
    "Softmax",
    "com.microsoft.MatMulNBits",
    "com.microsoft.GatherBlockQuantized",
    "com.microsoft.SkipSimplifiedLayerNormalization",
    "Max",
    "Conv",
    "com.microsoft.CausalConvWithState",
    "com.microsoft.LinearAttention",
    "com.microsoft.LinearAttentionGate",
    "com.microsoft.MultiHeadAttention",
    "com.microsoft.GroupQueryAttention",
    "Attention",
    "Pad",
    "QuantizeLinear",
    "Sign",
    "Identity",
];
const NAMES: [&str; 20] = [
    "axis",
    "axes",
    "perm",
    "to",
    "start",
    "end",
    "keepdims",
    "N",
    "bits",
    "upper",
    "exclusive",
    "split",
    "strides",
    "dilations",
    "pads",
    "q_num_heads",
    "kv_num_heads",
    "num_heads",
    "fmod",
    "noop_with_empty_axes",
];
const NUMBERS: [i64; 14] = [0, 1, 2, 3, 4, 5, 7, 8, -1, -2, -3, i64::MAX, i64::MIN, 1 << 40];

#[derive(Clone, Debug)]
struct Draw {
    operator: usize,
    inputs: Vec<prop::sample::Index>,
    attributes: Vec<(usize, Vec<usize>, bool)>,
    outputs: usize,
}

fn draw() -> impl Strategy<Value = Draw> {
    let inputs = prop::collection::vec(any::<prop::sample::Index>(), 0..5);
    let attribute = (0..NAMES.len(), prop::collection::vec(0..NUMBERS.len(), 1..4), any::<bool>());
    (0..OPERATORS.len(), inputs, prop::collection::vec(attribute, 0..3), 1..4usize)
        .prop_map(|(operator, inputs, attributes, outputs)| Draw { operator, inputs, attributes, outputs })
}

fn decoder() -> Graph {
    Decoder::new(HEADS, true).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let output = decoder.graph.fresh("attended");
        let inputs = [query, key, value, "", "", "", &pasts[0], &pasts[1]];
        let attributes = [Attr::Int("num_heads", HEADS), Attr::Int("unidirectional", 1)];
        let outputs = [output.as_str(), &presents[0], &presents[1]];
        decoder.graph.node_to("com.microsoft.MultiHeadAttention", &inputs, &outputs, &attributes);
        output
    })
}

fn model(draws: &[Draw], numbers: &[Vec<usize>]) -> Vec<u8> {
    let mut graph = decoder();
    let mut names: Vec<String> =
        ["input_ids", "position_ids", "attention_mask", "logits", "past_key_values.0.key", "present.0.key"]
            .map(str::to_owned)
            .to_vec();
    for list in numbers {
        let values: Vec<i64> = list.iter().map(|&index| NUMBERS[index]).collect();
        names.push(if values.len() == 1 {
            graph.ints(&[], &values)
        } else {
            graph.ints(&[values.len() as i64], &values)
        });
    }
    for draw in draws {
        let inputs: Vec<String> = draw.inputs.iter().map(|index| names[index.index(names.len())].clone()).collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let attributes: Vec<Attr> = draw
            .attributes
            .iter()
            .map(|(name, numbers, list)| {
                let numbers: Vec<i64> = numbers.iter().map(|&index| NUMBERS[index]).collect();
                if *list { Attr::Ints(NAMES[*name], numbers) } else { Attr::Int(NAMES[*name], numbers[0]) }
            })
            .collect();
        let outputs: Vec<String> = (0..draw.outputs).map(|_| graph.fresh("made")).collect();
        let made: Vec<&str> = outputs.iter().map(String::as_str).collect();
        graph.node_to(OPERATORS[draw.operator], &inputs, &made, &attributes);
        names.extend(outputs);
    }
    let last = names.last().unwrap().clone();
    if last.starts_with("made") {
        graph.output(&last, 1, &[]);
    }
    graph.model(18)
}

fn cases() -> u32 {
    std::env::var("KVTIDE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn a_graph_of_random_operators_is_rewritten_or_refused(
        draws in prop::collection::vec(draw(), 1..24),
        numbers in prop::collection::vec(prop::collection::vec(0..NUMBERS.len(), 1..5), 1..8),
    ) {
        let bytes = model(&draws, &numbers);
        let model = Model::read(&bytes).unwrap();
        if let Ok(rewritten) = Rewritten::new(&bytes, &model, &Options::default()) {
            rewritten.parts(&bytes).unwrap();
        }
    }
}

/// Queries of which no head is kept.
fn no_heads(decoder: &mut Decoder, query: &str) -> String {
    let query = decoder.heads_first(query, HEADS);
    let [first, end, axis] = [0, 0, 1].map(|number| decoder.graph.ints(&[1], &[number]));
    decoder.graph.node("Slice", &[&query, &first, &end, &axis], &[])
}

/// Queries that have no heads, next to keys whose heads follow from them.
#[test]
fn an_operator_without_heads_is_refused() {
    let graph = Decoder::new(HEADS, false).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let none = no_heads(decoder, query);
        let graph = &mut decoder.graph;
        let output = graph.fresh("attended");
        let inputs = [none.as_str(), key, value, "", &pasts[0], &pasts[1]];
        graph.node_to("Attention", &inputs, &[&output, &presents[0], &presents[1]], &[Attr::Int("is_causal", 1)]);
        output
    });
    refused(&graph);
}

/// The same of a plain attention with sinks, whose product repeats a single head of keys.
#[test]
fn a_plain_attention_without_heads_is_refused() {
    let graph = Decoder::new(1, false).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.joined(layer, [key, value], 1);
        let seen = decoder.seen(&pasts[0], None);
        let none = no_heads(decoder, query);
        let graph = &mut decoder.graph;
        let low = graph.floats(&[], &[f32::MIN]);
        let keys = graph.node("Transpose", &[&presents[0]], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let scores = graph.node("MatMul", &[&none, &keys], &[]);
        let scores = graph.node("Where", &[&seen, &scores, &low], &[]);
        let sinks = graph.floats(&[1, HEADS, 1, 1], &[0.; HEADS as usize]);
        let all = graph.node("Concat", &[&scores, &sinks], &[Attr::Int("axis", -1)]);
        let all = graph.node("Softmax", &[&all], &[Attr::Int("axis", -1)]);
        graph.node("MatMul", &[&all, &presents[1]], &[])
    });
    refused(&graph);
}

fn refused(graph: &Graph) {
    let bytes = graph.model(23);
    let error = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::Unrecognised { .. }), "{error}");
}

/// Each node reads the one before it twice: 2^60 ways lead to the last one.
#[test]
fn a_present_that_is_read_twice_is_followed_once() {
    let graph = Decoder::new(HEADS, false).layers(|decoder, layer, [query, key, value]| {
        let [pasts, _] = decoder.pasts(layer);
        let operands = [key, value].map(|name| decoder.heads_first(name, HEADS));
        let graph = &mut decoder.graph;
        let joined = [0, 1].map(|side: usize| {
            let inputs = [pasts[side].as_str(), &operands[side]];
            let joined = graph.node("Concat", &inputs, &[Attr::Int("axis", 2)]);
            let mut name = joined.clone();
            for _ in 0..60 {
                name = graph.node("Identity", &[&name, &name], &[]);
            }
            graph.node_to("Abs", &[&name], &[&format!("present.{layer}.{}", ["key", "value"][side])], &[]);
            joined
        });
        let seen = decoder.seen(&pasts[0], None);
        let query = decoder.heads_first(query, HEADS);
        let output = decoder.graph.node("Attention", &[&query, &joined[0], &joined[1], &seen], &[]);
        decoder.packed(&output)
    });
    let bytes = graph.model(23);
    drop(Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &Options::default()));
}

/// The branches of a node have no more numbers than the graph around them: what is made behind 2^25 is unknown.
#[test]
fn numbers_inside_of_branches_are_counted() {
    let masked = |is_full: bool| {
        let graph = Decoder::new(HEADS, false).layers(|decoder, layer, [query, key, value]| {
            let [pasts, presents] = decoder.pasts(layer);
            let seen = decoder.seen(&pasts[0], None);
            let mut inner = Graph::default();
            for bits in [[22; 7].as_slice(), &[21, 20, 19, 18, 17, 16, 15, 14, 13]].concat() {
                let shape = inner.ints(&[1], &[1 << if is_full { bits } else { 4 }]);
                inner.node("ConstantOfShape", &[&shape], &[]);
            }
            let again = inner.node("Not", &[&seen], &[]);
            let again = inner.node("Not", &[&again], &[]);
            inner.output(&again, BOOL, &[]);
            let branch = inner.fields.clone().text(2, "branch");
            let one = decoder.graph.truths(&[], &[1]);
            let branches = ["then_branch", "else_branch"].map(|name| Attr::Graph(name, branch.clone()));
            let mask = decoder.graph.node("If", &[&one], &branches);
            let output = decoder.graph.fresh("attended");
            let inputs = [query, key, value, &mask, &pasts[0], &pasts[1]];
            let heads = [Attr::Int("q_num_heads", HEADS), Attr::Int("kv_num_heads", HEADS)];
            decoder.graph.node_to("Attention", &inputs, &[&output, &presents[0], &presents[1]], &heads);
            output
        });
        let bytes = graph.model(23);
        Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &Options::default())
    };
    assert!(masked(false).is_ok());
    let error = masked(true).unwrap_err().to_string();
    assert!(error.contains("depends on more than sizes"), "{error}");
}
