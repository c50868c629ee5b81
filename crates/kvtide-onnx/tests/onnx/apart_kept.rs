//! Nodes that compute each token apart are kept, in any form: the numbers are the same alone and beside others.

use kvtide_onnx::Error;
use proptest::prelude::*;

use crate::support::apart::{Change, MIXES, decoder, ints, reduced, rewrite, scaled_above, size_of, slice, unsqueezed};
use crate::support::build::{Attr, F32, Graph, VOCABULARY, WIDTH};
use crate::support::hybrid::turned;
use crate::support::runtime::same_as_before;

/// Checks that nodes are kept, and that they give the same numbers before and after the rewrite.
fn kept(name: &str, change: impl Fn(&mut Graph, &str) -> String) {
    let graph = decoder(change);
    if let Err(error) = rewrite(&graph, true) {
        panic!("{name}: {error}");
    }
    let rewritten = rewrite(&graph, false).unwrap_or_else(|error| panic!("{name}: {error}"));
    same_as_before(&format!("apart.{name}"), &graph.model(21), &rewritten);
}

/// Nodes of `[batch, tokens, width]` to the same.
const ROWS: &[(&str, Change)] = &[
    ("tanh", |graph, x| graph.node("Tanh", &[x], &[])),
    ("norm", |graph, x| {
        let scale = graph.weight(&[WIDTH], 1.);
        graph.node("LayerNormalization", &[x, &scale], &[])
    }),
    ("softmax", |graph, x| graph.node("Softmax", &[x], &[])),
    ("mean", |graph, x| {
        let mean = reduced(graph, "ReduceMean", x, 2);
        graph.node("Sub", &[x, &mean], &[])
    }),
    ("product", |graph, x| {
        let weight = graph.weight(&[WIDTH, WIDTH], 1.);
        graph.node("MatMul", &[x, &weight], &[])
    }),
    ("gemm", |graph, x| {
        let (weight, bias) = (graph.weight(&[WIDTH, WIDTH], 1.), graph.weight(&[WIDTH], 1.));
        let (flat, shape) = (ints(graph, &[-1, WIDTH]), graph.node("Shape", &[x], &[]));
        let rows = graph.node("Reshape", &[x, &flat], &[]);
        let out = graph.node("Gemm", &[&rows, &weight, &bias], &[Attr::Int("transB", 1)]);
        graph.node("Reshape", &[&out, &shape], &[])
    }),
    ("heads", |graph, x| {
        let (apart, packed) = (ints(graph, &[0, 0, 4, WIDTH / 4]), ints(graph, &[0, 0, WIDTH]));
        let heads = graph.node("Reshape", &[x, &apart], &[]);
        let first = graph.node("Transpose", &[&heads], &[Attr::Ints("perm", vec![0, 2, 1, 3])]);
        let other = graph.node("Transpose", &[&first], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        // Each head of a token with the same head of the same token.
        let columns = graph.node("Transpose", &[&other], &[Attr::Ints("perm", vec![0, 3, 1, 2])]);
        let sums = reduced(graph, "ReduceSum", &columns, -1);
        let heads = graph.node("Mul", &[&heads, &sums], &[]);
        let heads = graph.node("Tanh", &[&heads], &[]);
        graph.node("Reshape", &[&heads, &packed], &[])
    }),
    // Products of the heads of each token with each other.
    ("heads with heads", |graph, x| {
        let (apart, packed) = (ints(graph, &[0, 0, 4, WIDTH / 4]), ints(graph, &[0, 0, WIDTH]));
        let heads = graph.node("Reshape", &[x, &apart], &[]);
        let other = graph.node("Transpose", &[&heads], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let scores = graph.node("MatMul", &[&heads, &other], &[]);
        let scores = graph.node("Softmax", &[&scores], &[]);
        let heads = graph.node("MatMul", &[&scores, &heads], &[]);
        graph.node("Reshape", &[&heads, &packed], &[])
    }),
    ("einsum", |graph, x| {
        let weight = graph.weight(&[WIDTH, WIDTH], 1.);
        graph.node("Einsum", &[x, &weight], &[Attr::Text("equation", "bti,ij->btj")])
    }),
    ("einsum of heads", |graph, x| {
        let (apart, packed) = (ints(graph, &[0, 0, 4, WIDTH / 4]), ints(graph, &[0, 0, WIDTH]));
        let heads = graph.node("Reshape", &[x, &apart], &[]);
        let sums = graph.node("Einsum", &[&heads, &heads], &[Attr::Text("equation", "bthd, btgd -> bthg")]);
        let sums = graph.node("Tanh", &[&sums], &[]);
        let heads = graph.node("Einsum", &[&sums, &heads], &[Attr::Text("equation", "bthg,btgd->bthd")]);
        graph.node("Reshape", &[&heads, &packed], &[])
    }),
    ("pointwise convolution", |graph, x| {
        let weight = graph.weight(&[WIDTH, WIDTH, 1], 1.);
        let first = turned(graph, x);
        let out = graph.node("Conv", &[&first, &weight], &[]);
        turned(graph, &out)
    }),
    // Each token is a sequence of its own elements.
    ("convolution of a token", |graph, x| {
        let weight = graph.weight(&[1, 1, 3], 1.);
        let (apart, shape) = (ints(graph, &[-1, 1, WIDTH]), graph.node("Shape", &[x], &[]));
        let rows = graph.node("Reshape", &[x, &apart], &[]);
        let out = graph.node("Conv", &[&rows, &weight], &[Attr::Ints("pads", vec![1, 1])]);
        graph.node("Reshape", &[&out, &shape], &[])
    }),
    ("halves", |graph, x| {
        let sizes = ints(graph, &[WIDTH / 2, WIDTH / 2]);
        let names = ["one", "other"].map(|name| graph.fresh(name));
        graph.node_to("Split", &[x, &sizes], &[&names[0], &names[1]], &[Attr::Int("axis", -1)]);
        graph.node("Concat", &[&names[1], &names[0]], &[Attr::Int("axis", 2)])
    }),
    ("columns", |graph, x| {
        let order: Vec<i64> = (0..WIDTH).rev().collect();
        let order = ints(graph, &order);
        graph.node("Gather", &[x, &order], &[Attr::Int("axis", 2)])
    }),
    ("last columns", |graph, x| {
        let [start, end, axes] = [vec![0, -4], vec![i64::MAX; 2], vec![1, 2]].map(|list| ints(graph, &list));
        let last = graph.node("Slice", &[x, &start, &end, &axes], &[]);
        let sum = reduced(graph, "ReduceMax", &last, -1);
        graph.node("Add", &[x, &sum], &[])
    }),
    ("sums along a token", |graph, x| {
        let axis = graph.ints(&[], &[2]);
        let sums = graph.node("CumSum", &[x, &axis], &[]);
        graph.node("Tanh", &[&sums], &[])
    }),
    ("places in a token", |graph, x| {
        let count = ints(graph, &[3]);
        let names = ["most", "places"].map(|name| graph.fresh(name));
        graph.node_to("TopK", &[x, &count], &[&names[0], &names[1]], &[]);
        let again = graph.node("GatherElements", &[x, &names[1]], &[Attr::Int("axis", 2)]);
        let sum = reduced(graph, "ReduceSum", &again, 2);
        graph.node("Add", &[x, &sum], &[])
    }),
    ("written columns", |graph, x| {
        let count = ints(graph, &[3]);
        let names = ["most", "places"].map(|name| graph.fresh(name));
        graph.node_to("TopK", &[x, &count], &[&names[0], &names[1]], &[]);
        let shape = graph.node("Shape", &[x], &[]);
        let zeros = graph.node("ConstantOfShape", &[&shape], &[]);
        graph.node("ScatterElements", &[&zeros, &names[1], &names[0]], &[Attr::Int("axis", -1)])
    }),
    ("positions", |graph, x| {
        let table = graph.weight(&[64, WIDTH], 1.);
        let rows = graph.node("Gather", &[&table, "position_ids"], &[]);
        graph.node("Add", &[x, &rows], &[])
    }),
    // A table that is cut to the length of the step first.
    ("first rows", |graph, x| {
        let (last, one) =
            (graph.node("ReduceMax", &["position_ids"], &[Attr::Int("keepdims", 0)]), graph.ints(&[], &[1]));
        let end = graph.node("Add", &[&last, &one], &[]);
        let end = unsqueezed(graph, &end, &[0]);
        let (table, zero) = (graph.weight(&[64, WIDTH], 1.), ints(graph, &[0]));
        let rows = graph.node("Slice", &[&table, &zero, &end, &zero], &[]);
        let rows = graph.node("Gather", &[&rows, "position_ids"], &[]);
        graph.node("Add", &[x, &rows], &[])
    }),
    ("frequencies", |graph, x| {
        let inverse = graph.weight(&[1, WIDTH / 2, 1], 1.);
        let (batch, ends) = (size_of(graph, "position_ids", 0), ints(graph, &[1, 1]));
        let batch = unsqueezed(graph, &batch, &[0]);
        let shape = graph.node("Concat", &[&batch, &ends], &[Attr::Int("axis", 0)]);
        let inverse = graph.node("Expand", &[&inverse, &shape], &[]);
        let positions = unsqueezed(graph, "position_ids", &[1]);
        let positions = graph.node("Cast", &[&positions], &[Attr::Int("to", F32)]);
        let angles = graph.node("MatMul", &[&inverse, &positions], &[]);
        let angles = turned(graph, &angles);
        let both = graph.node("Concat", &[&angles, &angles], &[Attr::Int("axis", -1)]);
        let cosines = graph.node("Cos", &[&both], &[]);
        graph.node("Mul", &[x, &cosines], &[])
    }),
    ("long positions", |graph, x| {
        let positions = unsqueezed(graph, "position_ids", &[2]);
        scaled_above(graph, x, &positions)
    }),
    ("ids", |graph, x| {
        let table = graph.weight(&[VOCABULARY, WIDTH], 1.);
        let rows = graph.node("Gather", &[&table, "input_ids"], &[]);
        graph.node("Mul", &[x, &rows], &[])
    }),
    ("fitting shape", |graph, x| {
        let (new, width) = (size_of(graph, "input_ids", 1), ints(graph, &[WIDTH]));
        let (new, one) = (unsqueezed(graph, &new, &[0]), ints(graph, &[1]));
        let shape = graph.node("Concat", &[&one, &new, &width], &[Attr::Int("axis", 0)]);
        let scale = graph.weight(&[WIDTH], 1.);
        let wide = graph.node("Expand", &[&scale, &shape], &[]);
        graph.node("Add", &[x, &wide], &[])
    }),
    // The size of an axis that each step has.
    ("fixed size", |graph, x| {
        let width = size_of(graph, x, 2);
        let width = graph.node("Cast", &[&width], &[Attr::Int("to", F32)]);
        graph.node("Div", &[x, &width], &[])
    }),
    ("whole slice", |graph, x| {
        let new = size_of(graph, x, 1);
        let (start, end, axis) = (ints(graph, &[0]), unsqueezed(graph, &new, &[0]), ints(graph, &[1]));
        let whole = graph.node("Slice", &[x, &start, &end, &axis], &[]);
        let again = slice(graph, &whole, [0, i64::MAX], 1);
        graph.node("Tanh", &[&again], &[])
    }),
    ("repeated", |graph, x| {
        let (axes, times) = (ints(graph, &[0]), ints(graph, &[3, 1, 1, 1]));
        let apart = graph.node("Unsqueeze", &[x, &axes], &[]);
        let thrice = graph.node("Tile", &[&apart, &times], &[]);
        let sum = graph.node("ReduceSum", &[&thrice, &axes], &[Attr::Int("keepdims", 0)]);
        graph.node("Tanh", &[&sum], &[])
    }),
    ("never", |graph, x| {
        let nan = graph.node("IsNaN", &[x], &[]);
        let zero = graph.floats(&[], &[0.]);
        graph.node("Where", &[&nan, &zero, x], &[])
    }),
    ("scales of bytes", |graph, x| {
        let (scale, zero) = (graph.floats(&[], &[0.01]), graph.bytes(&[], &[128]));
        let bytes = graph.node("QuantizeLinear", &[x, &scale, &zero], &[]);
        graph.node("DequantizeLinear", &[&bytes, &scale, &zero], &[])
    }),
];

#[test]
fn nodes_that_compute_rows_apart_are_kept() {
    for (name, change) in ROWS {
        kept(name, change);
    }
}

#[test]
fn one_scale_for_all_rows_of_a_call_is_kept() {
    let dynamic = decoder(|graph, x| {
        let names = ["bytes", "scale", "zero"].map(|name| graph.fresh(name));
        graph.node_to("DynamicQuantizeLinear", &[x], &[&names[0], &names[1], &names[2]], &[]);
        let (weight, other) = (graph.bytes(&[WIDTH, WIDTH], &[3; (WIDTH * WIDTH) as usize]), graph.bytes(&[], &[1]));
        let sums = graph.node("MatMulInteger", &[&names[0], &weight, &names[2], &other], &[]);
        let sums = graph.node("Cast", &[&sums], &[Attr::Int("to", F32)]);
        graph.node("Mul", &[&sums, &names[1]], &[])
    });
    for logit_rows in [false, true] {
        assert!(rewrite(&dynamic, logit_rows).is_ok(), "{:?}", rewrite(&dynamic, logit_rows).map(|_| ()));
    }
}

/// The experts that each token is routed to, and their weights: `[tokens, 2]`, and the rows `[tokens, width]`.
fn router(graph: &mut Graph, x: &str) -> [String; 3] {
    let (flat, count, weight) = (ints(graph, &[-1, WIDTH]), ints(graph, &[2]), graph.weight(&[WIDTH, 4], 1.));
    let rows = graph.node("Reshape", &[x, &flat], &[]);
    let scores = graph.node("MatMul", &[&rows, &weight], &[]);
    let scores = graph.node("Softmax", &[&scores], &[]);
    let names = ["weights", "experts"].map(|name| graph.fresh(name));
    graph.node_to("TopK", &[&scores, &count], &[&names[0], &names[1]], &[]);
    let [weights, experts] = names;
    let sum = reduced(graph, "ReduceSum", &weights, -1);
    [rows, graph.node("Div", &[&weights, &sum], &[]), experts]
}

/// Experts as torch's exporters write them: each computes the rows of the tokens that are routed to it.
fn experts(graph: &mut Graph, x: &str, slices: bool, wrong: bool) -> String {
    let [rows, weights, chosen] = router(graph, x);
    let (depth, values) = (graph.ints(&[], &[4]), ints(graph, &[0, 1]));
    let mask = graph.node("OneHot", &[&chosen, &depth, &values], &[]);
    let mask = graph.node("Transpose", &[&mask], &[Attr::Ints("perm", vec![2, 1, 0])]);
    let shape = graph.node("Shape", &[&rows], &[]);
    let mut sum = graph.node("ConstantOfShape", &[&shape], &[]);
    for expert in 0..4 {
        let expert = graph.ints(&[], &[expert]);
        let own = graph.node("Gather", &[&mask, &expert], &[]);
        let places = graph.node("NonZero", &[&own], &[]);
        let columns = graph.node("Transpose", &[&places], &[]);
        let (one, axes) = (ints(graph, &[1, 1]), ints(graph, &[1]));
        let names = ["which", "token"].map(|name| graph.fresh(name));
        graph.node_to("Split", &[&columns, &one], &[&names[0], &names[1]], &[Attr::Int("axis", 1)]);
        let [which, token] = names;
        let token = if wrong { which.clone() } else { token };
        let list = graph.node("Squeeze", &[&token, &axes], &[]);
        let some = graph.node("Gather", &[&rows, &list], &[]);
        let weight = graph.weight(&[WIDTH, WIDTH], 1.);
        let some = graph.node("MatMul", &[&some, &weight], &[]);
        let some = graph.node("Tanh", &[&some], &[]);
        let factors = if slices {
            // The same in one list for all tokens and places.
            let (all, each) = (ints(graph, &[-1]), ints(graph, &[1]));
            let shape = graph.node("Shape", &[&weights], &[]);
            let each = graph.node("Gather", &[&shape, &each], &[]);
            let first = graph.node("Mul", &[&list, &each], &[]);
            let which = graph.node("Squeeze", &[&which, &axes], &[]);
            let place = graph.node("Add", &[&first, &which], &[]);
            let flat = graph.node("Reshape", &[&weights, &all], &[]);
            graph.node("Gather", &[&flat, &place], &[])
        } else {
            let pairs = graph.node("Concat", &[&token, &which], &[Attr::Int("axis", 1)]);
            graph.node("GatherND", &[&weights, &pairs], &[])
        };
        let factors = graph.node("Unsqueeze", &[&factors, &axes], &[]);
        let some = graph.node("Mul", &[&some, &factors], &[]);
        let add = Attr::Text("reduction", "add");
        sum = if slices {
            graph.node("ScatterND", &[&sum, &token, &some], &[add])
        } else {
            let wide = graph.node("Shape", &[&some], &[]);
            let wide = graph.node("Expand", &[&token, &wide], &[]);
            graph.node("ScatterElements", &[&sum, &wide, &some], &[add, Attr::Int("axis", 0)])
        };
    }
    let shape = graph.node("Shape", &[x], &[]);
    graph.node("Reshape", &[&sum, &shape], &[])
}

#[test]
fn experts_that_compute_rows_of_routed_tokens_are_kept() {
    for slices in [false, true] {
        kept(&format!("experts.{slices}"), |graph, x| experts(graph, x, slices, false));
        // Places of experts as if they were those of tokens.
        let wrong = rewrite(&decoder(|graph, x| experts(graph, x, slices, true)), true);
        assert!(wrong.is_err());
    }
    let whole = |graph: &mut Graph, x: &str| {
        let [rows, _, _] = router(graph, x);
        let weight = graph.weight(&[WIDTH, 4], 1.);
        let scores = graph.node("MatMul", &[&rows, &weight], &[]);
        let (up, down) = (graph.weight(&[4, 16, WIDTH], 1.), graph.weight(&[4, WIDTH, 16], 1.));
        let inputs = [x, &scores, &up, "", &down];
        graph.node("com.microsoft.MoE", &inputs, &[Attr::Int("k", 2), Attr::Text("activation_type", "relu")])
    };
    kept("experts of onnxruntime", whole);
    // The rows of all experts of all tokens, of which each token takes its own.
    kept("all experts", |graph, x| {
        let [rows, weights, chosen] = router(graph, x);
        let tables = graph.weight(&[4, WIDTH, WIDTH], 1.);
        let all = unsqueezed(graph, &rows, &[0]);
        let all = graph.node("MatMul", &[&all, &tables], &[]);
        let own = graph.node("Transpose", &[&all], &[Attr::Ints("perm", vec![1, 0, 2])]);
        let shape = graph.node("Shape", &[&rows], &[]);
        let (depth, values) = (graph.ints(&[], &[4]), graph.floats(&[2], &[0., 1.]));
        let mask = graph.node("OneHot", &[&chosen, &depth, &values], &[]);
        let weights = unsqueezed(graph, &weights, &[1]);
        let shares = graph.node("MatMul", &[&weights, &mask], &[]);
        let sum = graph.node("MatMul", &[&shares, &own], &[]);
        let sum = graph.node("Reshape", &[&sum, &shape], &[]);
        let shape = graph.node("Shape", &[x], &[]);
        graph.node("Reshape", &[&sum, &shape], &[])
    });
}

#[test]
fn comparisons_that_have_one_result_are_kept() {
    kept("some tokens", |graph, x| {
        let (new, one) = (size_of(graph, x, 1), graph.ints(&[], &[1]));
        let is_some = graph.node("GreaterOrEqual", &[&new, &one], &[]);
        let zero = graph.floats(&[], &[0.]);
        graph.node("Where", &[&is_some, x, &zero], &[])
    });
    let less = decoder(|graph, x| {
        let (new, two) = (size_of(graph, x, 1), graph.ints(&[], &[2]));
        let is_some = graph.node("GreaterOrEqual", &[&new, &two], &[]);
        let zero = graph.floats(&[], &[0.]);
        graph.node("Where", &[&is_some, x, &zero], &[])
    });
    assert!(rewrite(&less, false).is_err());
    // Sizes are compared to make other sizes.
    kept("sizes", |graph, x| {
        let shape = graph.node("Shape", &[x], &[]);
        let (ones, none) = (ints(graph, &[1, 1, 1]), graph.ints(&[], &[-1]));
        let is_free = graph.node("Equal", &[&shape, &none], &[]);
        let shape = graph.node("Where", &[&is_free, &ones, &shape], &[]);
        let scale = graph.weight(&[WIDTH], 1.);
        let wide = graph.node("Expand", &[&scale, &shape], &[]);
        graph.node("Mul", &[x, &wide], &[])
    });
}

fn cases() -> u32 {
    std::env::var("KVTIDE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn random_rows_are_kept_until_a_node_mixes_tokens(
        nodes in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        place in any::<prop::sample::Index>(),
        mix in any::<prop::sample::Index>(),
        logit_rows in any::<bool>(),
    ) {
        let place = place.index(nodes.len() + 1);
        let (operator, mixed) = MIXES[mix.index(MIXES.len())];
        let with = |is_mixed: bool| decoder(|graph, x| {
            let mut x = x.to_owned();
            for at in 0..=nodes.len() {
                if is_mixed && at == place {
                    x = mixed(graph, &x);
                }
                if let Some(node) = nodes.get(at) {
                    x = ROWS[node.index(ROWS.len())].1(graph, &x);
                }
            }
            x
        });
        let kept = rewrite(&with(false), logit_rows);
        prop_assert!(kept.is_ok(), "{:?}", kept.map(|_| ()));
        let refused = rewrite(&with(true), logit_rows).map(|_| ());
        let named = matches!(&refused, Err(Error::Unrecognised { operator: found, .. }) if found == operator);
        prop_assert!(named, "{operator}: {refused:?}");
    }
}
