//! The context length of graphs: of hand-made tables of every kind, and of the fixtures.

use kvtide_onnx::Model;

use crate::support;
use crate::support::build::{Attr, DIM, Decoder, F32, Graph, HEADS, I64, Message, Size};

fn context(graph: &Graph) -> Option<u64> {
    Model::read(&graph.model(21)).unwrap().context_length()
}

/// A decoder whose layers have GroupQueryAttention with these tables.
fn grouped(rotary: i64, table: impl Fn(&mut Graph, usize) -> String) -> Graph {
    Decoder::new(2, true).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let graph = &mut decoder.graph;
        let length = graph.ints(&[1], &[1]);
        let cos = table(graph, layer);
        let inputs = [query, key, value, &pasts[0], &pasts[1], &length, &length, &cos, &cos];
        let attributes = [Attr::Int("num_heads", HEADS), Attr::Int("kv_num_heads", 2), Attr::Int("do_rotary", rotary)];
        let output = graph.fresh("attended");
        let outputs = [output.as_str(), &presents[0], &presents[1]];
        graph.node_to("com.microsoft.GroupQueryAttention", &inputs, &outputs, &attributes);
        output
    })
}

/// A table that a branch chooses, of so many rows.
fn branch(name: &str, rows: i64) -> Message {
    let mut graph = Graph::default();
    let table = graph.weight(&[rows, DIM / 2], 1.);
    let output = graph.node("Identity", &[&table], &[]);
    graph.output(&output, F32, &[]);
    graph.fields.clone().text(2, name)
}

#[test]
fn the_shortest_table_of_all_layers_counts() {
    let rows = |layer| if layer == 0 { 64 } else { 48 };
    let graph = grouped(1, |graph, layer| graph.weight(&[rows(layer), DIM / 2], 1.));
    assert_eq!(context(&graph), Some(48));
    assert_eq!(context(&grouped(0, |graph, _| graph.weight(&[48, DIM / 2], 1.))), None, "nothing reads it");
}

#[test]
fn tables_are_found_behind_casts_and_branches() {
    let cast = grouped(1, |graph, _| {
        let table = graph.weight(&[40, DIM / 2], 1.);
        let same = graph.node("Identity", &[&table], &[]);
        graph.node("Cast", &[&same], &[Attr::Int("to", F32)])
    });
    assert_eq!(context(&cast), Some(40));
    let chosen = grouped(1, |graph, _| {
        let (long, count) = (graph.ints(&[], &[32]), graph.node("Size", &["attention_mask"], &[]));
        let is_long = graph.node("Greater", &[&count, &long], &[]);
        let branches =
            [Attr::Graph("then_branch", branch("long", 128)), Attr::Graph("else_branch", branch("short", 32))];
        graph.node("If", &[&is_long], &branches)
    });
    assert_eq!(context(&chosen), Some(128), "the longer one is for what is too long for the other");
    let computed = grouped(1, |graph, _| {
        let table = graph.weight(&[40, DIM / 2], 1.);
        graph.node("Cos", &[&table], &[])
    });
    assert_eq!(context(&computed), None, "what the graph computes has no end that is known");
}

/// Each branch of each node leads to the node before it: 8 branches of 12 nodes make 2^36 ways.
#[test]
fn tables_behind_many_branches_are_followed_once() {
    let graph = grouped(1, |graph, _| {
        let mut table = graph.weight(&[40, DIM / 2], 1.);
        let one = graph.ints(&[], &[1]);
        for _ in 0..12 {
            let mut inner = Graph::default();
            inner.output(&table, F32, &[]);
            let branch = inner.fields.clone().text(2, "branch");
            let names = ["then_branch", "else_branch", "a", "b", "c", "d", "e", "f"];
            let branches = names.map(|name| Attr::Graph(name, branch.clone()));
            table = graph.node("If", &[&one], &branches);
        }
        table
    });
    assert_eq!(context(&graph), Some(40));
}

#[test]
fn operators_that_turn_and_tables_that_are_learned() {
    let with = |add: &dyn Fn(&mut Graph)| {
        let mut graph = grouped(0, |graph, _| graph.weight(&[1, 1], 1.));
        add(&mut graph);
        context(&graph)
    };
    let turned = |operator: &'static str, cos_at: usize| {
        with(&|graph| {
            let table = graph.weight(&[24, DIM / 2], 1.);
            let positions = "position_ids".to_owned();
            let mut inputs = vec!["input_ids".to_owned(), positions, table.clone(), table.clone()];
            if cos_at == 1 {
                inputs = vec!["input_ids".to_owned(), table.clone(), table, "position_ids".to_owned()];
            }
            let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
            graph.node(operator, &inputs, &[]);
        })
    };
    assert_eq!(turned("com.microsoft.RotaryEmbedding", 2), Some(24));
    assert_eq!(turned("RotaryEmbedding", 1), Some(24));
    let learned = with(&|graph| {
        let (table, shape) = (graph.weight(&[20, 32], 1.), graph.ints(&[2], &[-1, 1]));
        let positions = graph.node("Reshape", &["position_ids", &shape], &[]);
        graph.node("Gather", &[&table, &positions], &[]);
    });
    assert_eq!(learned, Some(20));
    let shifted = with(&|graph| {
        let (table, two) = (graph.weight(&[22, 32], 1.), graph.ints(&[], &[2]));
        let positions = graph.node("Add", &["position_ids", &two], &[]);
        graph.node("Gather", &[&table, &positions], &[]);
    });
    assert_eq!(shifted, None, "positions that were moved are not guessed at");
    let hidden = with(&|graph| {
        // A name inside of a branch is another tensor.
        let mut inner = Graph::default();
        inner.input("position_ids", I64, &[Size::Is(1)]);
        let table = inner.weight(&[7, 32], 1.);
        let row = inner.node("Gather", &[&table, "position_ids"], &[]);
        inner.output(&row, F32, &[]);
        let one = graph.ints(&[], &[1]);
        graph.node("If", &[&one], &[Attr::Graph("then_branch", inner.fields.clone().text(2, "then"))]);
    });
    assert_eq!(hidden, None);
}

#[test]
fn fixtures_have_the_context_that_their_configs_say() {
    for graph in support::GRAPHS {
        let model = Model::read(&support::bytes(graph).as_slice()).unwrap();
        let expected = graph.contains("gqa").then_some(512);
        assert_eq!(model.context_length(), expected, "{graph}");
    }
}
