//! Every form of a layer with a state, in decoders that are built here: what is found, and, if onnxruntime-node is
//! installed, equal results before and after the rewrite, also for several sequences in one call.

use kvtide_onnx::{ElementType, Error, Model, Options, PartState, Rewritten, State, StateForm, Weights};

use crate::support::build::{Attr, Decoder, F32, Graph, HEADS};
use crate::support::hybrid::{CHANNELS, Linear, Plain, Scan, causal, hybrid, port, turned};
use crate::support::runtime::{same_as, same_as_before};

const F16: i64 = 10;

fn rewrite(bytes: &[u8], options: &Options) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, options)
}

/// Rewrites a model that has to be recognised, and compares its numbers with those before.
fn accepted(name: &str, graph: &Graph) -> Rewritten {
    let bytes = graph.model(21);
    let rewritten = rewrite(&bytes, &Options::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    for model in [rewritten.model(), rewritten.fused()] {
        let written = model.to_bytes(&bytes, Weights::Inline).unwrap();
        let again = Model::read(&written).unwrap();
        let ports: Vec<String> = again.inputs().into_iter().chain(again.outputs()).map(|port| port.name).collect();
        assert!(!ports.iter().any(|port| port.starts_with("past") || port.starts_with("present")), "{name}: {ports:?}");
    }
    same_as_before(&format!("states.{name}"), &bytes, &rewritten);
    rewritten
}

/// The nodes with states of a rewritten graph, in the order of its parts.
fn nodes(rewritten: &Rewritten, bytes: &[u8]) -> Vec<PartState> {
    rewritten.parts(&bytes).unwrap().into_iter().flat_map(|part| part.states).collect()
}

fn number(node: &PartState, name: &str) -> f64 {
    match node.attributes.iter().find(|(other, _)| other == name) {
        Some((_, numbers)) if numbers.len() == 1 => numbers[0],
        found => panic!("{name}: {found:?}"),
    }
}

fn only(rewritten: &Rewritten, graph: &Graph) -> (State, PartState) {
    let [state] = rewritten.states() else { panic!("{:?}", rewritten.states()) };
    let mut nodes = nodes(rewritten, &graph.model(21));
    assert_eq!(nodes.len(), 1);
    assert_eq!(number(&nodes[0], "state"), 0.);
    (state.clone(), nodes.remove(0))
}

#[test]
fn short_convolutions_of_ordinary_operators() {
    let cut = |name: &'static str, form: Plain| {
        let graph = hybrid(|graph, [x, ..]| form.layer(graph, x));
        let (state, node) = only(&accepted(&format!("plain.{name}"), &graph), &graph);
        assert_eq!((state.form, state.layer, state.number), (StateForm::Convolution, 0, 0), "{name}");
        assert_eq!((state.name.as_str(), state.element), ("conv", ElementType::F32), "{name}");
        assert_eq!([state.past, state.present], form.names(), "{name}");
        assert_eq!(state.shape, [CHANNELS as u32, form.columns as u32], "{name}");
        assert_eq!((node.operator.as_str(), node.element), ("ShortConv", ElementType::F32), "{name}");
        let sizes = ["channels", "kernel", "columns", "channels_first", "state_channels_first", "silu"];
        let wanted = [CHANNELS, form.kernel, form.columns, 1, 1, 0].map(|size| size as f64);
        assert_eq!(sizes.map(|size| number(&node, size)), wanted, "{name}");
        assert_eq!(node.inputs.len(), if form.bias { 3 } else { 2 }, "{name}");
    };
    cut("builder", Plain::of(3, 2));
    cut("bias", Plain { bias: true, ..Plain::of(4, 3) });
    // Exports for transformers.js keep a column more than the kernel needs.
    cut("wider", Plain::of(3, 3));
    cut("much wider", Plain { bias: true, ..Plain::of(2, 6) });
    let padded = vec![Attr::Ints("pads", vec![2, 0]), Attr::Ints("kernel_shape", vec![3])];
    cut("padded", Plain { attributes: padded, ..Plain::of(3, 2) });
}

