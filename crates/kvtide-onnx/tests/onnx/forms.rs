//! Every form of attention, in decoders that are built here: what is found, what is an error, and, if onnxruntime-node
//! is installed, equal results before and after the rewrite.

use kvtide_onnx::{Error, Form, Layer, Layout, Model, Options, Rewritten, Weights};

use crate::support::build::{Attr, DIM, Decoder, F32, Graph, HEADS, I64, Size};
use crate::support::runtime::{same_as, same_as_before};

fn rewrite(bytes: &[u8]) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options::default())
}

/// Rewrites a model that has to be recognised, checks its form and its numbers, and gives its first layer.
fn accepted(name: &str, graph: &Graph, opset: i64, form: Form) -> Layer {
    let bytes = graph.model(opset);
    let rewritten = rewrite(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    let written = rewritten.model().to_bytes(&bytes, Weights::Inline).unwrap();
    let again = Model::read(&written).unwrap();
    assert_eq!(again.to_bytes(&written, Weights::Inline).unwrap(), written, "{name}");
    assert_eq!(rewritten.layers().len(), 2);
    for (number, layer) in rewritten.layers().iter().enumerate() {
        assert_eq!((layer.layer, layer.form), (number as u32, form), "{name}");
        assert_eq!((layer.num_heads, layer.head_dim), (HEADS as u32, DIM as u32), "{name}");
    }
    let ports: Vec<&str> = rewritten.inspection().inputs.iter().map(|port| port.name.as_str()).collect();
    assert!(!ports.iter().any(|port| port.starts_with("past") || *port == "attention_mask"), "{name}: {ports:?}");
    assert_eq!(rewritten.inspection().outputs.len(), 1, "{name}");
    same_as_before(name, &bytes, &rewritten);
    rewritten.layers()[0].clone()
}

/// The node, operator and reason of a refusal.
fn refused(graph: &Graph, opset: i64) -> (String, String, String) {
    match rewrite(&graph.model(opset)) {
        Err(Error::Unrecognised { node, operator, reason, .. }) => (node, operator, reason),
        other => panic!("{other:?}"),
    }
}

/// A decoder of GroupQueryAttention.
fn grouped(packed: bool, rotary: bool, extra: &[Attr], more: impl Fn(&mut Graph, &mut Vec<String>)) -> Graph {
    Decoder::new(2, false).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let [last, total] = decoder.lengths();
        let graph = &mut decoder.graph;
        let all = graph.node("Concat", &[query, key, value], &[Attr::Int("axis", -1)]);
        let mut inputs: Vec<String> = if packed {
            vec![all, String::new(), String::new()]
        } else {
            [query, key, value].map(str::to_owned).to_vec()
        };
        inputs.extend([pasts[0].clone(), pasts[1].clone(), last, total]);
        let tables = [0, 1].map(|_| graph.weight(&[64, DIM / 2], 2.));
        inputs.extend(if rotary { tables } else { [String::new(), String::new()] });
        inputs.extend([String::new(), String::new()]);
        more(graph, &mut inputs);
        let output = graph.fresh("attended");
        let mut attributes = vec![Attr::Int("num_heads", HEADS), Attr::Int("kv_num_heads", 2)];
        attributes.push(Attr::Int("do_rotary", i64::from(rotary)));
        attributes.extend_from_slice(extra);
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let outputs = [output.as_str(), &presents[0], &presents[1]];
        graph.node_to("com.microsoft.GroupQueryAttention", &inputs, &outputs, &attributes);
        output
    })
}

