//! Graphs of half floats whose pasts and presents are 32-bit floats, with a Cast between these and the attention: in
//! operators of all kinds, and in front of a Concat.

use kvtide_onnx::{Form, Model, Options, Rewritten};

use crate::support::build::{Attr, DIM, Decoder, F16, F32, Graph, HEADS};
use crate::support::runtime::near;

/// Half floats round each product.
const ROUNDING: f64 = 0.02;

/// Rewrites a graph, whose pages hold floats, and compares its numbers with those of the same graph in floats: onnxruntime
/// itself reuses buffers of the wrong size for presents of some graphs with casts.
fn accepted(name: &str, graph: impl Fn(i64) -> Graph, opset: i64, form: Form) {
    let [floats, bytes] = [F32, F16].map(|inside| graph(inside).model(opset));
    let rewritten = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &Options::default());
    let rewritten = rewritten.unwrap_or_else(|error| panic!("{name}: {error}"));
    for (number, layer) in rewritten.layers().iter().enumerate() {
        assert_eq!((layer.form, layer.element.0), (form, F32 as i32), "{name}");
        assert_eq!(layer.pasts[1], format!("past_key_values.{number}.value"), "{name}");
        assert_eq!(layer.presents[0].as_deref(), Some(&*format!("present.{number}.key")), "{name}");
    }
    assert_eq!(rewritten.inspection().outputs.len(), 1, "{name}");
    near(&format!("cast.{name}"), [&floats, &bytes], &rewritten, &Options::default(), ROUNDING);
}

/// A tensor of floats as half floats, or, in a graph of floats, as it is.
fn cast(graph: &mut Graph, name: &str, to: i64) -> String {
    if to == F32 { graph.node("Identity", &[name], &[]) } else { graph.node("Cast", &[name], &[Attr::Int("to", to)]) }
}

/// A decoder whose attention takes queries, keys, values and pasts in the floats `inside`, and returns an output and presents
/// in them.
fn casting(
    kv_heads: i64,
    inside: i64,
    attention: impl Fn(&mut Decoder, &[String; 3], &[String; 2]) -> [String; 3],
) -> Graph {
    let back = |graph: &mut Graph, from: &str, to: &str| {
        let (operator, attributes) =
            if inside == F32 { ("Identity", vec![]) } else { ("Cast", vec![Attr::Int("to", F32)]) };
        graph.node_to(operator, &[from], &[to], &attributes);
    };
    Decoder::new(kv_heads, false).layers(|decoder, layer, operands| {
        let [pasts, presents] = decoder.pasts(layer);
        let operands = operands.map(|name| cast(&mut decoder.graph, name, inside));
        let pasts = pasts.map(|name| cast(&mut decoder.graph, &name, inside));
        let [output, made @ ..] = attention(decoder, &operands, &pasts);
        for (from, to) in made.iter().zip(&presents) {
            back(&mut decoder.graph, from, to);
        }
        let attended = decoder.graph.fresh("attended");
        back(&mut decoder.graph, &output, &attended);
        attended
    })
}

/// Adds an operator with an output and presents.
fn operator(graph: &mut Graph, name: &str, inputs: &[String], attributes: &[Attr]) -> [String; 3] {
    let outputs = ["attended", "keys", "values"].map(|what| graph.fresh(what));
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    graph.node_to(name, &inputs, &outputs.each_ref().map(String::as_str), attributes);
    outputs
}

#[test]
fn group_query_attention_over_pasts_that_are_cast() {
    for (packed, rotary) in [(false, false), (false, true), (true, true)] {
        let graph = |inside| {
            casting(2, inside, |decoder, operands, pasts| {
                let counts = decoder.lengths();
                let graph = &mut decoder.graph;
                let mut inputs = operands.to_vec();
                if packed {
                    let names = operands.each_ref().map(String::as_str);
                    let whole = graph.node("Concat", &names, &[Attr::Int("axis", -1)]);
                    inputs = vec![whole, String::new(), String::new()];
                }
                inputs.extend(pasts.iter().chain(&counts).cloned());
                if rotary {
                    inputs.extend([0, 1].map(|_| {
                        let table = graph.weight(&[64, DIM / 2], 2.);
                        cast(graph, &table, inside)
                    }));
                }
                let rotary = Attr::Int("do_rotary", i64::from(rotary));
                let attributes = [Attr::Int("num_heads", HEADS), Attr::Int("kv_num_heads", 2), rotary];
                operator(graph, "com.microsoft.GroupQueryAttention", &inputs, &attributes)
            })
        };
        accepted(&format!("gqa.{packed}.{rotary}"), graph, 21, Form::GroupQueryAttention);
    }
}

#[test]
fn onnx_attention_over_pasts_that_are_cast() {
    let graph = |inside| {
        casting(2, inside, |decoder, operands, pasts| {
            let heads = [HEADS, 2, 2];
            let mut inputs: Vec<String> =
                operands.iter().zip(heads).map(|(name, heads)| decoder.heads_first(name, heads)).collect();
            inputs.push(decoder.seen(&pasts[0], None));
            inputs.extend(pasts.iter().cloned());
            let [output, keys, values] = operator(&mut decoder.graph, "Attention", &inputs, &[]);
            [decoder.packed(&output), keys, values]
        })
    };
    accepted("attention", graph, 23, Form::Attention);
}

#[test]
fn concatenations_with_pasts_that_are_cast() {
    let graph = |inside| {
        casting(HEADS, inside, |decoder, operands, pasts| {
            let [query, key, value] = operands.each_ref().map(|name| decoder.heads_first(name, HEADS));
            let graph = &mut decoder.graph;
            let keys = graph.node("Concat", &[&pasts[0], &key], &[Attr::Int("axis", 2)]);
            let values = graph.node("Concat", &[&pasts[1], &value], &[Attr::Int("axis", 2)]);
            let turned = graph.node("Transpose", &[&keys], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
            let scores = graph.node("MatMul", &[&query, &turned], &[]);
            let quarter = graph.floats(&[], &[0.25]);
            let quarter = cast(graph, &quarter, inside);
            let scores = graph.node("Mul", &[&scores, &quarter], &[]);
            let seen = decoder.seen(&pasts[0], Some(4));
            let graph = &mut decoder.graph;
            let low = graph.floats(&[], &[-60000.]);
            let low = cast(graph, &low, inside);
            let scores = graph.node("Where", &[&seen, &scores, &low], &[]);
            let weights = graph.node("Softmax", &[&scores], &[Attr::Int("axis", -1)]);
            let output = graph.node("MatMul", &[&weights, &values], &[]);
            [decoder.packed(&output), keys, values]
        })
    };
    accepted("concat", graph, 18, Form::Plain);
}