#[test]
fn a_convolution_may_see_a_part_of_the_columns() {
    let form = Plain::of(3, 4);
    let graph = hybrid(|graph, [x, ..]| {
        let joined = form.joined(graph, x);
        form.present(graph, &joined);
        let [start, end, axes] = [2, i64::MAX, 2].map(|at| graph.ints(&[1], &[at]));
        let seen = graph.node("Slice", &[&joined, &start, &end, &axes], &[]);
        let out = form.convolved(graph, &seen);
        turned(graph, &out)
    });
    let (_, node) = only(&accepted("plain.part", &graph), &graph);
    assert_eq!([number(&node, "kernel"), number(&node, "columns")], [3., 4.]);
}

#[test]
fn states_of_half_floats_in_a_graph_of_floats_keep_their_type() {
    let graph = hybrid(|graph, [x, ..]| {
        port(graph, ["past_conv.0", "present_conv.0"], F16, &[CHANNELS, 2]);
        let past = graph.node("Cast", &["past_conv.0"], &[Attr::Int("to", F32)]);
        let x = turned(graph, x);
        let joined = graph.node("Concat", &[&past, &x], &[Attr::Int("axis", -1)]);
        let [start, end, axes] = [-2, i64::MAX, 2].map(|at| graph.ints(&[1], &[at]));
        let last = graph.node("Slice", &[&joined, &start, &end, &axes], &[]);
        graph.node_to("Cast", &[&last], &["present_conv.0"], &[Attr::Int("to", F16)]);
        let out = Plain::of(3, 2).convolved(graph, &joined);
        turned(graph, &out)
    });
    let (state, node) = only(&accepted("plain.half", &graph), &graph);
    assert_eq!((state.element, node.element), (ElementType::F16, ElementType::F32));
}

#[test]
fn causal_convolutions_with_state() {
    for (name, has_bias, attributes, silu) in [
        ("bare", false, vec![], 0.),
        (
            "builder",
            false,
            vec![Attr::Int("ndim", 1), Attr::Text("activation", "none"), Attr::Int("state_window", 0)],
            0.,
        ),
        ("silu", true, vec![Attr::Text("activation", "silu")], 1.),
        ("swish", true, vec![Attr::Text("activation", "swish")], 1.),
    ] {
        let graph = hybrid(|graph, [x, ..]| causal(graph, x, has_bias, &attributes));
        let (state, node) = only(&accepted(&format!("causal.{name}"), &graph), &graph);
        assert_eq!((state.form, state.shape), (StateForm::CausalConvWithState, vec![CHANNELS as u32, 2]));
        let sizes = ["channels", "kernel", "columns", "channels_first", "state_channels_first", "silu"];
        assert_eq!(sizes.map(|size| number(&node, size)), [CHANNELS as f64, 3., 2., 1., 1., silu], "{name}");
    }
    // The installed runtime may not know this attribute: only the rewrite is checked.
    let graph = hybrid(|graph, [x, ..]| causal(graph, x, true, &[Attr::Int("channels_last", 1)]));
    let rewritten = rewrite(&graph.model(21), &Options::default()).unwrap();
    let (state, node) = only(&rewritten, &graph);
    assert_eq!(state.shape, [2, CHANNELS as u32]);
    assert_eq!(["channels_first", "state_channels_first"].map(|name| number(&node, name)), [0., 0.]);
}

