//! Keys and values in one past, `[2, batch, heads, past, head dimension]`: inside of com.microsoft.Attention, and as halves
//! that nodes take from it.

use kvtide_onnx::{Error, Form, Layer, Model, Options, Rewritten};

use crate::support::build::{Attr, DIM, Decoder, F32, Graph, HEADS, Size};
use crate::support::runtime::same_as_before;

fn rewrite(bytes: &[u8]) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options::default())
}

/// Rewrites a model that has to be recognised, compares its numbers with those before, and gives its first layer.
fn accepted(name: &str, graph: &Graph, form: Form) -> Layer {
    let bytes = graph.model(13);
    let rewritten = rewrite(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    for (number, layer) in rewritten.layers().iter().enumerate() {
        assert_eq!((layer.layer, layer.form, layer.kv_num_heads), (number as u32, form, HEADS as u32), "{name}");
        assert_eq!((layer.head_dim, layer.value_dim), (DIM as u32, DIM as u32), "{name}");
        let past = format!("past_{number}");
        assert_eq!(layer.pasts, [past.clone(), past], "{name}");
    }
    let inspection = rewritten.inspection();
    let inputs: Vec<&str> = inspection.inputs.iter().map(|port| port.name.as_str()).collect();
    assert!(!inputs.iter().any(|name| name.starts_with("past") || *name == "attention_mask"), "{name}: {inputs:?}");
    assert_eq!(inspection.outputs.len(), 1, "{name}");
    same_as_before(&format!("pair.{name}"), &bytes, &rewritten);
    rewritten.layers()[0].clone()
}

/// The text of a refusal.
fn refused(graph: &Graph) -> String {
    let text = rewrite(&graph.model(13)).map(|_| ()).unwrap_err().to_string();
    assert!(text.len() <= 300, "{text}");
    text
}

/// The past of a layer as an input, and its present as an output.
fn pair(graph: &mut Graph, layer: usize) -> [String; 2] {
    let dims = |rows| [Size::Is(2), Size::Named("batch"), Size::Is(HEADS), Size::Named(rows), Size::Is(DIM)];
    let [past, present] = ["past", "present"].map(|stem| format!("{stem}_{layer}"));
    graph.input(&past, F32, &dims("past"));
    graph.output(&present, F32, &dims("total"));
    [past, present]
}

/// The inputs of the operator behind its weights.
#[derive(Clone, Copy, Default)]
struct Inputs {
    bias: bool,
    mask: Option<i64>,
    scores: bool,
    buffer: bool,
    no_past: bool,
}

/// A decoder of com.microsoft.Attention.
fn contrib(given: Inputs, attributes: &[Attr]) -> Graph {
    Decoder::new(HEADS, false).layers(|decoder, layer, [hidden, ..]| {
        let [past, present] = pair(&mut decoder.graph, layer);
        let added = if given.scores {
            let before = decoder.size_of(&past, 3);
            let new = decoder.size_of("input_ids", 1);
            let graph = &mut decoder.graph;
            let total = graph.node("Add", &[&before, &new], &[]);
            let (zero, one, axis) = (graph.ints(&[], &[0]), graph.ints(&[], &[1]), graph.ints(&[1], &[1]));
            let keys = graph.node("Range", &[&zero, &total, &one], &[]);
            let queries = graph.node("Range", &[&before, &total, &one], &[]);
            let queries = graph.node("Unsqueeze", &[&queries, &axis], &[]);
            let seen = graph.node("LessOrEqual", &[&keys, &queries], &[]);
            let added = decoder.added(&seen);
            let axes = decoder.graph.ints(&[2], &[0, 1]);
            decoder.graph.node("Unsqueeze", &[&added, &axes], &[])
        } else {
            String::new()
        };
        let graph = &mut decoder.graph;
        let weights = graph.weight(&[HEADS * DIM, 3 * HEADS * DIM], 0.6);
        let bias = if given.bias { graph.weight(&[3 * HEADS * DIM], 1.) } else { String::new() };
        let mask = given.mask.map_or(String::new(), |least| {
            let least = graph.ints(&[], &[least]);
            let mask = graph.node("Min", &["attention_mask", &least], &[]);
            graph.node("Cast", &[&mask], &[Attr::Int("to", 6)])
        });
        let length = if given.buffer {
            let length = graph.ints(&[1], &[0]);
            graph.node("Cast", &[&length], &[Attr::Int("to", 6)])
        } else {
            String::new()
        };
        let past = if given.no_past { String::new() } else { past };
        let inputs = [hidden, &weights, &bias, &mask, &past, &added, &length];
        let output = graph.fresh("attended");
        // The first of two attributes with the same name counts.
        let mut all = attributes.to_vec();
        all.push(Attr::Int("num_heads", HEADS));
        graph.node_to("com.microsoft.Attention", &inputs, &[&output, &present], &all);
        output
    })
}

fn causal() -> Attr {
    Attr::Int("unidirectional", 1)
}

#[test]
fn contrib_attention_that_is_another_one_is_refused() {
    let plain = Inputs::default();
    let text = refused(&contrib(plain, &[]));
    assert!(text.contains("nothing hides later tokens"), "{text}");
    let text = refused(&contrib(Inputs { mask: Some(0), ..plain }, &[causal()]));
    assert!(text.contains("may hide keys: expected ones"), "{text}");
    let text = refused(&contrib(plain, &[causal(), Attr::Int("do_rotary", 1)]));
    assert!(text.contains("do_rotary is 1"), "{text}");
    let text = refused(&contrib(Inputs { buffer: true, ..plain }, &[causal()]));
    assert!(text.contains("share a buffer"), "{text}");
    let text = refused(&contrib(Inputs { no_past: true, ..plain }, &[causal()]));
    assert!(text.contains("it has no past that the graph takes as an input"), "{text}");
    let sizes = Attr::Ints("qkv_hidden_sizes", vec![HEADS * DIM, HEADS * DIM, DIM]);
    let text = refused(&contrib(plain, &[causal(), sizes]));
    assert!(text.contains("qkv_hidden_sizes is [64, 64, 16]"), "{text}");
    let text = refused(&contrib(plain, &[causal(), Attr::Int("num_heads", 5)]));
    assert!(text.contains("cannot be divided into 3 * 5 heads"), "{text}");
}

/// The nodes that take a half of a past.
#[derive(Clone, Copy)]
enum Taking {
    Gather,
    Split,
    Slice,
}

/// A decoder of plain attention whose keys and values are these halves of the past.
fn plain(taking: Taking, halves: [i64; 2]) -> Graph {
    Decoder::new(HEADS, false).layers(|decoder, layer, [query, key, value]| {
        let [past, present] = pair(&mut decoder.graph, layer);
        let query = decoder.heads_first(query, HEADS);
        let new = [key, value].map(|name| decoder.heads_first(name, HEADS));
        let graph = &mut decoder.graph;
        let front = graph.ints(&[1], &[0]);
        let split = [graph.fresh("half"), graph.fresh("half")];
        if let Taking::Split = taking {
            let sizes = graph.ints(&[2], &[1, 1]);
            graph.node_to("Split", &[&past, &sizes], &[&split[0], &split[1]], &[Attr::Int("axis", 0)]);
        }
        let mut joined = Vec::new();
        for (half, new) in halves.into_iter().zip(&new) {
            let own = match taking {
                Taking::Gather => {
                    let index = graph.ints(&[], &[half]);
                    graph.node("Gather", &[&past, &index], &[Attr::Int("axis", 0)])
                }
                Taking::Split => graph.node("Squeeze", &[&split[half as usize], &front], &[]),
                Taking::Slice => {
                    let (start, end) = (graph.ints(&[1], &[half]), graph.ints(&[1], &[half + 1]));
                    let rows = graph.node("Slice", &[&past, &start, &end, &front], &[]);
                    graph.node("Squeeze", &[&rows, &front], &[])
                }
            };
            joined.push(graph.node("Concat", &[&own, new], &[Attr::Int("axis", 2)]));
        }
        let both: Vec<String> = joined.iter().map(|name| graph.node("Unsqueeze", &[name, &front], &[])).collect();
        graph.node_to("Concat", &[&both[0], &both[1]], &[&present], &[Attr::Int("axis", 0)]);
        let keys = graph.node("Transpose", &[&joined[0]], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let half = graph.floats(&[], &[0.3]);
        let scores = graph.node("MatMul", &[&query, &keys], &[]);
        let scores = graph.node("Mul", &[&scores, &half], &[]);
        let seen = {
            let index = decoder.graph.ints(&[], &[0]);
            let own = decoder.graph.node("Gather", &[&past, &index], &[Attr::Int("axis", 0)]);
            decoder.seen(&own, Some(4))
        };
        let low = decoder.graph.floats(&[], &[f32::NEG_INFINITY]);
        let scores = decoder.graph.node("Where", &[&seen, &scores, &low], &[]);
        let scores = decoder.graph.node("Softmax", &[&scores], &[Attr::Int("axis", -1)]);
        let weighted = decoder.graph.node("MatMul", &[&scores, &joined[1]], &[]);
        decoder.packed(&weighted)
    })
}

#[test]
fn plain_attention_over_halves_of_a_past() {
    for (name, taking) in [("gather", Taking::Gather), ("split", Taking::Split), ("slice", Taking::Slice)] {
        let layer = accepted(name, &plain(taking, [0, 1]), Form::Plain);
        assert_eq!((layer.window, layer.scale), (Some(4), 0.3), "{name}");
    }
}

#[test]
fn halves_that_are_not_keys_and_values_are_refused() {
    for halves in [[0, 0], [1, 1], [1, 0]] {
        let text = refused(&plain(Taking::Gather, halves));
        assert!(text.contains("the first and the second half of one past"), "{text}");
    }
}