#[test]
fn group_query_attention_with_everything_that_it_can_have() {
    for packed in [false, true] {
        for rotary in [false, true] {
            let name = format!("gqa.{packed}.{rotary}");
            let layer = accepted(&name, &grouped(packed, rotary, &[], |_, _| ()), 21, Form::GroupQueryAttention);
            assert_eq!(layer.rotary.is_some(), rotary);
            assert_eq!((layer.kv_num_heads, layer.layout, layer.window), (2, Layout::Packed, None));
            assert!((layer.scale - 1. / (DIM as f32).sqrt()).abs() < 1e-6);
        }
    }
    let rules = [Attr::Int("local_window_size", 5), Attr::Float("softcap", 2.), Attr::Float("scale", 0.7)];
    let layer = accepted("gqa.rules", &grouped(true, true, &rules, |_, _| ()), 21, Form::GroupQueryAttention);
    assert_eq!((layer.window, layer.softcap, layer.scale), (Some(5), Some(2.), 0.7));
    let smooth = grouped(false, false, &[Attr::Int("smooth_softmax", 1)], |_, _| ());
    let layer = accepted("gqa.smooth", &smooth, 21, Form::GroupQueryAttention);
    assert_eq!(layer.sinks, Some(vec![0.; 4]));
    let sinks = grouped(false, false, &[], |graph, inputs| {
        inputs.push(graph.floats(&[4], &[0.5, -1., 2., 0.]));
    });
    let layer = accepted("gqa.sinks", &sinks, 21, Form::GroupQueryAttention);
    assert_eq!(layer.sinks, Some(vec![0.5, -1., 2., 0.]));
    let interleaved = grouped(true, true, &[Attr::Int("rotary_interleaved", 1)], |_, _| ());
    assert!(accepted("gqa.interleaved", &interleaved, 21, Form::GroupQueryAttention).rotary.unwrap().interleaved);
}

/// Weights of norms, all different.
fn norms(graph: &mut Graph) -> [String; 2] {
    [1., 2.].map(|first| {
        let weights: Vec<f32> = (0..DIM).map(|at| first + at as f32 / 16.).collect();
        graph.floats(&[DIM], &weights)
    })
}

#[test]
fn norms_inside_of_the_operator_are_those_of_nodes_before_it() {
    let epsilon = [Attr::Float("qk_norm_epsilon", 1e-3)];
    for packed in [false, true] {
        let inside = grouped(packed, true, &epsilon, |graph, inputs| {
            inputs.resize(14, String::new());
            inputs.extend(norms(graph));
            // Weights depend on the number of names before them, which are to be as many in both graphs.
            (0..10).for_each(|_| drop(graph.fresh("unused")));
        });
        let before = grouped(false, true, &[], |graph, inputs| {
            let weights = norms(graph);
            for (input, weight) in inputs.iter_mut().zip(&weights) {
                let (heads, flat) = (graph.ints(&[4], &[0, 0, -1, DIM]), graph.ints(&[3], &[0, 0, -1]));
                let apart = graph.node("Reshape", &[input, &heads], &[]);
                let attributes = [Attr::Int("axis", -1), Attr::Float("epsilon", 1e-3)];
                let normed = graph.node("SimplifiedLayerNormalization", &[&apart, weight], &attributes);
                *input = graph.node("Reshape", &[&normed, &flat], &[]);
            }
        });
        let bytes = inside.model(21);
        let rewritten = rewrite(&bytes).unwrap();
        let (name, options) = (format!("gqa.norms.{packed}"), Options::default());
        same_as(&name, &before.model(21), &bytes, &rewritten, &options);
    }
    let (_, _, reason) = refused(
        &grouped(false, false, &[], |graph, inputs| {
            inputs.resize(14, String::new());
            inputs.push(norms(graph)[0].clone());
        }),
        21,
    );
    assert!(reason.contains("only one of"), "{reason}");
}

/// A decoder of MultiHeadAttention or of ONNX's Attention with the past inside of the operator.
fn whole(
    operator: &'static str,
    places: [usize; 3],
    four: bool,
    causal: Option<Attr>,
    window: Option<i64>,
    extra: &[Attr],
) -> Graph {
    let kv_heads = if operator == "Attention" { 2 } else { HEADS };
    Decoder::new(kv_heads, false).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let mut inputs = [query, key, value].map(str::to_owned).to_vec();
        if four {
            let heads = [HEADS, kv_heads, kv_heads];
            inputs = inputs.iter().zip(heads).map(|(name, heads)| decoder.heads_first(name, heads)).collect();
        }
        inputs.resize(places[2] + 1, String::new());
        if causal.is_none() {
            let seen = decoder.seen(&pasts[0], window);
            inputs[places[0]] = if operator == "Attention" {
                seen
            } else {
                let added = decoder.added(&seen);
                let axes = decoder.graph.ints(&[2], &[0, 1]);
                decoder.graph.node("Unsqueeze", &[&added, &axes], &[])
            };
        }
        inputs[places[1]] = pasts[0].clone();
        inputs[places[2]] = pasts[1].clone();
        let output = decoder.graph.fresh("attended");
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let attributes: Vec<Attr> = causal.iter().chain(extra).cloned().collect();
        decoder.graph.node_to(operator, &inputs, &[&output, &presents[0], &presents[1]], &attributes);
        if four { decoder.packed(&output) } else { output }
    })
}

