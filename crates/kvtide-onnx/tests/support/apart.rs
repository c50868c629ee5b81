//! Decoders with nodes between the last layer and the head, which keep tokens apart or mix them.

use kvtide_onnx::{Error, Model, Options, Rewritten};

use super::build::{Attr, Decoder, F32, Graph, Size, VOCABULARY, WIDTH};
use super::hybrid::turned;

/// Nodes behind a tensor `[batch, tokens, width]` that give one of the same dimensions.
pub type Change = fn(&mut Graph, &str) -> String;

/// A decoder with nodes between its layers and its head, and a product behind them: the head has no rows to look for there.
pub fn decoder(change: impl Fn(&mut Graph, &str) -> String) -> Graph {
    let dims = [Size::Named("batch"), Size::Named("new"), Size::Is(VOCABULARY)];
    let attention = |decoder: &mut Decoder, layer: usize, operands: [&str; 3]| decoder.grouped(layer, operands, &[]);
    Decoder::new(2, true).layers_to(attention, &dims, |graph, hidden, weight| {
        let x = change(graph, hidden);
        let own = graph.weight(&[WIDTH, WIDTH], 0.3);
        let x = graph.node("MatMul", &[&x, &own], &[]);
        graph.node_to("MatMul", &[&x, weight], &["logits"], &[]);
    })
}

pub fn rewrite(graph: &Graph, logit_rows: bool) -> Result<Rewritten, Error> {
    let bytes = graph.model(21);
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options { logit_rows, ..Options::default() })
}

pub fn ints(graph: &mut Graph, values: &[i64]) -> String {
    graph.ints(&[values.len() as i64], values)
}

pub fn slice(graph: &mut Graph, x: &str, bounds: [i64; 2], axis: i64) -> String {
    let [start, end, axis] = [bounds[0], bounds[1], axis].map(|at| ints(graph, &[at]));
    graph.node("Slice", &[x, &start, &end, &axis], &[])
}

pub fn unsqueezed(graph: &mut Graph, x: &str, axes: &[i64]) -> String {
    let axes = ints(graph, axes);
    graph.node("Unsqueeze", &[x, &axes], &[])
}

/// One dimension of a tensor.
pub fn size_of(graph: &mut Graph, name: &str, axis: i64) -> String {
    let (shape, axis) = (graph.node("Shape", &[name], &[]), graph.ints(&[], &[axis]));
    graph.node("Gather", &[&shape, &axis], &[])
}

/// A reduction along one axis, which stays.
pub fn reduced(graph: &mut Graph, operator: &str, x: &str, axis: i64) -> String {
    let axes = ints(graph, &[axis]);
    graph.node(operator, &[x, &axes], &[])
}

/// `x`, times 2 if a number is greater than 6.
pub fn scaled_above(graph: &mut Graph, x: &str, number: &str) -> String {
    let (limit, high, low) = (graph.ints(&[], &[6]), graph.floats(&[], &[2.]), graph.floats(&[], &[1.]));
    let is_above = graph.node("Greater", &[number, &limit], &[]);
    let factor = graph.node("Where", &[&is_above, &high, &low], &[]);
    graph.node("Mul", &[x, &factor], &[])
}

