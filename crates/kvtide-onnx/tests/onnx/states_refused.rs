//! Layers with a state that are not recognised: each refusal names a node and says why, and its kind is that of states.

use std::sync::OnceLock;

use kvtide_onnx::{Error, Model, Options, RefusalKind, Rewritten, Weights};
use proptest::prelude::*;

use crate::support::build::{Attr, DIM, Decoder, F32, Graph, HEADS, I64, Size};
use crate::support::hybrid::{CHANNELS, Linear, Plain, Scan, causal, hybrid, port, turned};

fn rewrite(graph: &Graph) -> Result<Rewritten, Error> {
    let bytes = graph.model(21);
    Rewritten::new(&bytes.as_slice(), &Model::read(&bytes)?, &Options::default())
}

/// Checks that a graph is refused at an operator, and for a reason that contains all of some texts.
fn refused(graph: &Graph, at: &str, texts: &[&str]) {
    match rewrite(graph) {
        Err(Error::Unrecognised { node, operator, reason, kind }) => {
            assert_eq!((operator.as_str(), kind), (at, RefusalKind::State), "{node}: {reason}");
            for text in texts {
                assert!(reason.contains(text), "{node} ({operator}): {reason}");
            }
        }
        other => panic!("{at} {texts:?}: {:?}", other.map(|_| ())),
    }
}

/// A decoder whose first layer is a convolution, and whose ports are made by `ports`.
fn with_ports(ports: impl Fn(&mut Graph)) -> Graph {
    hybrid(|graph, [x, ..]| {
        ports(graph);
        let form = Plain::of(3, 2);
        let x = turned(graph, x);
        let joined = graph.node("Concat", &["past_conv.0", &x], &[Attr::Int("axis", 2)]);
        form.present(graph, &joined);
        let out = form.convolved(graph, &joined);
        turned(graph, &out)
    })
}

#[test]
fn states_must_be_pairs_of_one_sequence_with_fixed_sizes() {
    let dims = |batch, columns| [batch, Size::Is(CHANNELS), columns];
    let both = |element: i64, dims: [Size; 3]| {
        with_ports(move |graph| {
            graph.input("past_conv.0", element, &dims);
            graph.output("present_conv.0", element, &dims);
        })
    };
    let named = Size::Named("batch");
    refused(&both(F32, dims(Size::Is(2), Size::Is(2))), "input", &["for 2 sequences"]);
    refused(&both(F32, dims(named, Size::Named("columns"))), "input", &["not fixed"]);
    refused(&both(I64, dims(named, Size::Is(2))), "input", &["i64", "expected f32"]);
    let alone = with_ports(|graph| drop(graph.input("past_conv.0", F32, &dims(named, Size::Is(2)))));
    refused(&alone, "input", &["no output present_conv.0"]);
    let mut unread = hybrid(|graph, [x, ..]| Plain::of(3, 2).layer(graph, x));
    unread.output("present.9.ssm", F32, &dims(named, Size::Is(2)));
    unread.node_to("Identity", &["logits"], &["present.9.ssm"], &[]);
    refused(&unread, "output", &["the graph takes none"]);
    let mut twice = hybrid(|graph, [x, ..]| Plain::of(3, 2).layer(graph, x));
    port(&mut twice, ["past.0.conv", "present.0.conv"], F32, &[CHANNELS, 2]);
    twice.node_to("Identity", &["past.0.conv"], &["present.0.conv"], &[]);
    refused(&twice, "input", &["the same state as"]);
}