#[test]
fn multi_head_attention_with_its_own_past() {
    let heads = [Attr::Int("num_heads", HEADS)];
    let operator = "com.microsoft.MultiHeadAttention";
    let causal = Some(Attr::Int("unidirectional", 1));
    let graph = whole(operator, [5, 6, 7], false, causal, None, &heads);
    accepted("mha.causal", &graph, 21, Form::MultiHeadAttention);
    let graph = whole(operator, [5, 6, 7], false, None, Some(3), &heads);
    assert_eq!(accepted("mha.window", &graph, 21, Form::MultiHeadAttention).window, Some(3));
}

#[test]
fn onnx_attention_with_its_own_past() {
    let heads = [Attr::Int("q_num_heads", HEADS), Attr::Int("kv_num_heads", 2), Attr::Float("scale", 0.3)];
    let graph = whole("Attention", [3, 4, 5], false, None, None, &heads);
    let layer = accepted("attention.packed", &graph, 23, Form::Attention);
    assert_eq!((layer.layout, layer.kv_num_heads, layer.scale), (Layout::Packed, 2, 0.3));
    let rules = [Attr::Float("softcap", 3.)];
    let graph = whole("Attention", [3, 4, 5], true, None, Some(4), &rules);
    let layer = accepted("attention.four", &graph, 23, Form::Attention);
    assert_eq!((layer.layout, layer.window, layer.softcap), (Layout::HeadsFirst, Some(4), Some(3.)));
}

/// The operations of a plain attention between its products.
#[derive(Clone, Copy, Default)]
struct Plain {
    window: Option<i64>,
    softcap: Option<f32>,
    by_where: bool,
    both_sides: bool,
    sinks: bool,
    no_mask: bool,
    tiled: bool,
    /// The KV head of each query head, if heads are repeated by a Gather.
    gathered: Option<[i64; 4]>,
    bias: Option<Bias>,
}

/// A bias that is added to scores.
#[derive(Clone, Copy, PartialEq)]
enum Bias {
    /// One number for each head.
    Constant,
    /// Slopes times the positions of keys.
    Keys,
    /// The same, counted from the last key, and scaled after it was added.
    Last,
    /// Rows that end with the last key, cut out of a table of so many.
    Table(i64),
    /// Slopes times the squares of positions.
    Squares,
    /// Slopes before a soft cap.
    Capped,
    /// Slopes up to this position, and none from there on.
    Up(i64),
}

const SLOPES: [f32; 4] = [0.5, 0.25, 0.125, -0.0625];

/// Adds a bias to the scores of an attention.
fn biased(decoder: &mut Decoder, past: &str, scores: &str, bias: Bias) -> String {
    let [_, keys] = decoder.positions(past);
    let total = decoder.graph.node("Shape", &[&keys], &[]);
    let graph = &mut decoder.graph;
    let slopes = graph.floats(&[HEADS, 1, 1], &SLOPES);
    let added = match bias {
        Bias::Constant => slopes,
        Bias::Table(rows) => {
            let row = |slope: &f32| (0..rows).map(|key| slope * (key - rows + 1) as f32).collect::<Vec<_>>();
            let table = graph.floats(&[HEADS, 1, rows], &SLOPES.iter().flat_map(row).collect::<Vec<_>>());
            let (end, axis) = (graph.ints(&[1], &[i64::MAX]), graph.ints(&[1], &[2]));
            let length = graph.ints(&[1], &[rows]);
            let start = graph.node("Sub", &[&length, &total], &[]);
            graph.node("Slice", &[&table, &start, &end, &axis], &[])
        }
        Bias::Last => {
            let at = graph.node("Sub", &[&keys, &total], &[]);
            let at = graph.node("Cast", &[&at], &[Attr::Int("to", F32)]);
            graph.node("Mul", &[&slopes, &at], &[])
        }
        _ => {
            let most = graph.ints(&[], &[if let Bias::Up(most) = bias { most } else { i64::MAX }]);
            let at = graph.node("Min", &[&keys, &most], &[]);
            let mut at = graph.node("Cast", &[&at], &[Attr::Int("to", F32)]);
            if bias == Bias::Squares {
                at = graph.node("Mul", &[&at, &at], &[]);
            }
            graph.node("Mul", &[&slopes, &at], &[])
        }
    };
    let sum = graph.node("Add", &[scores, &added], &[]);
    let half = graph.floats(&[], &[0.5]);
    if bias == Bias::Last { graph.node("Mul", &[&sum, &half], &[]) } else { sum }
}

