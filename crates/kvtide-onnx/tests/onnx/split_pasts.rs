//! Pasts whose rows have keys and values beside each other, as older exports of gpt_bigcode have them: with one head for all
//! queries, or with heads.

use kvtide_onnx::{Form, Layout, Model, Options, Rewritten};

use crate::support::build::{Attr, DIM, Decoder, F32, Graph, HEADS, Size};
use crate::support::runtime::same_as_before;

/// The nodes that take keys and values out of the rows.
#[derive(Clone, Copy, Debug)]
enum Taking {
    Sizes,
    Equal,
    Slices,
}

/// The scores of one head of keys.
#[derive(Clone, Copy, Debug)]
enum Scores {
    /// Tokens and heads are one axis of queries.
    Rows,
    /// The same, and zeros are added to them.
    Sum,
    /// Queries have their heads first, and keys are repeated for each.
    Repeated,
}

/// A past of keys and values as an input, and its present as an output.
fn port(graph: &mut Graph, layer: usize, heads: Option<i64>) -> [String; 2] {
    ["past_key_values", "present"].map(|stem| {
        let name = format!("{stem}.{layer}.key_value");
        let rows = Size::Named(if stem == "present" { "total" } else { "past" });
        let dims: Vec<Size> = [Some(Size::Named("batch")), heads.map(Size::Is), Some(rows), Some(Size::Is(2 * DIM))]
            .into_iter()
            .flatten()
            .collect();
        if stem == "present" {
            graph.output(&name, F32, &dims);
        } else {
            graph.input(&name, F32, &dims);
        }
        name
    })
}

fn halves(graph: &mut Graph, name: &str, taking: Taking) -> [String; 2] {
    let last = Attr::Int("axis", -1);
    let made = [graph.fresh("half"), graph.fresh("half")];
    match taking {
        Taking::Sizes => {
            let sizes = graph.ints(&[2], &[DIM, DIM]);
            graph.node_to("Split", &[name, &sizes], &[&made[0], &made[1]], &[last]);
            made
        }
        Taking::Equal => {
            graph.node_to("Split", &[name], &[&made[0], &made[1]], &[last]);
            made
        }
        Taking::Slices => [(0, DIM), (DIM, i64::MAX)].map(|(from, to)| {
            let [from, to, axis] = [from, to, -1].map(|number| graph.ints(&[1], &[number]));
            graph.node("Slice", &[name, &from, &to, &axis], &[])
        }),
    }
}

/// The keys that each query attends to, `[new, total]`, by the length of the past.
fn seen(decoder: &mut Decoder, past: &str, axis: i64) -> String {
    let before = decoder.size_of(past, axis);
    let new = decoder.size_of("input_ids", 1);
    let graph = &mut decoder.graph;
    let total = graph.node("Add", &[&before, &new], &[]);
    let [zero, one] = [0, 1].map(|number| graph.ints(&[], &[number]));
    let behind = graph.ints(&[1], &[1]);
    let keys = graph.node("Range", &[&zero, &total, &one], &[]);
    let queries = graph.node("Range", &[&before, &total, &one], &[]);
    let queries = graph.node("Unsqueeze", &[&queries, &behind], &[]);
    graph.node("LessOrEqual", &[&keys, &queries], &[])
}

/// The scores of rows of queries and keys.
fn scaled(graph: &mut Graph, query: &str, keys: &str) -> String {
    let turned = graph.node("Transpose", &[keys], &[Attr::Ints("perm", vec![0, 2, 1])]);
    let scores = graph.node("MatMul", &[query, &turned], &[]);
    let scale = graph.floats(&[], &[0.3]);
    graph.node("Mul", &[&scores, &scale], &[])
}

/// Hides scores, and weighs.
fn weights(graph: &mut Graph, scores: &str, seen: &str) -> String {
    let low = graph.floats(&[], &[-1e9]);
    let scores = graph.node("Where", &[seen, scores, &low], &[]);
    graph.node("Softmax", &[&scores], &[Attr::Int("axis", -1)])
}