#[test]
fn linear_attentions_of_all_rules() {
    let cut = |name: &'static str, form: Linear, scale: f64| {
        let graph = hybrid(|graph, operands| form.layer(graph, operands));
        let (state, node) = only(&accepted(&format!("linear.{name}"), &graph), &graph);
        assert_eq!((state.form, state.name.as_str()), (StateForm::LinearAttention, "recurrent"), "{name}");
        assert_eq!(state.shape, [form.v_heads as u32, 16, 16], "{name}");
        let sizes = ["q_heads", "k_heads", "v_heads", "k_dim", "v_dim"].map(|size| number(&node, size));
        assert_eq!(sizes, [form.q_heads as f64, 2., form.v_heads as f64, 16., 16.], "{name}");
        assert!((number(&node, "scale") - scale).abs() < 1e-6, "{name}");
        let taken = [form.rule.starts_with("gated"), form.rule.ends_with("delta")];
        let found = [3, 4].map(|place| node.inputs.get(place).is_some_and(Option::is_some));
        assert_eq!(found, taken, "{name}");
    };
    for rule in ["linear", "gated", "delta", "gated_delta"] {
        cut(rule, Linear::of(rule), 0.25);
    }
    // The default of `scale` is 0, and stands for the inverse root.
    let scale = |scale| vec![Attr::Float("scale", scale)];
    cut("scale", Linear { attributes: scale(0.5), ..Linear::of("gated_delta") }, 0.5);
    cut("no scale", Linear { attributes: scale(0.), ..Linear::of("gated_delta") }, 0.25);
    cut("keys", Linear { decay: Some(32), ..Linear::of("gated") }, 0.25);
    cut("one rate", Linear { beta: Some(1), ..Linear::of("delta") }, 0.25);
    // Two queries for four values, as in Qwen3.5.
    let few = Linear { q_heads: 2, v_heads: 4, decay: Some(4), beta: Some(4), ..Linear::of("gated_delta") };
    cut("few queries", few, 0.25);
    // Inputs that a rule does not take are ignored.
    cut("ignored", Linear { decay: Some(2), beta: Some(2), ..Linear::of("linear") }, 0.25);
}

#[test]
fn state_space_models_of_a_scan() {
    let cut = |name: &'static str, form: Scan, softplus: f64| {
        let graph = hybrid(|graph, operands| form.layer(graph, operands));
        let (state, node) = only(&accepted(&format!("scan.{name}"), &graph), &graph);
        assert_eq!((state.form, state.name.as_str()), (StateForm::Scan, "ssm"), "{name}");
        assert_eq!(state.shape, [HEADS as u32, 16, form.size as u32], "{name}");
        let sizes = ["heads", "head_dim", "groups", "state_size", "softplus"].map(|size| number(&node, size));
        assert_eq!(sizes, [HEADS as f64, 16., form.groups as f64, form.size as f64, softplus], "{name}");
        let limits = node.attributes.iter().find(|(name, _)| name == "limits");
        assert_eq!(limits.map(|(_, limits)| limits.len()), (form.has_limits || form.has_least).then_some(2), "{name}");
        let has_bias = form.has_bias && form.has_softplus;
        assert_eq!((node.inputs.len(), node.inputs.get(5)), (if has_bias { 7 } else { 5 }, has_bias.then_some(&None)));
    };
    cut("granite", Scan::of(8, 1), 1.);
    cut("groups", Scan::of(8, 2), 1.);
    // Elements of heads and of states are as many: only the body tells them apart.
    cut("square", Scan::of(16, 4), 1.);
    cut("no bias", Scan { has_bias: false, ..Scan::of(8, 1) }, 1.);
    cut("limits", Scan { has_limits: true, ..Scan::of(8, 1) }, 1.);
    cut("least", Scan { has_least: true, ..Scan::of(8, 1) }, 1.);
    cut("expanded", Scan { is_expanded: true, ..Scan::of(8, 2) }, 1.);
    cut("sigmoid", Scan { has_softplus: false, ..Scan::of(8, 1) }, 0.);
}