/// Nodes that mix the tokens of a step: the operator that is refused, and the nodes.
pub const MIXES: &[(&str, Change)] = &[
    ("CumSum", |graph, x| {
        let axis = graph.ints(&[], &[1]);
        graph.node("CumSum", &[x, &axis], &[])
    }),
    ("ReduceMax", |graph, x| {
        let sizes = graph.node("Abs", &[x], &[]);
        let most = graph.node("ReduceMax", &[&sizes], &[Attr::Int("keepdims", 0)]);
        graph.node("Div", &[x, &most], &[])
    }),
    ("ReduceMean", |graph, x| {
        let mean = reduced(graph, "ReduceMean", x, 1);
        graph.node("Sub", &[x, &mean], &[])
    }),
    ("ReduceSum", |graph, x| {
        let sum = reduced(graph, "ReduceSum", x, -2);
        graph.node("Sub", &[x, &sum], &[])
    }),
    ("ReduceL2", |graph, x| {
        let size = reduced(graph, "ReduceL2", x, 1);
        graph.node("Div", &[x, &size], &[])
    }),
    ("ArgMax", |graph, x| {
        let most = graph.node("ArgMax", &[x], &[Attr::Int("axis", 1)]);
        let most = graph.node("Cast", &[&most], &[Attr::Int("to", F32)]);
        graph.node("Add", &[x, &most], &[])
    }),
    ("TopK", |graph, x| {
        let one = ints(graph, &[1]);
        graph.node_to("TopK", &[x, &one], &["most", "places"], &[Attr::Int("axis", 1)]);
        graph.node("Add", &[x, "most"], &[])
    }),
    ("Softmax", |graph, x| graph.node("Softmax", &[x], &[Attr::Int("axis", 1)])),
    ("LpNormalization", |graph, x| graph.node("LpNormalization", &[x], &[Attr::Int("axis", 1)])),
    ("Slice", |graph, x| {
        let first = slice(graph, x, [0, 1], 1);
        graph.node("Add", &[x, &first], &[])
    }),
    ("Gather", |graph, x| {
        let last = ints(graph, &[-1]);
        let last = graph.node("Gather", &[x, &last], &[Attr::Int("axis", 1)]);
        graph.node("Add", &[x, &last], &[])
    }),
    // Each token with the one before it.
    ("Slice", |graph, x| {
        let (first, others) = (slice(graph, x, [0, 1], 1), slice(graph, x, [0, -1], 1));
        let before = graph.node("Concat", &[&first, &others], &[Attr::Int("axis", 1)]);
        graph.node("Add", &[x, &before], &[])
    }),
    ("Pad", |graph, x| {
        let (pads, end) = (ints(graph, &[0, 1, 0, 0, 0, 0]), ints(graph, &[-1]));
        let zero = graph.floats(&[], &[0.]);
        let padded = graph.node("Pad", &[x, &pads, &zero], &[]);
        let (start, axis) = (ints(graph, &[0]), ints(graph, &[1]));
        graph.node("Slice", &[&padded, &start, &end, &axis], &[])
    }),
    ("ReverseSequence", |graph, x| {
        let new = size_of(graph, x, 1);
        let lengths = unsqueezed(graph, &new, &[0]);
        graph.node("ReverseSequence", &[x, &lengths], &[Attr::Int("batch_axis", 0), Attr::Int("time_axis", 1)])
    }),
    ("Conv", |graph, x| {
        let weight = graph.weight(&[WIDTH, 1, 3], 1.);
        let first = turned(graph, x);
        let attributes = [Attr::Int("group", WIDTH), Attr::Ints("pads", vec![2, 0])];
        let out = graph.node("Conv", &[&first, &weight], &attributes);
        turned(graph, &out)
    }),
    ("InstanceNormalization", |graph, x| {
        let [scale, bias] = [0, 1].map(|_| graph.weight(&[WIDTH], 1.));
        let first = turned(graph, x);
        let out = graph.node("InstanceNormalization", &[&first, &scale, &bias], &[]);
        turned(graph, &out)
    }),
    ("MatMul", |graph, x| {
        let other = turned(graph, x);
        let products = graph.node("MatMul", &[x, &other], &[]);
        graph.node("MatMul", &[&products, x], &[])
    }),
    ("MatMul", |graph, x| {
        let other = turned(graph, x);
        let products = graph.node("MatMul", &[&other, x], &[]);
        graph.node("MatMul", &[x, &products], &[])
    }),
    ("Einsum", |graph, x| {
        let products = graph.node("Einsum", &[x, x], &[Attr::Text("equation", "bti,bsi->bts")]);
        graph.node("Einsum", &[&products, x], &[Attr::Text("equation", "bts,bsi->bti")])
    }),
    // A sum over tokens behind views that move their axis.
    ("ReduceSum", |graph, x| {
        let shape = ints(graph, &[1, -1, 4, WIDTH / 4]);
        let apart = graph.node("Reshape", &[x, &shape], &[]);
        let moved = graph.node("Transpose", &[&apart], &[Attr::Ints("perm", vec![3, 2, 1, 0])]);
        let flat = ints(graph, &[WIDTH / 4, -1]);
        let flat = graph.node("Reshape", &[&moved, &flat], &[]);
        let sum = reduced(graph, "ReduceSum", &flat, 1);
        let sum = graph.node("ReduceMax", &[&sum], &[Attr::Int("keepdims", 0)]);
        graph.node("Mul", &[x, &sum], &[])
    }),
    // Rows of another order in memory.
    ("Reshape", |graph, x| {
        let shape = graph.node("Shape", &[x], &[]);
        let other = turned(graph, x);
        graph.node("Reshape", &[&other, &shape], &[])
    }),
    ("LayerNormalization", |graph, x| {
        let scale = graph.floats(&[], &[1.]);
        graph.node("LayerNormalization", &[x, &scale], &[Attr::Int("axis", 1)])
    }),
    ("GatherElements", |graph, x| {
        let most = graph.node("ArgMax", &[x], &[Attr::Int("axis", 2)]);
        let zero = graph.ints(&[], &[0]);
        let zeros = graph.node("Mul", &[&most, &zero], &[]);
        let shape = graph.node("Shape", &[x], &[]);
        let wide = graph.node("Expand", &[&zeros, &shape], &[]);
        graph.node("GatherElements", &[x, &wide], &[Attr::Int("axis", 1)])
    }),
    ("ScatterElements", |graph, x| {
        let shape = graph.node("Shape", &[x], &[]);
        let zero = graph.ints(&[], &[0]);
        let wide = graph.node("Expand", &[&zero, &shape], &[]);
        let attributes = [Attr::Int("axis", 1), Attr::Text("reduction", "add")];
        graph.node("ScatterElements", &[x, &wide, x], &attributes)
    }),
    // Every other token.
    ("Slice", |graph, x| {
        let [start, end, axis, step] = [0, i64::MAX, 1, 2].map(|at| ints(graph, &[at]));
        let some = graph.node("Slice", &[x, &start, &end, &axis, &step], &[]);
        let sum = reduced(graph, "ReduceSum", &some, 1);
        graph.node("Add", &[x, &sum], &[])
    }),
    // A weight of its own for each place of a step.
    ("Add", |graph, x| {
        let (zero, one, new) = (graph.ints(&[], &[0]), graph.ints(&[], &[1]), size_of(graph, x, 1));
        let places = graph.node("Range", &[&zero, &new, &one], &[]);
        let table = graph.weight(&[64, WIDTH], 1.);
        let rows = graph.node("Gather", &[&table, &places], &[]);
        graph.node("Add", &[x, &rows], &[])
    }),
];