#[test]
fn a_state_must_have_one_reader_of_a_known_form() {
    let read_again = hybrid(|graph, [x, ..]| {
        let out = Plain::of(3, 2).layer(graph, x);
        let axes = graph.ints(&[1], &[2]);
        let sum = graph.node("ReduceSum", &["past_conv.0", &axes], &[]);
        let sum = turned(graph, &sum);
        graph.node("Add", &[&out, &sum], &[])
    });
    refused(&read_again, "ReduceSum", &["reads the state past_conv.0 as well"]);
    let unread = hybrid(|graph, [x, ..]| {
        port(graph, ["past_conv.0", "present_conv.0"], F32, &[CHANNELS, 2]);
        let x = turned(graph, x);
        Plain::of(3, 2).present(graph, &x);
        turned(graph, &x)
    });
    refused(&unread, "input", &["no node reads"]);
    let added = hybrid(|graph, [x, ..]| {
        port(graph, ["past_recurrent.0", "present_recurrent.0"], F32, &[1, CHANNELS]);
        let sum = graph.node("Add", &[x, "past_recurrent.0"], &[]);
        let [start, end, axes] = [-1, i64::MAX, 1].map(|at| graph.ints(&[1], &[at]));
        graph.node_to("Slice", &[&sum, &start, &end, &axes], &["present_recurrent.0"], &[]);
        sum
    });
    refused(&added, "Add", &["reads the state past_recurrent.0", "no form"]);
    let second = hybrid(|graph, [x, ..]| {
        let form = Plain::of(3, 2);
        port(graph, ["past_conv.0", "present_conv.0"], F32, &[CHANNELS, 2]);
        let x = turned(graph, x);
        let joined = graph.node("Concat", &[&x, "past_conv.0"], &[Attr::Int("axis", 2)]);
        form.present(graph, &joined);
        let out = form.convolved(graph, &joined);
        turned(graph, &out)
    });
    refused(&second, "Concat", &["no form"]);
}

#[test]
fn the_present_must_be_the_state_after_the_new_tokens() {
    let kept = |kept| hybrid(move |graph, [x, ..]| Plain { kept, ..Plain::of(3, 2) }.layer(graph, x));
    refused(&kept([0, 2]), "Concat", &["present_conv.0 does not have the last 2 columns"]);
    refused(&kept([-3, -1]), "Concat", &["does not have the last 2 columns"]);
    let other = hybrid(|graph, [x, ..]| {
        let form = Plain::of(3, 2);
        let joined = form.joined(graph, x);
        let twice = graph.node("Add", &[&joined, &joined], &[]);
        form.present(graph, &twice);
        let out = form.convolved(graph, &joined);
        turned(graph, &out)
    });
    refused(&other, "Concat", &["present_conv.0 is not cut out of"]);
    let read = hybrid(|graph, [x, ..]| {
        let out = Plain::of(3, 2).layer(graph, x);
        let axes = graph.ints(&[1], &[2]);
        let sum = graph.node("ReduceSum", &["present_conv.0", &axes], &[]);
        let sum = turned(graph, &sum);
        graph.node("Add", &[&out, &sum], &[])
    });
    refused(&read, "ReduceSum", &["it reads present_conv.0, the new state"]);
    let changed = hybrid(|graph, [x, ..]| {
        port(graph, ["past_conv.0", "present_conv.0"], F32, &[CHANNELS, 2]);
        let x = turned(graph, x);
        let weight = graph.weight(&[CHANNELS, 1, 3], 1.);
        let inputs = [x.as_str(), &weight, "", "past_conv.0"];
        graph.node_to("com.microsoft.CausalConvWithState", &inputs, &["convolved", "state"], &[]);
        graph.node_to("Neg", &["state"], &["present_conv.0"], &[]);
        turned(graph, "convolved")
    });
    refused(&changed, "com.microsoft.CausalConvWithState", &["present_conv.0 is not its new state"]);
}