fn plain(form: Plain) -> Graph {
    Decoder::new(2, false).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let query = decoder.heads_first(query, HEADS);
        let mut cached = Vec::new();
        for (side, name) in [key, value].into_iter().enumerate() {
            let new = decoder.heads_first(name, 2);
            let graph = &mut decoder.graph;
            graph.node_to("Concat", &[&pasts[side], &new], &[&presents[side]], &[Attr::Int("axis", 2)]);
            if let Some(heads) = form.gathered {
                let heads = graph.ints(&[HEADS], &heads);
                cached.push(graph.node("Gather", &[&presents[side], &heads], &[Attr::Int("axis", 1)]));
                continue;
            }
            let (axis, shape) =
                (graph.ints(&[1], &[if form.tiled { 1 } else { 2 }]), graph.ints(&[4], &[0, HEADS, -1, DIM]));
            let repeats = graph.ints(&[5], &if form.tiled { [1, 2, 1, 1, 1] } else { [1, 1, 2, 1, 1] });
            let apart = graph.node("Unsqueeze", &[&presents[side], &axis], &[]);
            let wide = graph.node("Expand", &[&apart, &repeats], &[]);
            cached.push(graph.node("Reshape", &[&wide, &shape], &[]));
        }
        let graph = &mut decoder.graph;
        let half = graph.floats(&[], &[0.6]);
        let mut keys = graph.node("Transpose", &[&cached[0]], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let query = graph.node("Mul", &[&query, &half], &[]);
        if form.both_sides {
            keys = graph.node("Mul", &[&half, &keys], &[]);
        }
        let mut scores = graph.node("MatMul", &[&query, &keys], &[]);
        if form.bias == Some(Bias::Capped) {
            scores = biased(decoder, &pasts[0], &scores, Bias::Capped);
        }
        let graph = &mut decoder.graph;
        if let Some(cap) = form.softcap {
            let cap = graph.floats(&[1], &[cap]);
            scores = graph.node("Div", &[&scores, &cap], &[]);
            scores = graph.node("Tanh", &[&scores], &[]);
            scores = graph.node("Mul", &[&scores, &cap], &[]);
        }
        if let Some(bias) = form.bias.filter(|&bias| bias != Bias::Capped) {
            scores = biased(decoder, &pasts[0], &scores, bias);
        }
        if !form.no_mask {
            let seen = decoder.seen(&pasts[0], form.window);
            let added = decoder.added(&seen);
            let graph = &mut decoder.graph;
            let low = graph.floats(&[], &[f32::NEG_INFINITY]);
            scores = if form.by_where {
                graph.node("Where", &[&seen, &scores, &low], &[])
            } else {
                graph.node("Add", &[&scores, &added], &[])
            };
        }
        let graph = &mut decoder.graph;
        if form.sinks {
            scores = sink(decoder, &scores);
        } else {
            scores = graph.node("Softmax", &[&scores], &[Attr::Int("axis", -1)]);
        }
        let weighted = decoder.graph.node("MatMul", &[&scores, &cached[1]], &[]);
        decoder.packed(&weighted)
    })
}

/// A column of sink logits behind the scores, cut off again behind the softmax.
fn sink(decoder: &mut Decoder, scores: &str) -> String {
    let graph = &mut decoder.graph;
    let sinks = graph.floats(&[1, 4, 1, 1], &[0.5, -1., 2., 0.]);
    let shape = graph.node("Shape", &[scores], &[]);
    let (front, end) = (graph.ints(&[1], &[3]), graph.ints(&[1], &[0]));
    let rows = graph.node("Slice", &[&shape, &end, &front], &[]);
    let one = graph.ints(&[1], &[1]);
    let shape = graph.node("Concat", &[&rows, &one], &[Attr::Int("axis", 0)]);
    let sinks = graph.node("Expand", &[&sinks, &shape], &[]);
    let all = graph.node("Concat", &[scores, &sinks], &[Attr::Int("axis", -1)]);
    let back = graph.ints(&[1], &[-1]);
    let most = graph.node("ReduceMax", &[&all, &back], &[Attr::Int("keepdims", 1)]);
    let all = graph.node("Sub", &[&all, &most], &[]);
    let all = graph.node("Softmax", &[&all], &[Attr::Int("axis", -1)]);
    let (zero, last, axis) = (graph.ints(&[1], &[0]), graph.ints(&[1], &[-1]), graph.ints(&[1], &[3]));
    graph.node("Slice", &[&all, &zero, &last, &axis], &[])
}

