//! Merged decoders, with one branch with a past and one without: the branch with a past is kept.

use kvtide_onnx::{Error, Form, Model, Options, RefusalKind, Rewritten, Weights};

use crate::support::build::{Attr, BOOL, DIM, Decoder, F32, Graph, HEADS, Message, Size};
use crate::support::runtime::same_as_before;

/// A plain decoder.
fn decoder() -> Graph {
    Decoder::new(HEADS, false).layers(|decoder, layer, [query, key, value]| {
        let query = decoder.heads_first(query, HEADS);
        let [pasts, presents] = decoder.joined(layer, [key, value], HEADS);
        let seen = decoder.seen(&pasts[0], None);
        let graph = &mut decoder.graph;
        let keys = graph.node("Transpose", &[&presents[0]], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let scores = graph.node("MatMul", &[&query, &keys], &[]);
        let low = graph.floats(&[], &[-1e9]);
        let scores = graph.node("Where", &[&seen, &scores, &low], &[]);
        let weights = graph.node("Softmax", &[&scores], &[]);
        let attended = graph.node("MatMul", &[&weights, &presents[1]], &[]);
        decoder.packed(&attended)
    })
}

/// The fields of a graph, each with its number; all of them are messages.
fn fields(graph: &Graph) -> Vec<(u64, Vec<u8>)> {
    let bytes = &graph.fields.0;
    let (mut all, mut at) = (Vec::new(), 0);
    let varint = |at: &mut usize| {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[*at];
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    while at < bytes.len() {
        let number = varint(&mut at) >> 3;
        let length = varint(&mut at) as usize;
        all.push((number, bytes[at..at + length].to_vec()));
        at += length;
    }
    all
}

/// Writes other names of the same length everywhere.
fn renamed(bytes: &[u8], names: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (from, to) in names {
        while let Some(at) = bytes.windows(from.len()).position(|window| window == from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    }
    bytes
}

/// A merged decoder whose outputs are those of an `If`.
fn merged(condition: &str, outputs: usize) -> Vec<u8> {
    let decoder = decoder();
    let inner = [("logits", "Logits"), ("present.", "Present.")];
    let branch = |name: &str, more: &[(&str, &str)], empty: Graph| {
        let names = [inner.as_slice(), more].concat();
        let body = fields(&decoder).into_iter().filter(|field| [1, 5, 12].contains(&field.0));
        let mut message = empty.fields.text(2, name);
        let mut given = outputs;
        for (number, bytes) in body {
            if number == 12 {
                if given == 0 {
                    continue;
                }
                given -= 1;
            }
            message = message.bytes(number, &renamed(&bytes, &names));
        }
        message
    };
    let mut empty = Graph::default();
    for name in (0..2).flat_map(|layer| ["key", "value"].map(|side| format!("Past_key_values.{layer}.{side}"))) {
        let none =
            Message::default().int(1, 1).int(1, HEADS).int(1, 0).int(1, DIM).int(2, F32).text(8, &name).bytes(9, &[]);
        empty.fields = std::mem::take(&mut empty.fields).bytes(5, &none.0);
    }
    let branches = [
        Attr::Graph("then_branch", branch("cached", &[], Graph::default())),
        Attr::Graph("else_branch", branch("uncached", &[("past_key", "Past_key")], empty)),
    ];
    let mut graph = Graph::default();
    for (number, bytes) in fields(&decoder).into_iter().filter(|field| [11, 12].contains(&field.0)) {
        graph.fields = std::mem::take(&mut graph.fields).bytes(number, &bytes);
    }
    graph.input("use_cache_branch", BOOL, &[Size::Is(1)]);
    graph.input("another", BOOL, &[Size::Is(1)]);
    let names: Vec<String> = (0..2)
        .flat_map(|layer| ["key", "value"].map(|side| format!("present.{layer}.{side}")))
        .chain(["logits".into()])
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    graph.node_to("If", &[condition], &names, &branches);
    graph.model(17)
}

fn rewrite(bytes: &[u8]) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options::default())
}

#[test]
fn the_branch_with_a_past_takes_the_place_of_both() {
    let bytes = merged("use_cache_branch", 5);
    let rewritten = rewrite(&bytes).unwrap();
    let forms: Vec<Form> = rewritten.layers().iter().map(|layer| layer.form).collect();
    assert_eq!(forms, [Form::Plain; 2]);
    let found = rewritten.inspection();
    assert!(found.dropped_inputs.contains(&"use_cache_branch".to_owned()), "{:?}", found.dropped_inputs);
    assert_eq!(found.outputs.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["logits"]);
    assert_eq!(found.inputs.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["input_ids"]);
    let written = rewritten.model().to_bytes(&bytes, Weights::Inline).unwrap();
    assert!(Model::read(&written).is_ok());
    same_as_before("merged", &bytes, &rewritten);
}

#[test]
fn other_branches_are_refused_by_name() {
    for (bytes, expected, of) in [
        (merged("another", 5), "it is inside a subgraph of", RefusalKind::Subgraph),
        (merged("use_cache_branch", 4), "then_branch", RefusalKind::Form),
    ] {
        match rewrite(&bytes) {
            Err(Error::Unrecognised { operator, reason, kind, .. }) => {
                assert_eq!(kind, of);
                assert!(
                    ["If", "Softmax"].contains(&operator.as_str()) && reason.contains(expected),
                    "{operator}: {reason}"
                );
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
    }
}