#[test]
fn a_convolution_must_be_one_of_each_channel_and_of_all_tokens() {
    let with = |form: Plain| hybrid(move |graph, [x, ..]| form.layer(graph, x));
    let attribute =
        |name, values: &[i64]| Plain { attributes: vec![Attr::Ints(name, values.to_vec())], ..Plain::of(3, 4) };
    refused(&with(attribute("dilations", &[2])), "Conv", &["dilations are [2]"]);
    refused(&with(attribute("strides", &[2])), "Conv", &["strides are [2]"]);
    refused(&with(Plain { outputs: 2, ..Plain::of(3, 2) }), "Conv", &["group is 64", "128 channels"]);
    refused(&with(Plain::of(9, 8)), "Conv", &["kernel has 9 columns"]);
    refused(&with(Plain::of(1, 2)), "Conv", &["kernel has 1 columns"]);
    refused(&with(Plain::of(4, 2)), "Conv", &["the state has 2 columns"]);
    let same = Plain { attributes: vec![Attr::Text("auto_pad", "SAME_LOWER")], ..Plain::of(3, 2) };
    refused(&with(same), "Conv", &["auto_pad"]);
    // The results of a column too early, or of too few of them.
    let uncut = hybrid(|graph, [x, ..]| {
        let form = Plain::of(3, 3);
        let joined = form.joined(graph, x);
        form.present(graph, &joined);
        let out = form.convolved(graph, &joined);
        let [start, end, axes] = [0, -1, 2].map(|at| graph.ints(&[1], &[at]));
        let out = graph.node("Slice", &[&out, &start, &end, &axes], &[]);
        turned(graph, &out)
    });
    refused(&uncut, "Conv", &["its results are not those of the new tokens"]);
    let computed = hybrid(|graph, [x, ..]| {
        let form = Plain::of(3, 2);
        let joined = form.joined(graph, x);
        form.present(graph, &joined);
        let axes = graph.ints(&[2], &[0, 1]);
        let mean = graph.node("ReduceMean", &[x, &axes], &[Attr::Int("keepdims", 0)]);
        let shape = graph.ints(&[3], &[CHANNELS, 1, 1]);
        let mean = graph.node("Reshape", &[&mean, &shape], &[]);
        let wide = graph.ints(&[3], &[CHANNELS, 1, 3]);
        let weight = graph.node("Expand", &[&mean, &wide], &[]);
        let out = graph.node("Conv", &[&joined, &weight], &[Attr::Int("group", CHANNELS)]);
        turned(graph, &out)
    });
    refused(&computed, "Conv", &["its kernel", "depends on the inputs"]);
    let two = hybrid(|graph, [x, ..]| {
        let form = Plain::of(3, 2);
        let joined = form.joined(graph, x);
        form.present(graph, &joined);
        let [one, other] = [0, 1].map(|_| form.convolved(graph, &joined));
        let out = graph.node("Add", &[&one, &other], &[]);
        turned(graph, &out)
    });
    refused(&two, "Concat", &["not read by a convolution alone"]);
}

#[test]
fn attributes_of_causal_convolutions_that_change_their_meaning_are_refused() {
    let operator = "com.microsoft.CausalConvWithState";
    let with =
        |attribute: Attr| hybrid(move |graph, [x, ..]| causal(graph, x, false, std::slice::from_ref(&attribute)));
    refused(&with(Attr::Int("ndim", 2)), operator, &["ndim is 2"]);
    refused(&with(Attr::Int("dilation", 2)), operator, &["dilation is 2"]);
    refused(&with(Attr::Int("state_window", 4)), operator, &["state_window is 4"]);
    refused(&with(Attr::Text("activation", "relu")), operator, &["activation is relu"]);
    let narrow = hybrid(|graph, [x, ..]| {
        port(graph, ["past_conv.0", "present_conv.0"], F32, &[CHANNELS, 3]);
        let x = turned(graph, x);
        let weight = graph.weight(&[CHANNELS, 1, 3], 1.);
        graph.node_to(operator, &[&x, &weight, "", "past_conv.0"], &["convolved", "present_conv.0"], &[]);
        turned(graph, "convolved")
    });
    refused(&narrow, operator, &["[64, 3]", "expected [64, 2]"]);
}

#[test]
fn linear_attentions_with_other_rules_or_heads_are_refused() {
    let operator = "com.microsoft.LinearAttention";
    let with = |form: Linear| hybrid(move |graph, operands| form.layer(graph, operands));
    refused(
        &with(Linear { rule: "delta_product", ..Linear::of("delta") }),
        operator,
        &["update_rule is delta_product"],
    );
    refused(&with(Linear { decay: None, ..Linear::of("gated_delta") }), operator, &["needs an input decay"]);
    refused(&with(Linear { beta: None, ..Linear::of("delta") }), operator, &["needs an input beta"]);
    refused(&with(Linear { decay: Some(3), ..Linear::of("gated") }), operator, &["decay", "a width of [2, 32]"]);
    let window = Linear { attributes: vec![Attr::Int("state_window", 2)], ..Linear::of("gated_delta") };
    refused(&with(window), operator, &["state_window is 2"]);
    // Three value heads cannot share two keys.
    let odd = Linear { q_heads: 3, v_heads: 3, ..Linear::of("linear") };
    refused(&with(odd), operator, &["3 heads of queries, 2 of keys and 3 of values"]);
}