/// A decoder whose layers have a convolution each, and attention besides in some.
fn stacked(numbers: [usize; 2], attends: [bool; 2]) -> Graph {
    Decoder::new(2, false).layers(|decoder, layer, [query, key, value]| {
        let number = numbers[layer];
        let form = Plain { layer: number, ..Plain::of(3, 2) };
        let convolved = form.layer(&mut decoder.graph, query);
        if attends[layer] { decoder.grouped(number, [&convolved, key, value], &[]) } else { convolved }
    })
}

#[test]
fn layers_are_numbered_as_in_the_unmodified_graph() {
    let numbers = |rewritten: &Rewritten| {
        let layers: Vec<u32> = rewritten.layers().iter().map(|layer| layer.layer).collect();
        let states: Vec<_> = rewritten.states().iter().map(|state| (state.layer, state.number)).collect();
        (layers, states)
    };
    let mut graph = stacked([5, 7], [false, true]);
    // A state comes before another one of its layer by name, whatever the order of inputs.
    assert_eq!(numbers(&accepted("numbers.gaps", &graph)), (vec![1], vec![(0, 5), (1, 7)]));
    graph = stacked([1, 0], [true, false]);
    assert_eq!(numbers(&accepted("numbers.turned", &graph)), (vec![1], vec![(0, 0), (1, 1)]));
    graph = hybrid(|graph, [x, ..]| Plain { layer: 3, ..Plain::of(3, 2) }.layer(graph, x));
    // The attention has number 1.
    assert_eq!(numbers(&accepted("numbers.before", &graph)), (vec![0], vec![(1, 3)]));
}

#[test]
fn a_graph_without_attention_is_rewritten_as_well() {
    let rewritten = accepted("alone", &stacked([0, 1], [false, false]));
    assert!(rewritten.layers().is_empty());
    assert_eq!(rewritten.states().len(), 2);
}

#[test]
fn parts_end_at_states_and_give_their_weights() {
    let graph = stacked([0, 1], [true, false]);
    let bytes = graph.model(21);
    let rewritten = rewrite(&bytes, &Options::default()).unwrap();
    let parts = rewritten.parts(&bytes).unwrap();
    let counts: Vec<_> = parts.iter().map(|part| (part.attentions.len(), part.states.len())).collect();
    assert_eq!(counts, [(0, 1), (1, 0), (0, 1), (0, 0)]);
    for (place, part) in parts.iter().enumerate() {
        let own: Vec<&String> = part.states.iter().flat_map(|state| state.inputs.iter().flatten()).collect();
        // The weights are computed by the part before the layer; so is the input, here.
        assert!(own.iter().all(|name| part.outputs.contains(*name)), "{place}: {own:?} {:?}", part.outputs);
        let later: Vec<&String> = parts[place + 1..].iter().flat_map(|part| &part.inputs).collect();
        assert!(part.states.iter().all(|state| later.contains(&&state.output)), "{place}");
        let nodes = part.model.to_bytes(&bytes, Weights::Inline).unwrap();
        assert!(Model::read(&nodes).is_ok());
    }
}

#[test]
fn weights_that_a_graph_computes_are_outputs_of_the_part_before() {
    let graph = hybrid(|graph, [x, ..]| {
        let form = Plain::of(3, 2);
        let joined = form.joined(graph, x);
        form.present(graph, &joined);
        let weight = graph.weight(&[CHANNELS, 3], 1.);
        let axes = graph.ints(&[1], &[1]);
        let weight = graph.node("Unsqueeze", &[&weight, &axes], &[]);
        let out = graph.node("Conv", &[&joined, &weight], &[Attr::Int("group", CHANNELS)]);
        turned(graph, &out)
    });
    let (_, node) = only(&accepted("computed weights", &graph), &graph);
    assert!(node.inputs[1].as_ref().unwrap().starts_with("Unsqueeze"), "{node:?}");
}