#[test]
fn plain_attention_in_its_varieties() {
    let layer = accepted("plain", &plain(Plain::default()), 18, Form::Plain);
    assert_eq!((layer.kv_num_heads, layer.window, layer.layout), (2, None, Layout::HeadsFirst));
    assert!((layer.scale - 0.6).abs() < 1e-6);
    let layer =
        accepted("plain.both", &plain(Plain { both_sides: true, by_where: true, ..Plain::default() }), 18, Form::Plain);
    assert!((layer.scale - 0.36).abs() < 1e-6);
    let form = Plain { window: Some(3), softcap: Some(1.5), ..Plain::default() };
    let layer = accepted("plain.softcap", &plain(form), 18, Form::Plain);
    assert_eq!((layer.window, layer.softcap), (Some(3), Some(1.5)));
    assert!((layer.scale - 0.6).abs() < 1e-6);
    let gathered = Plain { gathered: Some([0, 0, 1, 1]), ..Plain::default() };
    assert_eq!(accepted("plain.gathered", &plain(gathered), 18, Form::Plain).kv_num_heads, 2);
    let layer = accepted("plain.sinks", &plain(Plain { sinks: true, ..Plain::default() }), 18, Form::Plain);
    assert_eq!(layer.sinks, Some(vec![0.5, -1., 2., 0.]));
    let long = Plain { window: Some(4096), by_where: true, ..Plain::default() };
    assert_eq!(accepted("plain.long", &plain(long), 18, Form::Plain).window, Some(4096));
}

#[test]
fn plain_attention_that_is_another_one_is_refused() {
    let (_, operator, reason) = refused(&plain(Plain { no_mask: true, ..Plain::default() }), 18);
    assert_eq!(operator, "Softmax");
    assert!(reason.contains("nothing hides later tokens"), "{reason}");
    for form in [Plain { tiled: true, ..Plain::default() }, Plain { gathered: Some([0, 1, 0, 1]), ..Plain::default() }]
    {
        let (_, _, reason) = refused(&plain(form), 18);
        assert!(reason.contains("repeated in order"), "{reason}");
    }
}

#[test]
fn slopes_of_alibi_in_their_varieties() {
    for (name, bias) in [("keys", Bias::Keys), ("last", Bias::Last), ("table", Bias::Table(37))] {
        for form in [
            Plain::default(),
            Plain { window: Some(3), by_where: true, ..Plain::default() },
            Plain { softcap: Some(1.5), ..Plain::default() },
        ] {
            let window = form.window.map(|window| window as u32);
            let name = format!("slopes.{name}.{}.{}", form.by_where, form.softcap.is_some());
            let layer = accepted(&name, &plain(Plain { bias: Some(bias), ..form }), 18, Form::Plain);
            let factor = if bias == Bias::Last { 0.5 } else { 1. };
            assert_eq!(layer.alibi_slopes, Some(SLOPES.map(|slope| slope * factor).to_vec()), "{name}");
            assert_eq!((layer.window, layer.softcap), (window, form.softcap.map(|cap| cap * factor)), "{name}");
            let of_products = if bias == Bias::Last { 0.3 } else { 0.6 };
            assert!((layer.scale - of_products).abs() < 1e-6 || form.softcap.is_some(), "{name}: {}", layer.scale);
        }
    }
}

#[test]
fn a_bias_that_is_not_linear_is_refused() {
    let of = |bias, form: Plain| {
        let (_, operator, reason) = refused(&plain(Plain { bias: Some(bias), ..form }), 18);
        assert_eq!(operator, "Softmax");
        reason
    };
    for bias in [Bias::Constant, Bias::Squares, Bias::Up(3), Bias::Up(60_000)] {
        let reason = of(bias, Plain::default());
        assert!(reason.contains(" to scores"), "{reason}");
    }
    let reason = of(Bias::Capped, Plain { softcap: Some(1.5), ..Plain::default() });
    assert!(reason.contains(" to scores"), "{reason}");
    let (_, _, reason) = refused(&plain(Plain { bias: Some(Bias::Keys), sinks: true, ..Plain::default() }), 18);
    assert!(reason.contains("both slopes and sink logits"), "{reason}");
}

