//! GroupQueryAttention over pasts of codes: the rewrite drops pasts and scales, and the rest is the graph of floats.

use kvtide_onnx::{Error, Model, Options, RefusalKind, Rewritten};

use crate::support::build::{Attr, DIM, Decoder, F32, Graph, HEADS, I8, Size, U8};
use crate::support::runtime::same_as;

/// The type of float8e4m3fn.
const F8: i64 = 17;

fn rewrite(bytes: &[u8]) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options::default())
}

/// A decoder with pasts of an element type, rows of a size, scales, and attributes.
fn decoder(elements: [i64; 2], row: Size, scales: &[i64], extra: &[Attr]) -> Graph {
    Decoder::new(2, false).layers(|decoder, layer, operands| {
        let [pasts, presents] = decoder.pasts_of(layer, elements[0], row);
        let other = format!("past_key_values.{layer}.other");
        if elements[1] != elements[0] {
            let dims = [Size::Named("batch"), Size::Is(2), Size::Named("past"), row];
            decoder.graph.input(&other, elements[1], &dims);
        }
        let value = if elements[1] == elements[0] { &pasts[1] } else { &other };
        let [last, total] = decoder.lengths();
        let mut inputs = operands.map(str::to_owned).to_vec();
        inputs.extend([pasts[0].clone(), value.clone(), last, total]);
        inputs.resize(12, String::new());
        let scale = |graph: &mut Graph| graph.floats(scales, &vec![0.05; scales.iter().product::<i64>() as usize]);
        inputs.extend([scale(&mut decoder.graph), scale(&mut decoder.graph)]);
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let output = decoder.graph.fresh("attended");
        let outputs = [output.as_str(), &presents[0], &presents[1]];
        let mut attributes = vec![Attr::Int("num_heads", HEADS), Attr::Int("kv_num_heads", 2)];
        attributes.extend_from_slice(extra);
        decoder.graph.node_to("com.microsoft.GroupQueryAttention", &inputs, &outputs, &attributes);
        output
    })
}

fn types(kind: &'static str, width: i64) -> [Attr; 3] {
    [Attr::Text("k_quant_type", kind), Attr::Text("v_quant_type", kind), Attr::Int("kv_cache_bit_width", width)]
}

#[test]
fn codes_are_dropped_with_the_pasts_and_leave_the_graph_of_floats() {
    let floats = decoder([F32, F32], Size::Is(DIM), &[1], &[]).model(21);
    for (name, element, row, scales, kind, bits) in [
        ("i8", I8, Size::Is(DIM), vec![1], "PER_TENSOR", 8),
        ("i8.channel", I8, Size::Named("kv_cache_dim"), vec![1, 2, 1, DIM], "PER_CHANNEL", 8),
        ("f8", F8, Size::Is(DIM), vec![1], "PER_TENSOR", 8),
        ("u8", U8, Size::Is(DIM / 2), vec![1], "PER_TENSOR", 4),
        ("u8.channel", U8, Size::Named("kv_cache_dim"), vec![2 * DIM], "PER_CHANNEL", 4),
    ] {
        let bytes = decoder([element, element], row, &scales, &types(kind, bits)).model(21);
        let rewritten = rewrite(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        for layer in rewritten.layers() {
            assert_eq!((layer.past_bits, layer.element.to_string().as_str()), (Some(bits as u32), "f32"), "{name}");
            assert_eq!((layer.head_dim, layer.value_dim), (DIM as u32, DIM as u32), "{name}");
        }
        let inspection = rewritten.inspection();
        assert_eq!((inspection.inputs.len(), inspection.outputs.len()), (1, 1), "{name}");
        assert!(inspection.to_string().contains(&format!("past of {bits} bits")), "{inspection}");
        same_as(&format!("codes.{name}"), &floats, &bytes, &rewritten, &Options::default());
    }
}

#[test]
fn a_past_of_floats_has_no_bits() {
    let rewritten = rewrite(&decoder([F32, F32], Size::Is(DIM), &[1], &types("NONE", 0)).model(21)).unwrap();
    assert_eq!(rewritten.layers()[0].past_bits, None);
}

#[test]
fn types_that_contradict_the_pasts_are_refused() {
    for (elements, attributes, expected) in [
        ([I8, I8], types("NONE", 8), "k_quant_type is NONE, but past_key_values.0.key is i8"),
        ([F32, F32], types("PER_TENSOR", 8), "k_quant_type is PER_TENSOR, but past_key_values.0.key is f32"),
        ([I8, I8], types("PER_TOKEN", 8), "k_quant_type is PER_TOKEN, expected NONE, PER_TENSOR or PER_CHANNEL"),
        ([I8, I8], types("PER_TENSOR", 4), "kv_cache_bit_width is 4, but past_key_values.0.key is i8, expected 8"),
        ([U8, U8], types("PER_TENSOR", 8), "kv_cache_bit_width is 8, but past_key_values.0.key is u8, expected 4"),
        ([I8, F32], types("PER_TENSOR", 8), "its pasts are i8 and f32"),
    ] {
        match rewrite(&decoder(elements, Size::Is(DIM), &[1], &attributes).model(21)) {
            Err(error @ Error::Unrecognised { kind, .. }) => {
                let text = error.to_string();
                assert_eq!(kind, RefusalKind::QuantisedPast);
                assert!(text.contains(expected) && text.len() <= 300, "{text}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn a_past_of_codes_that_another_operator_reads_is_refused() {
    let mut graph = decoder([F32, F32], Size::Is(DIM), &[1], &[]);
    let dims = [Size::Named("batch"), Size::Is(2), Size::Named("past"), Size::Is(DIM)];
    graph.input("past.codes", I8, &dims);
    graph.node_to("Cast", &["past.codes"], &["wide"], &[Attr::Int("to", F32)]);
    let text = rewrite(&graph.model(21)).unwrap_err().to_string();
    assert!(text.contains("past.codes is a past that no recognised attention reads"), "{text}");
}

#[test]
fn attention_that_sees_later_tokens_is_refused() {
    let text = rewrite(&decoder([F32, F32], Size::Is(DIM), &[1], &[Attr::Int("causal", 0)]).model(21)).unwrap_err();
    assert!(text.to_string().contains("causal is 0"), "{text}");
    assert!(rewrite(&decoder([F32, F32], Size::Is(DIM), &[1], &[Attr::Int("causal", 1)]).model(21)).is_ok());
}
