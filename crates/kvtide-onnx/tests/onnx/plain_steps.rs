//! Operations between the two products of a plain attention: a step that kvtide would compute otherwise is refused.

use kvtide_onnx::{Error, Layer, Model, Options, Rewritten};

use crate::support::build::{Attr, Decoder, F32, Graph, HEADS};
use crate::support::runtime::same_as_before;

/// A decoder whose attention computes its probabilities from scores by these nodes; they get the name of the past.
fn plain(probabilities: impl Fn(&mut Decoder, &str, &str) -> String) -> Graph {
    Decoder::new(HEADS, false).layers(|decoder, layer, [query, key, value]| {
        let query = decoder.heads_first(query, HEADS);
        let [pasts, presents] = decoder.joined(layer, [key, value], HEADS);
        let turn = Attr::Ints("perm", vec![0, 1, 3, 2]);
        let keys = decoder.graph.node("Transpose", &[&presents[0]], &[turn]);
        let scores = decoder.graph.node("MatMul", &[&query, &keys], &[]);
        let scores = times(&mut decoder.graph, &scores, 0.6);
        let weights = probabilities(decoder, &pasts[0], &scores);
        let weighted = decoder.graph.node("MatMul", &[&weights, &presents[1]], &[]);
        decoder.packed(&weighted)
    })
}

fn rewrite(bytes: &[u8]) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options::default())
}

fn refused(graph: &Graph, opset: i64, text: &str) {
    match rewrite(&graph.model(opset)) {
        Err(Error::Unrecognised { reason, .. }) => assert!(reason.contains(text), "{reason}, expected {text}"),
        other => panic!("{text}: {other:?}"),
    }
}

