//! Heads of all forms, in decoders that are built here: any row of logits can be chosen, also from a graph that returns
//! the last one only. With onnxruntime-node, all rows are those of the plain head.

use kvtide_onnx::{Error, Model, Options, Rewritten};

use crate::support;
use crate::support::build::{Attr, Decoder, F32, Graph, I64, Size, VOCABULARY, WIDTH};
use crate::support::runtime::same_as;

const LAST: i64 = 1;
const ALL: &str = "new";

/// A decoder of GroupQueryAttention with a head.
fn decoder(rows: Size, head: impl Fn(&mut Graph, &str, &str)) -> Graph {
    let of = [Size::Named("batch"), rows, Size::Is(VOCABULARY)];
    let dims = if matches!(rows, Size::Is(0)) { vec![of[0], of[2]] } else { of.to_vec() };
    let attention = |decoder: &mut Decoder, layer: usize, operands: [&str; 3]| decoder.grouped(layer, operands, &[]);
    Decoder::new(2, false).layers_to(attention, &dims, head)
}

fn rewrite(bytes: &[u8]) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, &rows())
}

fn rows() -> Options {
    Options { logit_rows: true, ..Options::default() }
}

/// Rewrites a head, and compares all of its rows with those of a plain one.
fn accepted(name: &str, graph: &Graph, plain: &Graph) {
    let bytes = graph.model(18);
    let rewritten = rewrite(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    let inputs: Vec<&str> = rewritten.inspection().inputs.iter().map(|port| port.name.as_str()).collect();
    assert!(inputs.contains(&"logit_rows") && !inputs.iter().any(|name| name.contains("keep")), "{name}: {inputs:?}");
    same_as(&format!("head.{name}"), &plain.model(18), &bytes, &rewritten, &rows());
}

fn product(graph: &mut Graph, hidden: &str, weight: &str) {
    graph.node_to("MatMul", &[hidden, weight], &["logits"], &[]);
}

/// A cap on logits and their scale, as Gemma 2 and Granite have them.
fn cap_of(graph: &mut Graph, logits: &str) -> String {
    let (cap, scale) = (graph.floats(&[], &[3.]), graph.floats(&[1], &[0.5]));
    let divided = graph.node("Div", &[logits, &cap], &[]);
    let turned = graph.node("Tanh", &[&divided], &[]);
    let scaled = graph.node("Mul", &[&turned, &cap], &[]);
    graph.node("Mul", &[&scale, &scaled], &[])
}

fn capped(graph: &mut Graph, logits: &str) {
    let scaled = cap_of(graph, logits);
    graph.node_to("Identity", &[&scaled], &["logits"], &[]);
}

/// The last row, or as many as an input says.
fn kept(graph: &mut Graph, hidden: &str, input: Option<&str>) -> String {
    let (end, axis) = (graph.ints(&[1], &[i64::MAX]), graph.ints(&[1], &[1]));
    let first = match input {
        None => graph.ints(&[1], &[-1]),
        Some(name) => {
            graph.input(name, I64, &[]);
            let negative = graph.node("Neg", &[name], &[]);
            let shape = graph.ints(&[1], &[1]);
            graph.node("Reshape", &[&negative, &shape], &[])
        }
    };
    graph.node("Slice", &[hidden, &first, &end, &axis], &[])
}

#[test]
fn rows_are_chosen_before_each_form_of_head() {
    let plain = decoder(Size::Named(ALL), product);
    accepted("plain", &plain, &plain);
    let with_cap = |graph: &mut Graph, hidden: &str, weight: &str| {
        let logits = graph.node("MatMul", &[hidden, weight], &[]);
        capped(graph, &logits);
    };
    let cap = decoder(Size::Named(ALL), with_cap);
    accepted("cap", &cap, &cap);
    accepted(
        "gather",
        &decoder(Size::Is(LAST), |graph, hidden, weight| {
            let (last, axis) = (graph.ints(&[], &[-1]), graph.ints(&[1], &[1]));
            let row = graph.node("Gather", &[hidden, &last], &[Attr::Int("axis", 1)]);
            let row = graph.node("Unsqueeze", &[&row, &axis], &[]);
            product(graph, &row, weight);
        }),
        &plain,
    );
    accepted(
        "gather by the number of tokens",
        &decoder(Size::Is(LAST), |graph, hidden, weight| {
            let (one, front) = (graph.ints(&[], &[1]), graph.ints(&[1], &[0]));
            let shape = graph.node("Shape", &["input_ids"], &[]);
            let count = graph.node("Gather", &[&shape, &one], &[]);
            let last = graph.node("Sub", &[&count, &one], &[]);
            let last = graph.node("Unsqueeze", &[&last, &front], &[]);
            let row = graph.node("Gather", &[hidden, &last], &[Attr::Int("axis", 1)]);
            product(graph, &row, weight);
        }),
        &plain,
    );
    accepted(
        "slice, cap",
        &decoder(Size::Is(LAST), |graph, hidden, weight| {
            let row = kept(graph, hidden, None);
            with_cap(graph, &row, weight);
        }),
        &cap,
    );
    accepted(
        "slice of logits",
        &decoder(Size::Is(LAST), |graph, hidden, weight| {
            let logits = graph.node("MatMul", &[hidden, weight], &[]);
            let row = kept(graph, &logits, None);
            graph.node_to("Identity", &[&row], &["logits"], &[]);
        }),
        &plain,
    );
}

#[test]
fn rows_are_chosen_instead_of_those_of_an_input_and_before_norms_and_flat_products() {
    let plain = decoder(Size::Named(ALL), product);
    for input in ["num_logits_to_keep", "logits_to_keep"] {
        let graph = decoder(Size::Named("kept"), |graph, hidden, weight| {
            let row = kept(graph, hidden, Some(input));
            product(graph, &row, weight);
        });
        accepted(input, &graph, &plain);
    }
    accepted(
        "flat",
        &decoder(Size::Is(0), |graph, hidden, weight| {
            let last = graph.ints(&[], &[-1]);
            let row = graph.node("Gather", &[hidden, &last], &[Attr::Int("axis", 1)]);
            let bias = graph.floats(&[VOCABULARY], &[0.; VOCABULARY as usize]);
            graph.node_to("Gemm", &[&row, weight, &bias], &["logits"], &[]);
        }),
        &plain,
    );
    accepted(
        "gemm",
        &decoder(Size::Named(ALL), |graph, hidden, weight| {
            let (flat, whole) = (graph.ints(&[2], &[-1, WIDTH]), graph.ints(&[3], &[1, -1, VOCABULARY]));
            let rows = graph.node("Reshape", &[hidden, &flat], &[]);
            let logits = graph.node("Gemm", &[&rows, weight], &[]);
            graph.node_to("Reshape", &[&logits, &whole], &["logits"], &[]);
        }),
        &plain,
    );
    let normed = decoder(Size::Named(ALL), |graph, hidden, weight| {
        let scale = graph.floats(&[WIDTH], &[1.5; WIDTH as usize]);
        let rows = graph.node("LayerNormalization", &[hidden, &scale], &[Attr::Int("axis", -1)]);
        product(graph, &rows, weight);
    });
    accepted(
        "norm of the last row",
        &decoder(Size::Is(LAST), |graph, hidden, weight| {
            let row = kept(graph, hidden, None);
            let scale = graph.floats(&[WIDTH], &[1.5; WIDTH as usize]);
            let rows = graph.node("LayerNormalization", &[&row, &scale], &[Attr::Int("axis", -1)]);
            product(graph, &rows, weight);
        }),
        &normed,
    );
}

/// Their logits are checked with onnxruntime, by the tests of the package.
#[test]
fn the_product_of_the_head_reads_its_weight_in_the_order_that_it_has() {
    let reads_transposed = |head: &dyn Fn(&mut Graph, &str, &str)| {
        support::reads_transposed(&decoder(Size::Named(ALL), head).model(18), &rows())
    };
    let turned = |graph: &mut Graph| graph.weight(&[VOCABULARY, WIDTH], 1.);
    let gemm = |graph: &mut Graph, hidden: &str, weight: &str, attributes: &[Attr]| {
        let (flat, whole) = (graph.ints(&[2], &[-1, WIDTH]), graph.ints(&[3], &[1, -1, VOCABULARY]));
        let rows = graph.node("Reshape", &[hidden, &flat], &[]);
        let logits = graph.node("Gemm", &[&rows, weight], attributes);
        graph.node_to("Reshape", &[&logits, &whole], &["logits"], &[]);
    };
    assert_eq!(reads_transposed(&product), Some(false));
    assert_eq!(reads_transposed(&|graph, hidden, weight| gemm(graph, hidden, weight, &[])), Some(false));
    let transposed = |graph: &mut Graph, hidden: &str, _: &str| {
        let weight = turned(graph);
        let weight = graph.node("Transpose", &[&weight], &[]);
        product(graph, hidden, &weight);
    };
    assert_eq!(reads_transposed(&transposed), Some(true));
    let by_product = |graph: &mut Graph, hidden: &str, _: &str| {
        let weight = turned(graph);
        gemm(graph, hidden, &weight, &[Attr::Int("transB", 1)]);
    };
    assert_eq!(reads_transposed(&by_product), Some(true));
    let twice = |graph: &mut Graph, hidden: &str, weight: &str| {
        let weight = graph.node("Transpose", &[weight], &[]);
        gemm(graph, hidden, &weight, &[Attr::Int("transB", 1)]);
    };
    assert_eq!(reads_transposed(&twice), Some(false));
    // A scaled Gemm stays as it is: the attribute is its own.
    let scaled = |graph: &mut Graph, hidden: &str, weight: &str| {
        gemm(graph, hidden, weight, &[Attr::Float("alpha", 0.5)]);
    };
    assert_eq!(reads_transposed(&scaled), None);
}

/// The number of new tokens of each sequence, `[batch]`: by the shape of the ids, or by the mask.
fn lengths(graph: &mut Graph, by_mask: bool) -> String {
    let front = graph.ints(&[1], &[0]);
    let shape = graph.node("Shape", &["input_ids"], &[]);
    let [batch, new] = [0, 1].map(|axis| {
        let axis = graph.ints(&[], &[axis]);
        let size = graph.node("Gather", &[&shape, &axis], &[]);
        graph.node("Unsqueeze", &[&size, &front], &[])
    });
    if !by_mask {
        return graph.node("Expand", &[&new, &batch], &[]);
    }
    let (one, two) = (graph.ints(&[1], &[1]), graph.ints(&[], &[2]));
    let all = graph.node("ReduceSum", &["attention_mask", &one], &[Attr::Int("keepdims", 0)]);
    let shape = graph.node("Shape", &["past_key_values.0.key"], &[]);
    let past = graph.node("Gather", &[&shape, &two], &[]);
    graph.node("Sub", &[&all, &past], &[])
}

/// Rows in reverse order.
fn turned(graph: &mut Graph, rows: &str, lengths: &str) -> String {
    graph.node("ReverseSequence", &[rows, lengths], &[Attr::Int("batch_axis", 0), Attr::Int("time_axis", 1)])
}

/// One row of each sequence, counted from the front or from the back.
fn row(graph: &mut Graph, rows: &str, at: i64) -> String {
    let (at, axis) = (graph.ints(&[], &[at]), graph.ints(&[1], &[1]));
    let row = graph.node("Gather", &[rows, &at], &[Attr::Int("axis", 1)]);
    graph.node("Unsqueeze", &[&row, &axis], &[])
}

/// Logits that are distances of one number of a row to those of a weight, of all rows or of the last one.
fn distances(rows: Size) -> Graph {
    decoder(rows, move |graph, hidden, _| {
        let weight = graph.weight(&[WIDTH, 1], 1.);
        let one = graph.node("MatMul", &[hidden, &weight], &[]);
        let modulus = graph.floats(&[], &[1000.]);
        let mut one = graph.node("Mod", &[&one, &modulus], &[Attr::Int("fmod", 1)]);
        if matches!(rows, Size::Is(LAST)) {
            one = kept(graph, &one, None);
        }
        let others: Vec<f32> = (0..VOCABULARY).map(|id| id as f32 / 4.).collect();
        let others = graph.floats(&[VOCABULARY], &others);
        let apart = graph.node("Sub", &[&one, &others], &[]);
        let size = graph.node("Abs", &[&apart], &[]);
        graph.node_to("Neg", &[&size], &["logits"], &[]);
    })
}

#[test]
fn a_weight_that_is_larger_than_the_rows_is_not_taken_for_them() {
    accepted("distances", &distances(Size::Named(ALL)), &distances(Size::Named(ALL)));
    // Names of weights differ by those of a slice, so the graphs are compared with themselves: a pruned one with its rows.
    accepted("last distance", &distances(Size::Is(LAST)), &distances(Size::Is(LAST)));
}

#[test]
fn rows_are_chosen_instead_of_those_that_lengths_say() {
    let plain = decoder(Size::Named(ALL), product);
    for by_mask in [false, true] {
        accepted(
            &format!("turned.{by_mask}"),
            &decoder(Size::Is(LAST), |graph, hidden, weight| {
                let lengths = lengths(graph, by_mask);
                let rows = turned(graph, hidden, &lengths);
                let first = row(graph, &rows, 0);
                product(graph, &first, weight);
            }),
            &plain,
        );
        accepted(
            &format!("turned logits.{by_mask}"),
            &decoder(Size::Is(LAST), |graph, hidden, weight| {
                let logits = graph.node("MatMul", &[hidden, weight], &[]);
                let lengths = lengths(graph, by_mask);
                let rows = turned(graph, &logits, &lengths);
                let first = row(graph, &rows, 0);
                graph.node_to("Identity", &[&first], &["logits"], &[]);
            }),
            &plain,
        );
        let cap = decoder(Size::Named(ALL), |graph, hidden, weight| {
            let logits = graph.node("MatMul", &[hidden, weight], &[]);
            capped(graph, &logits);
        });
        accepted(
            &format!("turned behind a cap.{by_mask}"),
            &decoder(Size::Is(LAST), |graph, hidden, weight| {
                let logits = graph.node("MatMul", &[hidden, weight], &[]);
                let logits = cap_of(graph, &logits);
                let lengths = lengths(graph, by_mask);
                let rows = turned(graph, &logits, &lengths);
                let first = row(graph, &rows, 0);
                graph.node_to("Identity", &[&first], &["logits"], &[]);
            }),
            &cap,
        );
        let picked = |operator: &'static str, by_mask: bool| {
            decoder(Size::Is(LAST), move |graph, hidden, weight| {
                let (one, axes) = (graph.ints(&[], &[1]), graph.ints(&[2], &[1, 2]));
                let lengths = lengths(graph, by_mask);
                let last = graph.node("Sub", &[&lengths, &one], &[]);
                let at = graph.node("Unsqueeze", &[&last, &axes], &[]);
                let rows = if operator == "GatherElements" {
                    let wide = graph.ints(&[3], &[1, 1, WIDTH]);
                    let at = graph.node("Expand", &[&at, &wide], &[]);
                    graph.node(operator, &[hidden, &at], &[Attr::Int("axis", 1)])
                } else {
                    graph.node(operator, &[hidden, &at], &[Attr::Int("batch_dims", 1)])
                };
                product(graph, &rows, weight);
            })
        };
        accepted(&format!("elements.{by_mask}"), &picked("GatherElements", by_mask), &plain);
        accepted(&format!("slices.{by_mask}"), &picked("GatherND", by_mask), &plain);
    }
}