#[test]
fn windows_are_declared_for_attentions_or_for_numbers() {
    let bytes = stacked([5, 7], [false, true]).model(21);
    let with = |windows: Vec<Option<u32>>| {
        let windows = Some(windows);
        rewrite(&bytes, &Options { windows, ..Options::default() }).map(|rewritten| rewritten.layers()[0].window)
    };
    assert_eq!(with(vec![Some(4)]), Ok(Some(4)));
    let mut of_all = vec![None; 8];
    of_all[7] = Some(9);
    assert_eq!(with(of_all), Ok(Some(9)));
    assert!(with(vec![Some(4); 7]).unwrap_err().to_string().contains("the config declares 7 layers, the graph has 1"));
}

#[test]
fn rows_of_logits_are_chosen_behind_states() {
    let bytes = stacked([0, 1], [true, false]).model(21);
    let options = Options { logit_rows: true, ..Options::default() };
    let rewritten = rewrite(&bytes, &options).unwrap();
    same_as("states.rows", &bytes, &bytes, &rewritten, &options);
}

#[test]
fn an_inspection_lists_the_states() {
    let bytes = stacked([0, 1], [true, false]).model(21);
    let inspection = rewrite(&bytes, &Options::default()).unwrap().inspection().clone();
    let text = inspection.to_string();
    assert!(text.contains("states   form                 tensor     type  dimensions"), "{text}");
    assert!(text.contains("   0-1   convolution          conv       f32   [64, 2]\n"), "{text}");
    let dropped = ["past_conv.0", "past_conv.1"].map(str::to_owned);
    assert!(dropped.iter().all(|name| inspection.dropped_inputs.contains(name)), "{:?}", inspection.dropped_inputs);
    assert_eq!(inspection.outputs.len(), 1);
}

/// A decoder whose first layer is a convolution with nodes that activate its results, before or behind their transposition.
fn activated(is_before: bool, reads_again: bool) -> Graph {
    hybrid(move |graph, [x, ..]| {
        let form = Plain::of(3, 2);
        let joined = form.joined(graph, x);
        form.present(graph, &joined);
        let mut out = form.convolved(graph, &joined);
        if !is_before {
            out = turned(graph, &out);
        }
        let gate = graph.node("Sigmoid", &[&out], &[]);
        let mut activated = graph.node("Mul", &[&out, &gate], &[]);
        if reads_again {
            activated = graph.node("Add", &[&activated, &gate], &[]);
        }
        if is_before { turned(graph, &activated) } else { activated }
    })
}

#[test]
fn transpositions_and_activations_around_a_convolution_are_done_by_the_operator() {
    // The operator is field 4 of a node.
    let counts = |graph: &Graph, operator: &str| {
        let bytes = graph.model(21);
        let rewritten = rewrite(&bytes, &Options::default()).unwrap();
        let field = [&[0x22, operator.len() as u8], operator.as_bytes()].concat();
        [rewritten.model(), rewritten.fused()].map(|model| {
            let written = model.to_bytes(&bytes, Weights::Inline).unwrap();
            Model::read(&written).unwrap();
            written.windows(field.len()).filter(|window| *window == field).count()
        })
    };
    let plain = hybrid(|graph, [x, ..]| Plain::of(3, 2).layer(graph, x));
    assert_eq!(counts(&plain, "Transpose"), [2, 0]);
    assert_eq!(counts(&plain, "ShortConv"), [1, 1]);
    for is_before in [true, false] {
        let name = format!("activated.{is_before}");
        let graph = activated(is_before, false);
        accepted(&name, &graph);
        assert_eq!((counts(&graph, "Transpose"), counts(&graph, "Sigmoid")), ([2, 0], [1, 0]), "{name}");
        // The gate is read elsewhere, so it has to be computed.
        let again = activated(is_before, true);
        assert_eq!(counts(&again, "Sigmoid"), [1, 1], "{name}");
        assert_eq!(counts(&again, "Transpose"), if is_before { [2, 2] } else { [2, 0] }, "{name}");
    }
}
