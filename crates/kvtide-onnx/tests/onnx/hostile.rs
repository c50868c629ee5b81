//! Graphs of random operators with random inputs and attributes, next to an attention: a rewrite always returns.

use kvtide_onnx::{Model, Options, Rewritten};
use proptest::prelude::*;

use crate::support::build::{Attr, Decoder, HEADS};

const OPERATORS: [&str; 44] = [
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
];
const NAMES: [&str; 17] = [
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

fn model(draws: &[Draw], numbers: &[Vec<usize>]) -> Vec<u8> {
    let decoder = Decoder::new(HEADS, true);
    let mut graph = decoder.layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let output = decoder.graph.fresh("attended");
        let inputs = [query, key, value, "", "", "", &pasts[0], &pasts[1]];
        let attributes = [Attr::Int("num_heads", HEADS), Attr::Int("unidirectional", 1)];
        let outputs = [output.as_str(), &presents[0], &presents[1]];
        decoder.graph.node_to("com.microsoft.MultiHeadAttention", &inputs, &outputs, &attributes);
        output
    });
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
