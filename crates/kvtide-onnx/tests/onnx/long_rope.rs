//! Tables of rotary factors that a graph chooses by the length of its input, as LongRoPE does.

use kvtide_onnx::{Error, LongRope, Model, Options, Rewritten};

use crate::support;
use crate::support::build::{Attr, DIM, Decoder, F32, Graph, Size};
use crate::support::runtime::same_as_before;

/// A branch with two tables of so many rows, each computed by a node.
fn branch(which: &str, rows: i64, size: f32) -> support::build::Message {
    let mut inner = Graph::default();
    // Names that neither the other branch nor the graph has.
    (0..if which == "long" { 1000 } else { 2000 }).for_each(|_| drop(inner.fresh("unused")));
    for table in ["cos", "sin"] {
        let weight = inner.weight(&[rows, DIM / 2], size);
        inner.node_to("Identity", &[&weight], &[&format!("{table} of {which}")], &[]);
        inner.output(&format!("{table} of {which}"), F32, &[Size::Is(rows), Size::Is(DIM / 2)]);
    }
    inner.fields.clone().text(2, which)
}

/// A decoder whose tables are chosen once, for both layers: those of up to `threshold` tokens have `rows` rows.
fn decoder(rows: i64, condition: impl Fn(&mut Decoder) -> String, reader: impl Fn(&mut Decoder)) -> Graph {
    let made = std::cell::Cell::new(false);
    Decoder::new(2, true).layers(|decoder, layer, operands| {
        if !made.replace(true) {
            let condition = condition(decoder);
            let branches = [
                Attr::Graph("then_branch", branch("long", 64, 2.)),
                Attr::Graph("else_branch", branch("short", rows, 1.)),
            ];
            decoder.graph.node_to("If", &[&condition], &["cos", "sin"], &branches);
            reader(decoder);
        }
        decoder.grouped(layer, operands, &["cos", "sin"])
    })
}

fn longer_than(decoder: &mut Decoder, tokens: i64) -> String {
    let (limit, total) = (decoder.graph.ints(&[], &[tokens]), decoder.size_of("attention_mask", 1));
    decoder.graph.node("Greater", &[&total, &limit], &[])
}

fn rewrite(graph: &Graph) -> Result<Rewritten, Error> {
    let bytes = graph.model(21);
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options::default())
}

