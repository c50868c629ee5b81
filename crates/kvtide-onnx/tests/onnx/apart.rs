//! A rewritten graph computes each token apart: nodes that mix tokens, or compute with the number or the places of the
//! tokens of a step, are refused by name.

use kvtide_onnx::{Error, RefusalKind};

use crate::support::apart::{Change, MIXES, decoder, ints, reduced, rewrite, scaled_above, size_of, slice, unsqueezed};
use crate::support::build::{Attr, F32, Graph, I64, Size, WIDTH};

/// Checks that nodes are refused at an operator, with and without chosen rows of the head.
fn refused(operator: &str, text: &str, change: impl Fn(&mut Graph, &str) -> String) {
    refused_by(&[false, true], operator, text, change);
}

fn refused_by(options: &[bool], operator: &str, text: &str, change: impl Fn(&mut Graph, &str) -> String) {
    let graph = decoder(change);
    for &logit_rows in options {
        match rewrite(&graph, logit_rows) {
            Err(error @ Error::Unrecognised { .. }) => {
                assert!(error.to_string().len() < 300, "{error}");
                let Error::Unrecognised { node, operator: found, reason, kind } = error else { unreachable!() };
                assert_eq!(found, operator, "{node}: {reason}");
                assert!(reason.contains(text), "{node} ({operator}): {reason}");
                assert!([RefusalKind::Form, RefusalKind::Output].contains(&kind), "{node} ({operator}): {kind:?}");
            }
            other => panic!("{operator}, {text}, {logit_rows}: {:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn nodes_that_mix_tokens_are_refused() {
    for (operator, change) in MIXES {
        refused(operator, "", change);
    }
}

#[test]
fn a_chosen_place_among_the_positions_is_refused() {
    let by_place = "reads some of them by their place";
    for place in [-1, 0, 2] {
        refused("Gather", by_place, |graph, x| {
            let place = graph.ints(&[], &[place]);
            let position = graph.node("Gather", &["position_ids", &place], &[Attr::Int("axis", 1)]);
            let position = unsqueezed(graph, &position, &[1, 2]);
            scaled_above(graph, x, &position)
        });
        refused("Slice", by_place, |graph, x| {
            let end = if place < 0 { i64::MAX } else { place + 1 };
            let position = slice(graph, "position_ids", [place, end], 1);
            let position = unsqueezed(graph, &position, &[2]);
            scaled_above(graph, x, &position)
        });
    }
    // The place of the last token as a number of tokens.
    refused("Gather", "number of tokens", |graph, x| {
        let (new, one) = (size_of(graph, "input_ids", 1), graph.ints(&[], &[1]));
        let place = graph.node("Sub", &[&new, &one], &[]);
        let position = graph.node("Gather", &["position_ids", &place], &[Attr::Int("axis", 1)]);
        let position = unsqueezed(graph, &position, &[1, 2]);
        scaled_above(graph, x, &position)
    });
    // All of a step with at most 512 tokens. If rows are chosen for the head, the slice is dropped.
    refused_by(&[false], "Slice", by_place, |graph, x| slice(graph, x, [0, 512], 1));
    refused("Split", by_place, |graph, x| {
        let sizes = ints(graph, &[1, 4]);
        graph.node_to("Split", &[x, &sizes], &["first", "others"], &[Attr::Int("axis", 1)]);
        graph.node("Add", &[x, "first"], &[])
    });
}

#[test]
fn a_number_of_tokens_is_refused_unless_it_is_a_size() {
    let count = "the number of tokens in a step";
    refused("Greater", count, |graph, x| {
        let new = size_of(graph, "input_ids", 1);
        scaled_above(graph, x, &new)
    });
    refused("Greater", count, |graph, x| {
        let new = size_of(graph, x, 1);
        scaled_above(graph, x, &new)
    });
    refused("Greater", count, |graph, x| {
        let all = graph.node("Size", &["input_ids"], &[]);
        scaled_above(graph, x, &all)
    });
    refused("Mul", count, |graph, x| {
        let new = size_of(graph, x, 1);
        let new = graph.node("Cast", &[&new], &[Attr::Int("to", F32)]);
        graph.node("Mul", &[x, &new], &[])
    });
    // A row of a table, a sum of ones, the largest place.
    refused("Add", count, |graph, x| {
        let new = size_of(graph, x, 1);
        let table = graph.weight(&[64, WIDTH], 1.);
        let row = graph.node("Gather", &[&table, &new], &[]);
        graph.node("Add", &[x, &row], &[])
    });
    refused("Mul", count, |graph, x| {
        let shape = graph.node("Shape", &["input_ids"], &[]);
        let ones = graph.node("ConstantOfShape", &[&shape], &[]);
        let cosines = graph.node("Cos", &[&ones], &[]);
        let sum = reduced(graph, "ReduceSum", &cosines, 1);
        let sum = unsqueezed(graph, &sum, &[2]);
        graph.node("Mul", &[x, &sum], &[])
    });
    refused("Mul", count, |graph, x| {
        let (zero, one, new) = (graph.ints(&[], &[0]), graph.ints(&[], &[1]), size_of(graph, x, 1));
        let places = graph.node("Range", &[&zero, &new, &one], &[]);
        let largest = graph.node("ReduceMax", &[&places], &[Attr::Int("keepdims", 0)]);
        let largest = graph.node("Cast", &[&largest], &[Attr::Int("to", F32)]);
        graph.node("Mul", &[x, &largest], &[])
    });
    // The last row of a table that is cut to the number of tokens.
    refused("Mul", count, |graph, x| {
        let new = size_of(graph, x, 1);
        let end = unsqueezed(graph, &new, &[0]);
        let (table, start, last) = (graph.weight(&[64, WIDTH], 1.), ints(graph, &[0]), graph.ints(&[], &[-1]));
        let rows = graph.node("Slice", &[&table, &start, &end, &start], &[]);
        let row = graph.node("Gather", &[&rows, &last], &[]);
        graph.node("Mul", &[x, &row], &[])
    });
}

#[test]
fn a_size_that_hides_another_number_is_refused() {
    // A size that is 1 in short steps and 2 in long ones, and one that is a token.
    refused("Greater", "the number of tokens in a step", |graph, x| {
        let (limit, new) = (graph.ints(&[], &[100]), size_of(graph, x, 1));
        let is_long = graph.node("Greater", &[&new, &limit], &[]);
        let more = graph.node("Cast", &[&is_long], &[Attr::Int("to", I64)]);
        let one = ints(graph, &[1]);
        let shape = graph.node("Add", &[&more, &one], &[]);
        let zeros = graph.node("ConstantOfShape", &[&shape], &[]);
        let ones = graph.node("Cos", &[&zeros], &[]);
        let sum = graph.node("ReduceSum", &[&ones], &[Attr::Int("keepdims", 0)]);
        graph.node("Mul", &[x, &sum], &[])
    });
    refused_by(&[false], "Gather", "by their place", |graph, x| {
        let first = ints(graph, &[0]);
        let first = graph.node("Gather", &["input_ids", &first], &[Attr::Int("axis", 1)]);
        let axes = ints(graph, &[0]);
        let shape = graph.node("Squeeze", &[&first, &axes], &[]);
        let zeros = graph.node("ConstantOfShape", &[&shape], &[]);
        let ones = graph.node("Cos", &[&zeros], &[]);
        let sum = graph.node("ReduceSum", &[&ones], &[]);
        graph.node("Mul", &[x, &sum], &[])
    });
}

#[test]
fn the_longest_sequence_and_the_places_of_tokens_are_refused() {
    refused("Mul", "the longest sequence", |graph, x| {
        let last = graph.node("ReduceMax", &["position_ids"], &[Attr::Int("keepdims", 0)]);
        let table = graph.weight(&[64, WIDTH], 1.);
        let row = graph.node("Gather", &[&table, &last], &[]);
        graph.node("Mul", &[x, &row], &[])
    });
    let places = "counts the tokens";
    refused("Add", places, |graph, x| {
        let (zero, one, new) = (graph.ints(&[], &[0]), graph.ints(&[], &[1]), size_of(graph, x, 1));
        let numbers = graph.node("Range", &[&zero, &new, &one], &[]);
        let table = graph.weight(&[64, WIDTH], 1.);
        let rows = graph.node("Gather", &[&table, &numbers], &[]);
        graph.node("Add", &[x, &rows], &[])
    });
    // One offset for all tokens: the operator counts from it.
    refused("com.microsoft.RotaryEmbedding", places, |graph, x| {
        let tables = [0, 1].map(|_| graph.weight(&[64, WIDTH / 4], 1.));
        let offset = ints(graph, &[3]);
        let attributes = [Attr::Int("num_heads", 2)];
        graph.node("com.microsoft.RotaryEmbedding", &[x, &offset, &tables[0], &tables[1]], &attributes)
    });
}

#[test]
fn operators_that_are_not_known_are_refused_if_they_read_tokens() {
    // The dimensions of other outputs are not known either: no rows could be chosen for the head.
    let unknown = "its operator is not known";
    let refused = |operator: &str, change: Change| refused_by(&[false], operator, unknown, change);
    refused("Resize", |graph, x| {
        let scales = graph.floats(&[3], &[1., 1., 1.]);
        graph.node("Resize", &[x, "", &scales], &[])
    });
    refused("LSTM", |graph, x| {
        let first = graph.node("Transpose", &[x], &[Attr::Ints("perm", vec![1, 0, 2])]);
        let [w, r] = [0, 1].map(|_| graph.weight(&[1, 4 * WIDTH, WIDTH], 1.));
        graph.node_to("LSTM", &[&first, &w, &r], &["all"], &[Attr::Int("hidden_size", WIDTH)]);
        let axes = ints(graph, &[1]);
        let all = graph.node("Squeeze", &["all", &axes], &[]);
        graph.node("Transpose", &[&all], &[Attr::Ints("perm", vec![1, 0, 2])])
    });
    refused("other.domain.Tanh", |graph, x| graph.node("other.domain.Tanh", &[x], &[]));
    refused("Loop", |graph, x| {
        let mut body = Graph::default();
        body.input("count", I64, &[]);
        body.input("goes_on", 9, &[]);
        body.node_to("Identity", &["goes_on"], &["still"], &[]);
        body.node_to("Tanh", &[x], &["inside"], &[]);
        body.output("still", 9, &[]);
        body.output("inside", F32, &[Size::Named("batch"), Size::Named("new"), Size::Is(WIDTH)]);
        let (one, yes) = (graph.ints(&[], &[1]), graph.truths(&[], &[1]));
        let body = Attr::Graph("body", body.fields.text(2, "body"));
        let all = graph.node("Loop", &[&one, &yes], &[body]);
        let axes = ints(graph, &[0]);
        graph.node("Squeeze", &[&all, &axes], &[])
    });
}

#[test]
fn branches_are_followed() {
    let branch = |operator: &str, x: &str, name: &str| {
        let mut inner = Graph::default();
        match operator {
            "CumSum" => {
                (0..if name == "yes" { 3000 } else { 4000 }).for_each(|_| drop(inner.fresh("unused")));
                let one = inner.ints(&[], &[1]);
                inner.node_to("CumSum", &[x, &one], &[name], &[]);
            }
            _ => inner.node_to(operator, &[x], &[name], &[]),
        }
        inner.output(name, F32, &[Size::Named("batch"), Size::Named("new"), Size::Is(WIDTH)]);
        inner.fields.text(2, name)
    };
    let chosen = |graph: &mut Graph, x: &str, condition: &str, operators: [&str; 2]| {
        let branches = [
            Attr::Graph("then_branch", branch(operators[0], x, "yes")),
            Attr::Graph("else_branch", branch(operators[1], x, "no")),
        ];
        graph.node("If", &[condition], &branches)
    };
    for operators in [["CumSum", "Tanh"], ["Tanh", "CumSum"]] {
        refused("CumSum", "mixes tokens", |graph, x| {
            // The sign of a weight with many elements is not known before the graph runs.
            let weight = graph.weight(&[300], 1.);
            let sum = graph.node("ReduceSum", &[&weight], &[Attr::Int("keepdims", 0)]);
            let zero = graph.floats(&[], &[0.]);
            let condition = graph.node("Greater", &[&sum, &zero], &[]);
            chosen(graph, x, &condition, operators)
        });
    }
    refused("ReduceMax", "mixes tokens", |graph, x| {
        let most = graph.node("ReduceMax", &[x], &[Attr::Int("keepdims", 0)]);
        let zero = graph.floats(&[], &[0.]);
        let condition = graph.node("Greater", &[&most, &zero], &[]);
        chosen(graph, x, &condition, ["Tanh", "Sin"])
    });
    // A branch that no step takes.
    let size_known = decoder(|graph, x| {
        let (batch, one) = (size_of(graph, x, 0), graph.ints(&[], &[1]));
        let condition = graph.node("Equal", &[&batch, &one], &[]);
        chosen(graph, x, &condition, ["Tanh", "CumSum"])
    });
    assert!(rewrite(&size_known, true).is_ok());
}

#[test]
fn logits_have_the_tokens_in_their_order() {
    let turned: Change = |graph, x| graph.node("Transpose", &[x], &[Attr::Ints("perm", vec![0, 2, 1])]);
    let dims = [Size::Named("batch"), Size::Is(WIDTH), Size::Named("new")];
    let attention = |decoder: &mut crate::support::build::Decoder, layer: usize, operands: [&str; 3]| {
        decoder.grouped(layer, operands, &[])
    };
    let graph = crate::support::build::Decoder::new(2, true).layers_to(attention, &dims, |graph, hidden, _| {
        let other = turned(graph, hidden);
        graph.node_to("Tanh", &[&other], &["logits"], &[]);
    });
    let error = rewrite(&graph, false).unwrap_err().to_string();
    assert!(error.contains("logits") && error.contains("axis of their own"), "{error}");
}