fn accepted(name: &str, graph: &Graph, opset: i64) -> Layer {
    let bytes = graph.model(opset);
    let rewritten = rewrite(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    same_as_before(&format!("steps.{name}"), &bytes, &rewritten);
    rewritten.layers()[0].clone()
}

fn times(graph: &mut Graph, scores: &str, factor: f32) -> String {
    let factor = graph.floats(&[], &[factor]);
    graph.node("Mul", &[scores, &factor], &[])
}

fn masked(decoder: &mut Decoder, past: &str, scores: &str) -> String {
    let seen = decoder.seen(past, None);
    hidden(&mut decoder.graph, &seen, scores)
}

/// Scores that are hidden where a tensor is not true.
fn hidden(graph: &mut Graph, seen: &str, scores: &str) -> String {
    let low = graph.floats(&[], &[f32::NEG_INFINITY]);
    graph.node("Where", &[seen, scores, &low], &[])
}

fn softmax(graph: &mut Graph, scores: &str) -> String {
    graph.node("Softmax", &[scores], &[Attr::Int("axis", -1)])
}

/// Scores with a column of sinks behind them, or before them.
fn with_sinks(graph: &mut Graph, scores: &str) -> String {
    let sinks = graph.floats(&[1, HEADS, 1, 1], &[0.5, -1., 2., 0.]);
    let shape = graph.node("Shape", &[scores], &[]);
    let (front, end, one) = (graph.ints(&[1], &[3]), graph.ints(&[1], &[0]), graph.ints(&[1], &[1]));
    let rows = graph.node("Slice", &[&shape, &end, &front], &[]);
    let shape = graph.node("Concat", &[&rows, &one], &[Attr::Int("axis", 0)]);
    let sinks = graph.node("Expand", &[&sinks, &shape], &[]);
    graph.node("Concat", &[scores, &sinks], &[Attr::Int("axis", -1)])
}

/// Some columns of probabilities.
fn columns(graph: &mut Graph, all: &str, [first, end]: [i64; 2]) -> String {
    let [first, end, axis] = [first, end, 3].map(|number| graph.ints(&[1], &[number]));
    graph.node("Slice", &[all, &first, &end, &axis], &[])
}

/// Scores minus their maximum along an axis.
fn shifted(graph: &mut Graph, scores: &str, axis: i64) -> String {
    let axes = graph.ints(&[1], &[axis]);
    let most = graph.node("ReduceMax", &[scores, &axes], &[Attr::Int("keepdims", 1)]);
    graph.node("Sub", &[scores, &most], &[])
}

#[test]
fn a_softmax_without_an_axis_is_flat_before_opset_13() {
    let graph = plain(|decoder, past, scores| {
        let scores = masked(decoder, past, scores);
        decoder.graph.node("Softmax", &[&scores], &[])
    });
    refused(&graph, 12, "over the last axis");
    accepted("softmax.13", &graph, 13);
}

#[test]
fn a_maximum_is_subtracted_from_each_row_before_the_softmax_alone() {
    let by = |axis| {
        plain(move |decoder, past, scores| {
            let scores = masked(decoder, past, scores);
            let scores = shifted(&mut decoder.graph, &scores, axis);
            softmax(&mut decoder.graph, &scores)
        })
    };
    accepted("shift.last", &by(-1), 18);
    accepted("shift.3", &by(3), 18);
    refused(&by(1), 18, "not supported between the keys and the softmax");
    refused(&by(2), 18, "not supported between the keys and the softmax");
    let all = plain(|decoder, past, scores| {
        let scores = masked(decoder, past, scores);
        let most = decoder.graph.node("ReduceMax", &[&scores], &[]);
        let scores = decoder.graph.node("Sub", &[&scores, &most], &[]);
        softmax(&mut decoder.graph, &scores)
    });
    refused_step(&all);
    let capped = plain(|decoder, past, scores| {
        let scores = shifted(&mut decoder.graph, scores, -1);
        let scores = decoder.graph.node("Tanh", &[&scores], &[]);
        let scores = masked(decoder, past, &scores);
        softmax(&mut decoder.graph, &scores)
    });
    refused_step(&capped);
    let beside_sinks = plain(|decoder, past, scores| {
        let scores = masked(decoder, past, scores);
        let scores = shifted(&mut decoder.graph, &scores, -1);
        let scores = with_sinks(&mut decoder.graph, &scores);
        let all = softmax(&mut decoder.graph, &scores);
        columns(&mut decoder.graph, &all, [0, -1])
    });
    refused_step(&beside_sinks);
}

fn refused_step(graph: &Graph) {
    refused(graph, 18, "not supported between the keys and the softmax");
}

#[test]
fn sinks_are_appended_to_scores_that_stay_as_they_are() {
    let with = |change: fn(&mut Graph, &str) -> String, kept: [i64; 2]| {
        plain(move |decoder, past, scores| {
            let scores = masked(decoder, past, scores);
            let scores = with_sinks(&mut decoder.graph, &scores);
            let scores = change(&mut decoder.graph, &scores);
            let all = softmax(&mut decoder.graph, &scores);
            columns(&mut decoder.graph, &all, kept)
        })
    };
    let same = |_: &mut Graph, scores: &str| scores.to_owned();
    let layer = accepted("sinks", &with(same, [0, -1]), 18);
    assert_eq!(layer.sinks, Some(vec![0.5, -1., 2., 0.]));
    refused(&with(|graph, scores| times(graph, scores, 0.5), [0, -1]), 18, "together with their sinks");
    let capped = |graph: &mut Graph, scores: &str| graph.node("Tanh", &[scores], &[]);
    refused(&with(capped, [0, -1]), 18, "together with their sinks");
    refused(&with(same, [1, i64::MAX]), 18, "no recognised attention reads");
}

#[test]
fn probabilities_that_are_no_numbers_are_replaced_alone() {
    let by = |swapped: bool| {
        plain(move |decoder, past, scores| {
            let scores = masked(decoder, past, scores);
            let all = softmax(&mut decoder.graph, &scores);
            let graph = &mut decoder.graph;
            let (zero, is_none) = (graph.floats(&[], &[0.]), graph.node("IsNaN", &[&all], &[]));
            let shape = graph.node("Shape", &[&all], &[]);
            let zeros = graph.node("Expand", &[&zero, &shape], &[]);
            let [one, other] = if swapped { [&all, &zeros] } else { [&zeros, &all] };
            graph.node("Where", &[&is_none, one, other], &[])
        })
    };
    accepted("nan", &by(false), 18);
    refused(&by(true), 18, "no recognised attention reads");
}

#[test]
fn a_factor_that_changes_with_the_length_is_refused() {
    let scaled = |longest: i64| {
        plain(move |decoder, past, scores| {
            let before = decoder.size_of(past, 2);
            let graph = &mut decoder.graph;
            let longest = graph.ints(&[], &[longest]);
            let [one, other] = [0.5, 0.25].map(|factor| graph.floats(&[], &[factor]));
            let is_long = graph.node("Greater", &[&before, &longest], &[]);
            let factor = graph.node("Where", &[&is_long, &other, &one], &[]);
            let scores = graph.node("Mul", &[scores, &factor], &[]);
            let scores = masked(decoder, past, &scores);
            softmax(&mut decoder.graph, &scores)
        })
    };
    refused(&scaled(8192), 18, "not supported between the keys and the softmax");
    assert!((accepted("factor", &scaled(1 << 20), 18).scale - 0.3).abs() < 1e-6);
}

/// Masks of operators whose numbers are easily taken for others.
#[test]
fn masks_by_signs_remainders_and_reductions_without_axes_are_evaluated_as_onnx_defines_them() {
    let by = |seen: fn(&mut Graph, &str) -> String| {
        plain(move |decoder, past, scores| {
            let [queries, keys] = decoder.positions(past);
            let graph = &mut decoder.graph;
            let apart = graph.node("Sub", &[&queries, &keys], &[]);
            let seen = seen(graph, &apart);
            let scores = hidden(graph, &seen, scores);
            softmax(graph, &scores)
        })
    };
    let sign = by(|graph, apart| {
        let (sign, zero) = (graph.node("Sign", &[apart], &[]), graph.ints(&[], &[0]));
        graph.node("Greater", &[&sign, &zero], &[])
    });
    refused(&sign, 18, "hides the key of the token itself");
    let remainder = by(|graph, apart| {
        let (many, zero) = (graph.floats(&[], &[1e6]), graph.floats(&[], &[0.]));
        let apart = graph.node("Cast", &[apart], &[Attr::Int("to", F32)]);
        let rest = graph.node("Mod", &[&apart, &many], &[Attr::Int("fmod", 1)]);
        graph.node("GreaterOrEqual", &[&rest, &zero], &[])
    });
    assert_eq!(accepted("remainder", &remainder, 18).window, None);
    let reduced = by(|graph, apart| {
        let zero = graph.ints(&[], &[0]);
        let same = graph.node("ReduceSum", &[apart], &[Attr::Int("noop_with_empty_axes", 1)]);
        graph.node("GreaterOrEqual", &[&same, &zero], &[])
    });
    assert_eq!(accepted("reduced", &reduced, 18).window, None);
}