#[test]
fn other_rows_by_lengths_are_refused_by_name() {
    let reason = |at: i64, shorter: i64| {
        let (node, reason) = refused(Size::Is(LAST), move |graph, hidden, weight| {
            let shorter = graph.ints(&[1], &[shorter]);
            let all = lengths(graph, false);
            let some = graph.node("Sub", &[&all, &shorter], &[]);
            let rows = turned(graph, hidden, &some);
            let one = row(graph, &rows, at);
            product(graph, &one, weight);
        });
        assert_eq!(node, "logits");
        reason
    };
    assert!(reason(-1, 0).contains("[0] of 3 tokens"), "the first token");
    assert!(reason(0, 1).contains("[1] of 3 tokens"), "the one before the last");
    assert!(!reason(0, 2).contains("[2]"), "the first token, which alone is turned");
}

/// A head of bytes, as dynamic quantisation makes it.
fn quantised(graph: &mut Graph, hidden: &str) {
    let bytes: Vec<u8> = (0..WIDTH * VOCABULARY).map(|at| (at * 37 % 251) as u8).collect();
    let weight = graph.bytes(&[WIDTH, VOCABULARY], &bytes);
    let (zero, scale) = (graph.bytes(&[], &[128]), graph.floats(&[], &[0.01]));
    let [rows, size, point] = ["rows", "size", "point"].map(|name| graph.fresh(name));
    graph.node_to("DynamicQuantizeLinear", &[hidden], &[&rows, &size, &point], &[]);
    let whole = graph.node("MatMulInteger", &[&rows, &weight, &point, &zero], &[]);
    let floats = graph.node("Cast", &[&whole], &[Attr::Int("to", F32)]);
    let scale = graph.node("Mul", &[&size, &scale], &[]);
    graph.node_to("Mul", &[&floats, &scale], &["logits"], &[]);
}