#[test]
fn a_bias_of_an_operator_may_have_slopes() {
    let grouped = grouped(false, false, &[], |graph, inputs| {
        let (zero, one) = (graph.ints(&[], &[0]), graph.ints(&[], &[1]));
        let shape = graph.node("Shape", &["attention_mask"], &[]);
        let total = graph.node("Gather", &[&shape, &one], &[]);
        let new = graph.node("Shape", &["input_ids"], &[]);
        let new = graph.node("Gather", &[&new, &one], &[]);
        let keys = graph.node("Range", &[&zero, &total, &one], &[]);
        let keys = graph.node("Cast", &[&keys], &[Attr::Int("to", F32)]);
        let slopes = graph.floats(&[1, HEADS, 1, 1], &SLOPES);
        let added = graph.node("Mul", &[&slopes, &keys], &[]);
        let rows = [graph.ints(&[2], &[1, HEADS]), graph.ints(&[1], &[0])];
        let [new, total] = [new, total].map(|size| graph.node("Unsqueeze", &[&size, &rows[1]], &[]));
        let shape = graph.node("Concat", &[&rows[0], &new, &total], &[Attr::Int("axis", 0)]);
        inputs.resize(10, String::new());
        inputs.push(graph.node("Expand", &[&added, &shape], &[]));
    });
    let layer = accepted("gqa.slopes", &grouped, 21, Form::GroupQueryAttention);
    assert_eq!(layer.alibi_slopes, Some(SLOPES.to_vec()));
}

#[test]
fn windows_of_a_config_have_to_agree() {
    let bytes = plain(Plain { window: Some(3), ..Plain::default() }).model(18);
    let model = Model::read(&bytes).unwrap();
    let windows = |windows: Vec<Option<u32>>| {
        let options = Options { windows: Some(windows), ..Options::default() };
        Rewritten::new(&bytes, &model, &options).map(|rewritten| rewritten.layers()[1].window)
    };
    assert_eq!(windows(vec![Some(3), Some(3)]), Ok(Some(3)));
    assert!(windows(vec![Some(3), Some(4)]).unwrap_err().to_string().contains("declares 4"));
    assert!(windows(vec![Some(3)]).unwrap_err().to_string().contains("1 layers"));
}

#[test]
fn inputs_that_a_step_does_not_give_are_refused_by_name() {
    let with = |name: &'static str, element: i64, dims: &[Size]| {
        let mut graph = plain(Plain::default());
        graph.input(name, element, dims);
        graph.node_to("Identity", &[name], &["other"], &[]);
        graph.output("other", element, dims);
        refused(&graph, 18)
    };
    let (node, operator, reason) = with("token_type_ids", I64, &[Size::Named("batch"), Size::Named("new")]);
    assert_eq!((node.as_str(), operator.as_str()), ("token_type_ids", "input"));
    assert!(reason.contains("its purpose is not known"), "{reason}");
    let (node, _, _) = with("per_layer_inputs", F32, &[Size::Named("batch"), Size::Named("new"), Size::Is(8)]);
    assert_eq!(node, "per_layer_inputs");
    let (node, _, reason) = with("position_ids", I64, &[Size::Is(4), Size::Named("batch"), Size::Named("new")]);
    assert_eq!(node, "position_ids");
    assert!(reason.contains("2 dimensions"), "{reason}");
}

#[test]
fn a_past_that_no_attention_reads_is_refused_by_name() {
    let mut graph = plain(Plain::default());
    let dims = [Size::Named("batch"), Size::Is(2), Size::Named("past"), Size::Is(DIM)];
    graph.input("past_other.0", F32, &dims);
    graph.node_to("Identity", &["past_other.0"], &["conv"], &[]);
    let (node, operator, reason) = refused(&graph, 18);
    assert_eq!((node.as_str(), operator.as_str()), ("node of conv", "Identity"));
    assert!(reason.contains("past_other.0"), "{reason}");
}
