//! Static caches: `TensorScatter` writes keys and values into a fixed number of slots. Rewritten, they give the results of
//! the same decoder with a past that grows.

use kvtide_onnx::{Error, Form, Layout, Model, Options, Rewritten};

use crate::support::build::{Attr, DIM, Decoder, F32, Graph, HEADS, I64, Size};
use crate::support::runtime::same_as;

const KV_HEADS: i64 = 2;

/// The forms of static caches.
#[derive(Clone, Copy, Debug)]
struct Static {
    /// The number of slots; [`None`] if the graph only names it.
    slots: Option<i64>,
    /// True for rows with their heads side by side.
    packed: bool,
    /// True for `nonpad_kv_seqlen`.
    counted: bool,
    causal: bool,
    /// A mask over all slots.
    mask: bool,
    window: Option<i64>,
    mode: Option<&'static str>,
    axis: i64,
    wrong: Wrong,
}

/// Changes that have to be refused.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Nothing,
    /// Rows are written one slot too far.
    Start,
    /// No index of the first row.
    NoStart,
    /// The number of tokens is one too small.
    Count,
    /// The mask shows slots that were never written.
    Shown,
    /// The mask hides everything, with one number for all slots.
    Hidden,
    /// Keys are in a static cache, values have a past that grows.
    Half,
}

const PACKED: Static = Static {
    slots: Some(64),
    packed: true,
    counted: true,
    causal: true,
    mask: false,
    window: None,
    mode: None,
    axis: -2,
    wrong: Wrong::Nothing,
};

/// Uses up names, so that weights after an attention are the same for all of its forms.
fn level(graph: &Graph) {
    while !graph.fresh("unused").ends_with("00") {}
}

/// The position of each new token, `[batch, new]`: counted from the slot that is written first.
fn starts(decoder: &mut Decoder) -> String {
    let new = decoder.size_of("input_ids", 1);
    let graph = &mut decoder.graph;
    let (zero, one) = (graph.ints(&[], &[0]), graph.ints(&[], &[1]));
    let (front, back) = (graph.ints(&[1], &[0]), graph.ints(&[1], &[1]));
    let offsets = graph.node("Range", &[&zero, &new, &one], &[]);
    let offsets = graph.node("Unsqueeze", &[&offsets, &front], &[]);
    let first = graph.node("Unsqueeze", &["write_indices", &back], &[]);
    graph.node("Add", &[&first, &offsets], &[])
}

/// Truth values for all slots, `[batch, 1, new, slots]`.
fn slots_seen(decoder: &mut Decoder, form: Static, cache: &str) -> String {
    let positions = starts(decoder);
    let slots = decoder.size_of(cache, if form.packed { 1 } else { 2 });
    let graph = &mut decoder.graph;
    let (zero, one, axes) = (graph.ints(&[], &[0]), graph.ints(&[], &[1]), graph.ints(&[2], &[1, 3]));
    let keys = graph.node("Range", &[&zero, &slots, &one], &[]);
    let queries = graph.node("Unsqueeze", &[&positions, &axes], &[]);
    let mut seen = graph.node("LessOrEqual", &[&keys, &queries], &[]);
    if let Some(window) = form.window {
        let window = graph.ints(&[], &[window]);
        let first = graph.node("Sub", &[&queries, &window], &[]);
        let near = graph.node("Greater", &[&keys, &first], &[]);
        seen = graph.node("And", &[&seen, &near], &[]);
    }
    if form.wrong == Wrong::Shown {
        let far = graph.ints(&[], &[40]);
        let behind = graph.node("Greater", &[&keys, &far], &[]);
        seen = graph.node("Or", &[&seen, &behind], &[]);
    }
    seen
}

/// Keys or values of all slots, after the new rows were written.
fn written(decoder: &mut Decoder, form: Static, layer: usize, side: &str, new: &str) -> String {
    let slots = form.slots.map_or(Size::Named("slots"), Size::Is);
    let dims = if form.packed {
        vec![Size::Named("batch"), slots, Size::Is(KV_HEADS * DIM)]
    } else {
        vec![Size::Named("batch"), Size::Is(KV_HEADS), slots, Size::Is(DIM)]
    };
    let (cache, updated) = (format!("past_key_values.{layer}.{side}"), format!("updated.{layer}.{side}"));
    let graph = &mut decoder.graph;
    graph.input(&cache, F32, &dims);
    graph.output(&updated, F32, &dims);
    let one = graph.ints(&[], &[1]);
    let start = match form.wrong {
        Wrong::Start if layer == 1 => graph.node("Add", &["write_indices", &one], &[]),
        _ => "write_indices".to_owned(),
    };
    let inputs = [cache.as_str(), new, &start];
    let inputs = if form.wrong == Wrong::NoStart { &inputs[..2] } else { &inputs[..] };
    let mut attributes = vec![Attr::Int("axis", form.axis)];
    attributes.extend(form.mode.map(|mode| Attr::Text("mode", mode)));
    graph.node_to("TensorScatter", inputs, &[&updated], &attributes);
    updated
}

