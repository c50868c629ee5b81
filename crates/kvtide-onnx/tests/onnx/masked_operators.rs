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