#[test]
fn scans_that_compute_something_else_are_refused() {
    let with = |form: Scan| hybrid(move |graph, operands| form.layer(graph, operands));
    refused(&with(Scan { writes: 2., ..Scan::of(8, 1) }), "Scan", &["its body does not give"]);
    let sum = hybrid(|graph, [x, ..]| {
        port(graph, ["past_ssm.0", "present_ssm.0"], F32, &[HEADS, DIM]);
        let mut body = Graph::default();
        let dims = [Size::Named("batch"), Size::Is(HEADS), Size::Is(DIM)];
        body.input("h", F32, &dims);
        body.input("x", F32, &dims);
        body.node_to("Add", &["h", "x"], &["next"], &[]);
        body.node_to("Identity", &["next"], &["y"], &[]);
        body.output("next", F32, &dims);
        body.output("y", F32, &dims);
        let (shape, packed) = (graph.ints(&[4], &[0, 0, HEADS, DIM]), graph.ints(&[3], &[0, 0, CHANNELS]));
        let rows = graph.node("Reshape", &[x, &shape], &[]);
        let attributes = [
            Attr::Graph("body", body.fields.clone().text(2, "token")),
            Attr::Int("num_scan_inputs", 1),
            Attr::Ints("scan_input_axes", vec![1]),
            Attr::Ints("scan_output_axes", vec![1]),
        ];
        graph.node_to("Scan", &["past_ssm.0", &rows], &["present_ssm.0", "read"], &attributes);
        graph.node("Reshape", &["read", &packed], &[])
    });
    refused(&sum, "Scan", &["does not have heads, their elements"]);
}

#[test]
fn nodes_that_mix_tokens_are_refused() {
    let behind = |change: fn(&mut Graph, &str) -> String| {
        hybrid(move |graph, [x, ..]| {
            let out = Plain::of(3, 2).layer(graph, x);
            change(graph, &out)
        })
    };
    let before = |change: fn(&mut Graph, &str) -> String| {
        hybrid(move |graph, [x, ..]| {
            let x = change(graph, x);
            Plain::of(3, 2).layer(graph, &x)
        })
    };
    let mixes = ["mixes tokens", "several sequences"];
    let summed = |graph: &mut Graph, x: &str| {
        let axis = graph.ints(&[], &[1]);
        graph.node("CumSum", &[x, &axis], &[])
    };
    refused(&behind(summed), "CumSum", &mixes);
    refused(&before(summed), "CumSum", &mixes);
    let mean = |graph: &mut Graph, x: &str| {
        let axes = graph.ints(&[1], &[1]);
        let mean = graph.node("ReduceMean", &[x, &axes], &[]);
        graph.node("Add", &[x, &mean], &[])
    };
    refused(&behind(mean), "ReduceMean", &mixes);
    let products = |graph: &mut Graph, x: &str| {
        let other = turned(graph, x);
        let scores = graph.node("MatMul", &[x, &other], &[]);
        graph.node("MatMul", &[&scores, x], &[])
    };
    refused(&behind(products), "MatMul", &mixes);
    // Each token with the one before it, as in RWKV.
    let shifted = |graph: &mut Graph, x: &str| {
        let [start, one, end, axes] = [0, 1, -1, 1].map(|at| graph.ints(&[1], &[at]));
        let first = graph.node("Slice", &[x, &start, &one, &axes], &[]);
        let others = graph.node("Slice", &[x, &start, &end, &axes], &[]);
        let before = graph.node("Concat", &[&first, &others], &[Attr::Int("axis", 1)]);
        graph.node("Add", &[x, &before], &[])
    };
    refused(&before(shifted), "Slice", &mixes);
    let convolved = |graph: &mut Graph, x: &str| {
        let x = turned(graph, x);
        let weight = graph.weight(&[CHANNELS, 1, 3], 1.);
        let attributes = [Attr::Int("group", CHANNELS), Attr::Ints("pads", vec![2, 0])];
        let out = graph.node("Conv", &[&x, &weight], &attributes);
        turned(graph, &out)
    };
    refused(&behind(convolved), "Conv", &mixes);
    let softmax = |graph: &mut Graph, x: &str| graph.node("Softmax", &[x], &[Attr::Int("axis", 1)]);
    refused(&before(softmax), "Softmax", &mixes);
}