/// A decoder with one head of keys and values.
fn one_head(taking: Taking, form: Scores) -> Graph {
    Decoder::new(1, false).layers(|decoder, layer, [query, key, value]| {
        let [past, present] = port(&mut decoder.graph, layer, None);
        let new = decoder.graph.node("Concat", &[key, value], &[Attr::Int("axis", -1)]);
        decoder.graph.node_to("Concat", &[&past, &new], &[&present], &[Attr::Int("axis", 1)]);
        let seen = seen(decoder, &past, 1);
        let graph = &mut decoder.graph;
        let [keys, values] = halves(graph, &present, taking);
        if let Scores::Repeated = form {
            let query = decoder.heads_first(query, HEADS);
            let graph = &mut decoder.graph;
            let (axis, heads) = (graph.ints(&[1], &[1]), graph.ints(&[4], &[1, HEADS, 1, 1]));
            let [keys, values] = [keys, values].map(|name| {
                let apart = graph.node("Unsqueeze", &[&name, &axis], &[]);
                graph.node("Expand", &[&apart, &heads], &[])
            });
            let turned = graph.node("Transpose", &[&keys], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
            let scores = graph.node("MatMul", &[&query, &turned], &[]);
            let weights = weights(graph, &scores, &seen);
            let attended = graph.node("MatMul", &[&weights, &values], &[]);
            return decoder.packed(&attended);
        }
        let rows = graph.ints(&[3], &[0, -1, DIM]);
        let query = graph.node("Reshape", &[query, &rows], &[]);
        let mut scores = scaled(graph, &query, &keys);
        let flat = graph.node("Shape", &[&scores], &[]);
        if let Scores::Sum = form {
            let zeros = graph.node("ConstantOfShape", &[&flat], &[]);
            scores = graph.node("Add", &[&zeros, &scores], &[]);
        }
        let [zero, two, three, heads] = [0, 2, 3, HEADS].map(|number| graph.ints(&[1], &[number]));
        let tokens = graph.node("Shape", &["input_ids"], &[]);
        let end = graph.node("Slice", &[&flat, &two, &three, &zero], &[]);
        let shape = graph.node("Concat", &[&tokens, &heads, &end], &[Attr::Int("axis", 0)]);
        let scores = graph.node("Reshape", &[&scores, &shape], &[]);
        let middle = graph.ints(&[2], &[0, 2]);
        let seen = graph.node("Unsqueeze", &[&seen, &middle], &[]);
        let weights = weights(graph, &scores, &seen);
        let weights = graph.node("Reshape", &[&weights, &flat], &[]);
        let attended = graph.node("MatMul", &[&weights, &values], &[]);
        let packed = graph.ints(&[3], &[0, -1, HEADS * DIM]);
        graph.node("Reshape", &[&attended, &packed], &[])
    })
}

/// A decoder with as many heads of keys and values as of queries, whose products have batch and heads as one axis.
fn with_heads(taking: Taking) -> Graph {
    Decoder::new(HEADS, false).layers(|decoder, layer, operands| {
        let [past, present] = port(&mut decoder.graph, layer, Some(HEADS));
        let [query, key, value] = operands.map(|name| decoder.heads_first(name, HEADS));
        let new = decoder.graph.node("Concat", &[&key, &value], &[Attr::Int("axis", -1)]);
        decoder.graph.node_to("Concat", &[&past, &new], &[&present], &[Attr::Int("axis", -2)]);
        let seen = seen(decoder, &past, 2);
        let graph = &mut decoder.graph;
        let [keys, values] = halves(graph, &present, taking);
        let turned = graph.node("Transpose", &[&keys], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let scores = graph.node("MatMul", &[&query, &turned], &[]);
        let weights = weights(graph, &scores, &seen);
        let attended = graph.node("MatMul", &[&weights, &values], &[]);
        decoder.packed(&attended)
    })
}

fn accepted(name: &str, graph: &Graph, heads: u32, layout: Layout) {
    let bytes = graph.model(18);
    let rewritten = Rewritten::new(&bytes, &Model::read(&bytes).unwrap(), &Options::default());
    let rewritten = rewritten.unwrap_or_else(|error| panic!("{name}: {error}"));
    for layer in rewritten.layers() {
        assert_eq!((layer.form, layer.layout, layer.kv_num_heads), (Form::Plain, layout, heads), "{name}");
        assert_eq!((layer.head_dim, layer.value_dim), (DIM as u32, DIM as u32), "{name}");
    }
    let inspection = rewritten.inspection();
    let names: Vec<&str> = inspection.inputs.iter().chain(&inspection.outputs).map(|port| &*port.name).collect();
    assert!(names.iter().all(|name| !name.contains("past") && !name.contains("present")), "{name}: {names:?}");
    same_as_before(&format!("split.{name}"), &bytes, &rewritten);
}

#[test]
fn one_head_of_keys_and_values_beside_each_other() {
    for form in [Scores::Rows, Scores::Sum] {
        accepted(&format!("{form:?}"), &one_head(Taking::Sizes, form), 1, Layout::Packed);
    }
    accepted("Repeated", &one_head(Taking::Slices, Scores::Repeated), 1, Layout::HeadsFirst);
}

#[test]
fn heads_of_keys_and_values_beside_each_other() {
    for taking in [Taking::Sizes, Taking::Slices] {
        accepted(&format!("heads.{taking:?}"), &with_heads(taking), HEADS as u32, Layout::HeadsFirst);
    }
}

#[test]
fn a_split_graph_has_the_pasts_of_other_exports() {
    let bytes = one_head(Taking::Equal, Scores::Rows).model(13);
    let model = Model::read(&bytes).unwrap();
    let split = model.split_pasts(&bytes.as_slice()).unwrap().unwrap();
    let dims = ["batch", "1", "past", "16"].map(str::to_owned);
    for half in ["key", "value"] {
        let port = split.inputs().into_iter().find(|port| port.name == format!("past_key_values.1.{half}")).unwrap();
        assert_eq!(port.dims, dims);
        assert!(split.outputs().iter().any(|port| port.name == format!("present.1.{half}")));
    }
    assert!(split.inputs().iter().chain(&split.outputs()).all(|port| !port.name.ends_with("key_value")));
    assert!(split.split_pasts(&bytes.as_slice()).unwrap().is_none());
}