fn reason(graph: &Graph) -> String {
    match rewrite(graph) {
        Err(Error::Unrecognised { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_sequence_reads_the_tables_of_its_length() {
    for (threshold, rows) in [(5, 5), (5, 8), (12, 12), (40, 64)] {
        let graph = decoder(rows, |decoder| longer_than(decoder, threshold), |_| ());
        let rewritten = rewrite(&graph).unwrap();
        let expected = LongRope { threshold: threshold as u64, offset: rows as u64 };
        assert_eq!(rewritten.long_rope(), Some(expected));
        // Prompts of 1, 3 and 13 tokens.
        same_as_before(&format!("long_rope.{threshold}.{rows}"), &graph.model(21), &rewritten);
    }
    let by_positions = decoder(
        16,
        |decoder| {
            let (limit, keep) = (decoder.graph.ints(&[], &[6]), Attr::Int("keepdims", 0));
            let last = decoder.graph.node("ReduceMax", &["position_ids"], &[keep]);
            decoder.graph.node("GreaterOrEqual", &[&last, &limit], &[])
        },
        |_| (),
    );
    let rewritten = rewrite(&by_positions).unwrap();
    assert_eq!(rewritten.long_rope(), Some(LongRope { threshold: 6, offset: 16 }));
    same_as_before("long_rope.positions", &by_positions.model(21), &rewritten);
}

/// A decoder with tables for both lengths in one: positions of inputs longer than `threshold` have an offset. `readers` is
/// given the positions with the offset.
fn shifted(threshold: i64, offset: [i64; 2], reader: impl Fn(&mut Decoder, &str)) -> Graph {
    let rows = std::cell::OnceCell::new();
    Decoder::new(2, true).layers(|decoder, layer, [q, k, v]| {
        let [cos, sin] = rows.get_or_init(|| {
            let graph = &mut decoder.graph;
            let (limit, keep) = (graph.ints(&[], &[threshold - 1]), Attr::Int("keepdims", 0));
            let last = graph.node("ReduceMax", &["position_ids"], &[keep]);
            let is_long = graph.node("Greater", &[&last, &limit], &[]);
            let offsets = offset.map(|offset| graph.ints(&[], &[offset]));
            let added = graph.node("Where", &[&is_long, &offsets[1], &offsets[0]], &[]);
            let places = graph.node("Add", &["position_ids", &added], &[]);
            let tables = [1., 2.].map(|size| graph.weight(&[64 + offset[1], DIM / 2], size));
            let rows = tables.map(|table| graph.node("Gather", &[&table, &places], &[]));
            reader(decoder, &places);
            rows
        });
        let mut turned = |name: &str, heads: i64| {
            decoder.graph.node("RotaryEmbedding", &[name, cos, sin], &[Attr::Int("num_heads", heads)])
        };
        let (q, k) = (turned(q, 4), turned(k, 2));
        decoder.grouped(layer, [&q, &k, v], &[])
    })
}

#[test]
fn each_sequence_adds_the_offset_of_its_length() {
    for (threshold, offset) in [(5, 5), (12, 40)] {
        let bytes = shifted(threshold, [0, offset], |_, _| ()).model(23);
        let rewritten = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &Options::default()).unwrap();
        let expected = LongRope { threshold: threshold as u64, offset: offset as u64 };
        assert_eq!(rewritten.long_rope(), Some(expected));
        same_as_before(&format!("long_rope.offset.{threshold}.{offset}"), &bytes, &rewritten);
    }
    let both = reason(&shifted(5, [3, 8], |_, _| ()));
    assert!(both.contains("it adds 3 to the positions of short inputs, and 8 to others"), "{both}");
    let bare = reason(&shifted(5, [0, 8], |decoder, _| {
        decoder.graph.node_to("Identity", &["position_ids"], &["other"], &[]);
        decoder.graph.output("other", 7, &[Size::Named("batch"), Size::Named("new")]);
    }));
    assert!(bare.contains("it reads positions"), "{bare}");
}

#[test]
fn other_choices_are_refused() {
    let few = decoder(4, |decoder| longer_than(decoder, 5), |_| ());
    assert!(reason(&few).contains("fewer rows"), "{}", reason(&few));
    let never = decoder(8, |decoder| longer_than(decoder, 1 << 40), |_| ());
    assert!(reason(&never).contains("the same for all lengths"), "{}", reason(&never));
    let by_new = decoder(
        8,
        |decoder| {
            let (limit, new) = (decoder.graph.ints(&[], &[5]), decoder.size_of("input_ids", 1));
            decoder.graph.node("Greater", &[&new, &limit], &[])
        },
        |_| (),
    );
    assert!(reason(&by_new).contains("the same for all lengths"), "{}", reason(&by_new));
    let by_tokens = decoder(
        8,
        |decoder| {
            let (limit, keep) = (decoder.graph.ints(&[], &[5]), Attr::Int("keepdims", 0));
            let most = decoder.graph.node("ReduceMax", &["input_ids"], &[keep]);
            decoder.graph.node("Greater", &[&most, &limit], &[])
        },
        |_| (),
    );
    assert!(reason(&by_tokens).contains("the dimensions of cos are not known"), "{}", reason(&by_tokens));
    let read = decoder(
        8,
        |decoder| longer_than(decoder, 5),
        |decoder| {
            decoder.graph.node_to("Identity", &["position_ids"], &["other"], &[]);
            decoder.graph.output("other", 7, &[Size::Named("batch"), Size::Named("new")]);
        },
    );
    assert!(reason(&read).contains("it reads positions"), "{}", reason(&read));
}