fn fixed(form: Static) -> Graph {
    Decoder::new(KV_HEADS, false).layers(|decoder, layer, operands| {
        if layer == 0 {
            for name in ["write_indices", "nonpad_kv_seqlen"] {
                decoder.graph.input(name, I64, &[Size::Named("batch")]);
            }
        }
        let heads = [HEADS, KV_HEADS, KV_HEADS];
        let mut operands = operands.map(str::to_owned);
        if !form.packed {
            for (name, heads) in operands.iter_mut().zip(heads) {
                *name = decoder.heads_first(name, heads);
            }
        }
        let key = written(decoder, form, layer, "key", &operands[1]);
        let value = if form.wrong == Wrong::Half {
            let dims = [Size::Named("batch"), Size::Is(KV_HEADS), Size::Named("past"), Size::Is(DIM)];
            let past = decoder.graph.input(&format!("past.{layer}"), F32, &dims);
            decoder.graph.node("Concat", &[&past, &operands[2]], &[Attr::Int("axis", 2)])
        } else {
            written(decoder, form, layer, "value", &operands[2])
        };
        let mut inputs = vec![operands[0].clone(), key.clone(), value];
        inputs.resize(7, String::new());
        if form.wrong == Wrong::Hidden {
            inputs[3] = decoder.graph.truths(&[1, 1, 1, 1], &[0]);
        } else if form.mask {
            inputs[3] = slots_seen(decoder, form, &key);
        }
        if form.counted {
            let one = decoder.graph.ints(&[], &[1]);
            inputs[6] = match form.wrong {
                Wrong::Count if layer == 1 => decoder.graph.node("Sub", &["nonpad_kv_seqlen", &one], &[]),
                _ => "nonpad_kv_seqlen".to_owned(),
            };
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut attributes = vec![Attr::Int("is_causal", i64::from(form.causal))];
        if form.packed {
            attributes.extend([Attr::Int("q_num_heads", HEADS), Attr::Int("kv_num_heads", KV_HEADS)]);
        }
        let attended = decoder.graph.node("Attention", &inputs, &attributes);
        let attended = if form.packed { attended } else { decoder.packed(&attended) };
        level(&decoder.graph);
        attended
    })
}

/// The same decoder with a past that grows.
fn growing(window: Option<i64>) -> Graph {
    Decoder::new(KV_HEADS, false).layers(|decoder, layer, [query, key, value]| {
        let [pasts, presents] = decoder.pasts(layer);
        let seen = decoder.seen(&pasts[0], window);
        let inputs = [query, key, value, &seen, &pasts[0], &pasts[1]];
        let heads = [Attr::Int("q_num_heads", HEADS), Attr::Int("kv_num_heads", KV_HEADS)];
        let output = decoder.graph.fresh("attended");
        decoder.graph.node_to("Attention", &inputs, &[&output, &presents[0], &presents[1]], &heads);
        level(&decoder.graph);
        output
    })
}

fn rewrite(bytes: &[u8]) -> Result<Rewritten, Error> {
    Rewritten::new(&bytes, &Model::read(&bytes)?, &Options::default())
}

#[test]
fn static_caches_in_their_varieties() {
    let mask = Static { mask: true, causal: false, ..PACKED };
    for (name, form) in [
        ("packed", PACKED),
        ("axis", Static { axis: 1, mode: Some("linear"), ..PACKED }),
        ("heads", Static { packed: false, axis: 2, ..PACKED }),
        ("named", Static { slots: None, ..PACKED }),
        ("mask", Static { window: Some(5), ..mask }),
        ("mask of heads", Static { packed: false, ..mask }),
        ("mask alone", Static { counted: false, window: Some(3), ..mask }),
        ("mask, named", Static { slots: None, counted: false, ..mask }),
        ("causal and mask", Static { causal: true, window: Some(4), ..mask }),
    ] {
        let bytes = fixed(form).model(24);
        let rewritten = rewrite(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        for layer in rewritten.layers() {
            assert_eq!((layer.form, layer.kv_num_heads, layer.head_dim), (Form::Attention, 2, 16), "{name}");
            assert_eq!(layer.layout, if form.packed { Layout::Packed } else { Layout::HeadsFirst }, "{name}");
            assert_eq!(layer.window, form.window.map(|window| window as u32), "{name}");
            // Only a mask has an end.
            let end = form.slots.filter(|_| form.mask).map(|slots| slots as u32);
            assert_eq!(layer.context_length, end, "{name}");
            assert_eq!(
                layer.pasts,
                ["key", "value"].map(|side| format!("past_key_values.{}.{side}", layer.layer)),
                "{name}"
            );
        }
        let inspection = rewritten.inspection();
        let inputs: Vec<&str> = inspection.inputs.iter().map(|port| port.name.as_str()).collect();
        assert_eq!((inputs, inspection.outputs.len()), (vec!["input_ids"], 1), "{name}");
        same_as(&format!("static.{name}"), &growing(form.window).model(23), &bytes, &rewritten, &Options::default());
    }
}

#[test]
fn positions_that_are_counted_from_the_first_slot_are_those_of_the_step() {
    let with = |add: &dyn Fn(&mut Decoder)| {
        let mut decoder = Decoder { graph: fixed(PACKED), kv_heads: KV_HEADS };
        add(&mut decoder);
        rewrite(&decoder.graph.model(24))
    };
    let output = |graph: &mut Graph, from: &str| {
        graph.node_to("Identity", &[from], &["other"], &[]);
        graph.output("other", I64, &[Size::Named("batch"), Size::Named("new")]);
    };
    let rewritten = with(&|decoder| {
        let positions = starts(decoder);
        output(&mut decoder.graph, &positions);
    });
    let ports = rewritten.unwrap().inspection().inputs.clone();
    let inputs: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(inputs, ["input_ids", "position_ids"]);
    let error = with(&|decoder| {
        let positions = starts(decoder);
        let twice = decoder.graph.node("Add", &[&positions, &positions], &[]);
        let last = decoder.graph.ints(&[1], &[1]);
        let first = decoder.graph.node("Unsqueeze", &["write_indices", &last], &[]);
        let sum = decoder.graph.node("Add", &[&twice, &first], &[]);
        output(&mut decoder.graph, &sum);
    });
    let error = error.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("it reads write_indices, which the rewrite drops"), "{error}");
}

#[test]
fn static_caches_that_are_others_are_refused() {
    let mask = Static { mask: true, causal: false, counted: false, ..PACKED };
    for (wrong, operator, text) in [
        (Static { mode: Some("circular"), ..PACKED }, "TensorScatter", "mode is not linear"),
        (Static { axis: 2, ..PACKED }, "TensorScatter", "expected 1"),
        (Static { slots: Some(15), ..PACKED }, "TensorScatter", "at least 16"),
        (Static { wrong: Wrong::Start, ..PACKED }, "TensorScatter", "behind the cached tokens"),
        (Static { wrong: Wrong::NoStart, ..PACKED }, "TensorScatter", "behind the cached tokens"),
        (Static { wrong: Wrong::Count, ..PACKED }, "Attention", "not the number of all tokens"),
        (Static { counted: false, ..PACKED }, "Attention", "counts from the first slot"),
        (Static { causal: false, ..PACKED }, "Attention", "nothing hides later tokens"),
        (Static { wrong: Wrong::Shown, ..mask }, "Attention", "shows slot 41"),
        (Static { wrong: Wrong::Half, packed: false, ..PACKED }, "Attention", "only one of"),
    ] {
        match rewrite(&fixed(wrong).model(24)).err() {
            Some(Error::Unrecognised { node, operator: found, reason, .. }) => {
                assert_eq!(found, operator, "{wrong:?}: {reason}");
                assert!(reason.contains(text), "{wrong:?}: {reason}");
                assert!(node.len() + reason.len() < 250, "{reason}");
            }
            other => panic!("{wrong:?}: {other:?}"),
        }
    }
}

#[test]
fn slots_of_a_cache_are_not_counted_one_by_one() {
    let form = Static { slots: Some(1 << 40), counted: false, causal: false, wrong: Wrong::Hidden, ..PACKED };
    let error = rewrite(&fixed(form).model(24)).unwrap_err().to_string();
    assert!(error.contains("hides the key of the token itself"), "{error}");
}
