//! Operators that take a mask of their own beside being causal.

use kvtide_onnx::{Form, Model, Options, Rewritten};

use crate::support::build::{Attr, Decoder, HEADS};
use crate::support::runtime::same_as_before;

#[test]
fn a_bias_of_group_query_attention_may_have_a_window() {
    for (local, expected) in [(-1, 4), (3, 3), (6, 4)] {
        let graph = Decoder::new(2, false).layers(|decoder, layer, operands| {
            let [pasts, presents] = decoder.pasts(layer);
            let [last, total] = decoder.lengths();
            let seen = decoder.seen(&pasts[0], Some(4));
            let added = decoder.added(&seen);
            let graph = &mut decoder.graph;
            let axes = graph.ints(&[2], &[0, 1]);
            let bias = graph.node("Unsqueeze", &[&added, &axes], &[]);
            let own = [pasts[0].as_str(), &pasts[1], &last, &total, "", "", "", &bias];
            let inputs: Vec<&str> = operands.into_iter().chain(own).collect();
            let output = graph.fresh("attended");
            let heads = [Attr::Int("num_heads", HEADS), Attr::Int("kv_num_heads", 2)];
            let attributes = [heads.as_slice(), &[Attr::Int("local_window_size", local)]].concat();
            let outputs = [output.as_str(), &presents[0], &presents[1]];
            graph.node_to("com.microsoft.GroupQueryAttention", &inputs, &outputs, &attributes);
            output
        });
        let bytes = graph.model(21);
        let rewritten = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &Options::default()).unwrap();
        for layer in rewritten.layers() {
            assert_eq!((layer.form, layer.window), (Form::GroupQueryAttention, Some(expected)), "{local}");
        }
        same_as_before(&format!("gqa.bias.window.{local}"), &bytes, &rewritten);
    }
}

/// Without pasts of its own, the operator lets the first new token attend to the first key alone.
#[test]
fn an_operator_that_is_causal_over_joined_keys_is_refused() {
    for (operator, causal) in [("Attention", "is_causal"), ("com.microsoft.MultiHeadAttention", "unidirectional")] {
        let graph = Decoder::new(HEADS, false).layers(|decoder, layer, [query, key, value]| {
            let [_, presents] = decoder.joined(layer, [key, value], HEADS);
            let is_own = operator == "Attention";
            let query = if is_own { decoder.heads_first(query, HEADS) } else { query.to_owned() };
            let heads = [Attr::Int(causal, 1), Attr::Int("num_heads", HEADS)];
            let attributes = if is_own { &heads[..1] } else { &heads[..] };
            let attended = decoder.graph.node(operator, &[&query, &presents[0], &presents[1]], attributes);
            if is_own { decoder.packed(&attended) } else { attended }
        });
        let bytes = graph.model(23);
        let error = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &Options::default()).unwrap_err();
        assert!(error.to_string().contains("counts from the first of them"), "{operator}: {error}");
    }
}