#[test]
fn heads_of_bytes_quantise_the_chosen_rows() {
    let graph = decoder(Size::Named(ALL), |graph, hidden, _| quantised(graph, hidden));
    let rewritten = rewrite(&graph.model(18)).unwrap();
    let inputs: Vec<&str> = rewritten.inspection().inputs.iter().map(|port| port.name.as_str()).collect();
    assert!(inputs.contains(&"logit_rows"), "{inputs:?}");
    let last = decoder(Size::Is(LAST), |graph, hidden, _| {
        let row = kept(graph, hidden, None);
        quantised(graph, &row);
    });
    rewrite(&last.model(18)).unwrap();
}

/// The node and the reason of a refusal.
fn refused(rows: Size, head: impl Fn(&mut Graph, &str, &str)) -> (String, String) {
    match rewrite(&decoder(rows, head).model(18)) {
        Err(Error::Unrecognised { node, reason, .. }) => (node, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn heads_of_other_rows_are_refused_by_name() {
    let (node, reason) = refused(Size::Is(2), |graph, hidden, weight| {
        let twice = graph.ints(&[2], &[-1, -1]);
        let rows = graph.node("Gather", &[hidden, &twice], &[Attr::Int("axis", 1)]);
        product(graph, &rows, weight);
    });
    assert_eq!(node, "logits");
    assert!(reason.contains("[2, 2] of 3 tokens"), "{reason}");
    let (_, reason) = refused(Size::Is(LAST), |graph, hidden, weight| {
        let first = graph.ints(&[1], &[0]);
        let rows = graph.node("Gather", &[hidden, &first], &[Attr::Int("axis", 1)]);
        product(graph, &rows, weight);
    });
    assert!(reason.contains("[0] of 3 tokens"), "{reason}");
    let (node, reason) = refused(Size::Named(ALL), |graph, hidden, weight| {
        let logits = graph.node("MatMul", &[hidden, weight], &[]);
        let axis = graph.ints(&[], &[1]);
        graph.node_to("CumSum", &[&logits, &axis], &["logits"], &[]);
    });
    assert_eq!(node, "node of logits");
    assert!(reason.contains("not supported between the head"), "{reason}");
    let (node, reason) = refused(Size::Named(ALL), |graph, hidden, weight| {
        let logits = graph.node("MatMul", &[hidden, weight], &[]);
        let most = graph.node("ReduceMax", &[&logits], &[]);
        graph.node_to("Sub", &[&logits, &most], &["logits"], &[]);
    });
    assert!(node.contains("ReduceMax") && reason.contains("not supported between the head"), "{node}: {reason}");
}

/// A head that drops padding of the vocabulary, or reads one codebook of several, computes other columns.
#[test]
fn heads_that_move_columns_are_refused_by_name() {
    let columns = |move_to: &dyn Fn(&mut Graph, &str)| {
        let (node, reason) = refused(Size::Named(ALL), |graph, hidden, weight| {
            let logits = graph.node("MatMul", &[hidden, weight], &[]);
            move_to(graph, &logits);
        });
        assert_eq!(node, "node of logits");
        assert!(reason.contains("it moves columns"), "{reason}");
    };
    for first in [0, 1] {
        columns(&|graph, logits| {
            let [first, end, axis] = [first, VOCABULARY - 2, 2].map(|number| graph.ints(&[1], &[number]));
            graph.node_to("Slice", &[logits, &first, &end, &axis], &["logits"], &[]);
        });
    }
    columns(&|graph, logits| {
        let sizes = graph.ints(&[2], &[VOCABULARY - 8, 8]);
        graph.node_to("Split", &[logits, &sizes], &["logits", "rest"], &[Attr::Int("axis", -1)]);
    });
    let order: Vec<i64> = (0..VOCABULARY).rev().collect();
    columns(&|graph, logits| {
        let order = graph.ints(&[VOCABULARY], &order);
        graph.node_to("Gather", &[logits, &order], &["logits"], &[Attr::Int("axis", -1)]);
    });
    let (_, reason) = refused(Size::Named(ALL), |graph, hidden, weight| {
        let logits = graph.node("MatMul", &[hidden, weight], &[]);
        let (books, second) = (graph.ints(&[4], &[0, 0, 2, VOCABULARY / 2]), graph.ints(&[], &[1]));
        let books = graph.node("Reshape", &[&logits, &books], &[]);
        graph.node_to("Gather", &[&books, &second], &["logits"], &[Attr::Int("axis", 2)]);
    });
    assert!(reason.contains("it moves columns"), "{reason}");
}
