//! Layers of GroupQueryAttention without keys and values of their own: the presents of an earlier layer are their pasts, and
//! their keys and values have no rows.

use kvtide_onnx::{Error, Model, Options, Rewritten};

use crate::support::build::{Attr, DIM, Decoder, Graph, HEADS, Size};
use crate::support::runtime::same_as;

fn rewrite(bytes: &[u8]) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options::default())
}

/// The form of the second layer.
#[derive(Clone, Copy)]
struct Shared {
    /// New rows of its keys and values.
    rows: i64,
    kv_heads: i64,
    window: [i64; 2],
    /// The present that is its past of values.
    values: &'static str,
    rotary: bool,
    /// True if it returns what it reads.
    returns: bool,
}

const SHARED: Shared =
    Shared { rows: 0, kv_heads: 2, window: [-1; 2], values: "present.0.value", rotary: true, returns: false };

/// Keys or values with a number of rows for each sequence.
fn rows(decoder: &mut Decoder, query: &str, rows: i64) -> String {
    let graph = &mut decoder.graph;
    let batch = graph.node("Shape", &[query], &[Attr::Int("start", 0), Attr::Int("end", 1)]);
    let rest = graph.ints(&[2], &[rows, 2 * DIM]);
    let shape = graph.node("Concat", &[&batch, &rest], &[Attr::Int("axis", 0)]);
    let zeros = graph.node("ConstantOfShape", &[&shape], &[]);
    graph.node("CastLike", &[&zeros, query], &[])
}

fn decoder(form: Shared) -> Graph {
    let mut decoder = Decoder::new(2, false);
    let tables = [0, 1].map(|_| decoder.graph.weight(&[64, DIM / 2], 2.));
    decoder.layers(move |decoder, layer, operands| {
        let mut inputs = operands.map(str::to_owned).to_vec();
        let mut outputs = vec![decoder.graph.fresh("attended")];
        if layer == 0 {
            let [pasts, presents] = decoder.pasts(layer);
            inputs.extend(pasts);
            outputs.extend(presents);
        } else {
            let empty = rows(decoder, operands[0], form.rows);
            inputs = vec![inputs[0].clone(), empty.clone(), empty, "present.0.key".into(), form.values.into()];
            if form.returns {
                outputs.extend(["key", "value"].map(|side| format!("again.{side}")));
                let dims = [Size::Named("batch"), Size::Is(2), Size::Named("total"), Size::Is(DIM)];
                outputs[1..].iter().for_each(|name| decoder.graph.output(name, 1, &dims));
            } else {
                outputs.extend(["key", "value"].map(|side| decoder.graph.fresh(side)));
            }
        }
        inputs.extend(decoder.lengths());
        if form.rotary {
            inputs.extend(tables.clone());
        }
        let attributes = [
            Attr::Int("num_heads", HEADS),
            Attr::Int("kv_num_heads", if layer == 0 { 2 } else { form.kv_heads }),
            Attr::Int("do_rotary", form.rotary.into()),
            Attr::Int("local_window_size", form.window[layer]),
        ];
        let [inputs, outputs] = [&inputs, &outputs].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        decoder.graph.node_to("com.microsoft.GroupQueryAttention", &inputs, &outputs, &attributes);
        outputs[0].to_owned()
    })
}

#[test]
fn an_operator_over_the_presents_of_another_one_has_its_keys_and_values() {
    let windows = Shared { window: [4; 2], ..SHARED };
    let flat = Shared { rotary: false, ..SHARED };
    for (name, form) in [("plain", SHARED), ("windows", windows), ("without rotary", flat)] {
        let bytes = decoder(form).model(21);
        let rewritten = rewrite(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let sources: Vec<_> = rewritten.layers().iter().map(|layer| layer.source).collect();
        assert_eq!(sources, [None, Some(0)], "{name}");
        assert_eq!(rewritten.inspection().dropped_outputs, ["present.0.key", "present.0.value"], "{name}");
        let parts = rewritten.parts(&bytes.as_slice()).unwrap();
        let [query, key, value] = &parts[1].attentions[0].inputs;
        assert!(query == key && query == value, "{name}");
        same_as(&format!("shared.{name}"), &bytes, &bytes, &rewritten, &Options::default());
    }
}

/// Two layers of ONNX's Attention, the second of which takes the presents of the first as packed keys and values.
fn attention() -> Graph {
    Decoder::new(2, false).layers(|decoder, layer, operands| {
        let mut inputs = operands.map(str::to_owned).to_vec();
        let mut outputs = vec![decoder.graph.fresh("attended")];
        let mut pasts = Vec::new();
        if layer == 0 {
            let [before, presents] = decoder.pasts(layer);
            pasts.extend(before);
            outputs.extend(presents);
        } else {
            let graph = &mut decoder.graph;
            for (input, present) in inputs[1..].iter_mut().zip(["present.0.key", "present.0.value"]) {
                let turned = graph.node("Transpose", &[present], &[Attr::Ints("perm", vec![0, 2, 1, 3])]);
                let shape = graph.ints(&[3], &[0, 0, 2 * DIM]);
                *input = graph.node("Reshape", &[&turned, &shape], &[]);
            }
        }
        let seen = decoder.seen("past_key_values.0.key", None);
        inputs.push(decoder.added(&seen));
        inputs.extend(pasts);
        let heads = [Attr::Int("q_num_heads", HEADS), Attr::Int("kv_num_heads", 2), Attr::Float("scale", 0.25)];
        let [inputs, outputs] = [&inputs, &outputs].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        decoder.graph.node_to("Attention", &inputs, &outputs, &heads);
        outputs[0].to_owned()
    })
}

#[test]
fn onnx_attention_over_the_presents_of_another_one_has_its_keys_and_values() {
    let bytes = attention().model(23);
    let rewritten = rewrite(&bytes).unwrap();
    assert_eq!(rewritten.layers()[1].source, Some(0));
    same_as("shared.attention", &bytes, &bytes, &rewritten, &Options::default());
}

#[test]
fn presents_that_it_returns_are_dropped_with_its_pasts() {
    let bytes = decoder(Shared { returns: true, ..SHARED }).model(21);
    let rewritten = rewrite(&bytes).unwrap();
    let dropped = ["present.0.key", "present.0.value", "again.key", "again.value"];
    assert_eq!(rewritten.inspection().dropped_outputs, dropped);
}

#[test]
fn other_uses_of_presents_are_refused() {
    for (form, expected) in [
        (Shared { rows: 1, ..SHARED }, "but it appends"),
        (Shared { kv_heads: 1, ..SHARED }, "are not those of the layer"),
        (Shared { window: [4, 8], ..SHARED }, "has another window"),
        (Shared { values: "present.0.key", ..SHARED }, "read by another attention as well"),
    ] {
        match rewrite(&decoder(form).model(21)) {
            Err(Error::Unrecognised { reason, .. }) => assert!(reason.contains(expected), "{expected}: {reason}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
}