#[test]
fn nodes_that_compute_each_token_alone_are_kept() {
    let graph = hybrid(|graph, [x, ..]| {
        let out = Plain::of(3, 2).layer(graph, x);
        let axes = graph.ints(&[1], &[-1]);
        let mean = graph.node("ReduceMean", &[&out, &axes], &[]);
        let out = graph.node("Sub", &[&out, &mean], &[]);
        let out = graph.node("Softmax", &[&out], &[Attr::Int("axis", -1)]);
        let sizes = graph.ints(&[2], &[CHANNELS / 2, CHANNELS / 2]);
        graph.node_to("Split", &[&out, &sizes], &["one", "other"], &[Attr::Int("axis", 2)]);
        graph.node("Concat", &["other", "one"], &[Attr::Int("axis", 2)])
    });
    assert!(rewrite(&graph).is_ok(), "{:?}", rewrite(&graph).map(|_| ()));
}

#[test]
fn pasts_without_numbers_beside_states_are_refused() {
    let graph = Decoder::new(2, false).layers(|decoder, layer, operands| match layer {
        0 => Plain::of(3, 2).layer(&mut decoder.graph, operands[0]),
        _ => {
            let dims = |rows| [Size::Named("batch"), Size::Is(2), Size::Named(rows), Size::Is(DIM)];
            for (past, present) in [("keys", "new_keys"), ("values", "new_values")] {
                decoder.graph.input(past, F32, &dims("past"));
                decoder.graph.output(present, F32, &dims("total"));
            }
            let [last, total] = decoder.lengths();
            let inputs = [operands[0], operands[1], operands[2], "keys", "values", &last, &total];
            let heads = [Attr::Int("num_heads", HEADS), Attr::Int("kv_num_heads", 2)];
            let outputs = ["attended", "new_keys", "new_values"];
            decoder.graph.node_to("com.microsoft.GroupQueryAttention", &inputs, &outputs, &heads);
            "attended".into()
        }
    });
    refused(&graph, "com.microsoft.GroupQueryAttention", &["do not have the numbers"]);
}

/// One graph of each form, without the weights.
fn small() -> &'static [Vec<u8>; 4] {
    static SMALL: OnceLock<[Vec<u8>; 4]> = OnceLock::new();
    SMALL.get_or_init(|| {
        let plain = hybrid(|graph, [x, ..]| Plain { bias: true, ..Plain::of(3, 3) }.layer(graph, x));
        let causal = hybrid(|graph, [x, ..]| causal(graph, x, true, &[Attr::Text("activation", "silu")]));
        let linear = hybrid(|graph, operands| Linear::of("gated_delta").layer(graph, operands));
        let scan = hybrid(|graph, operands| Scan { has_limits: true, ..Scan::of(8, 2) }.layer(graph, operands));
        [plain, causal, linear, scan].map(|graph| {
            let bytes = graph.model(21);
            Model::read(&bytes).unwrap().to_bytes(&bytes, Weights::External("model.onnx")).unwrap()
        })
    })
}

fn cases() -> u32 {
    std::env::var("KVTIDE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn a_graph_with_states_and_some_bytes_changed_is_rewritten_or_refused(
        which in 0..4usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = small()[which].clone();
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        let rewritten = Model::read(&bytes).and_then(|model| Rewritten::new(&bytes, &model, &Options::default()));
        if let Ok(rewritten) = rewritten {
            let written = rewritten.fused().to_bytes(&bytes, Weights::Inline).unwrap();
            Model::read(&written).unwrap();
            let _ = rewritten.parts(&bytes);
        }
    }
}
