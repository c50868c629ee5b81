//! Decoders with an encoder: attentions over the states of the encoder become kvtide's, and the branch without a past computes keys
//! and values of these states.

use kvtide_onnx::{Error, FileSource, Form, Layer, Layout, Model, Options, Port, Rewritten, Weights};

use crate::support::build::{Attr, DIM, Decoder, F32, HEADS, I64, Size};
use crate::support::runtime::root;

fn fixture(name: &str) -> (FileSource, Model) {
    let path = root().join("__test__/fixtures/encoder-decoder").join(name);
    let source = FileSource::open(&path).unwrap();
    let model = Model::read(&source).unwrap();
    (source, model)
}

fn options() -> Options {
    Options { logit_rows: true, ..Options::default() }
}

fn names(ports: &[Port]) -> Vec<&str> {
    ports.iter().map(|port| port.name.as_str()).collect()
}

fn forms(layers: &[Layer]) -> Vec<(u32, Form, Layout, bool)> {
    layers.iter().map(|layer| (layer.layer, layer.form, layer.layout, layer.is_crossed())).collect()
}

#[test]
fn a_merged_decoder_attends_to_states_whose_keys_its_other_branch_computes() {
    let (source, model) = fixture("whisper/decoder_model_merged.onnx");
    let rewritten = Rewritten::new(&source, &model, &options()).unwrap();
    let own = |crossed| [0, 1].map(|layer| (layer, Form::Plain, Layout::HeadsFirst, crossed));
    assert_eq!(forms(rewritten.layers()), own(false));
    assert_eq!(forms(rewritten.crossed()), own(true));
    assert_eq!(rewritten.mask_stride(), None);
    let found = rewritten.inspection();
    assert_eq!(names(&found.inputs), ["input_ids", "logit_rows", "position_ids"]);
    assert_eq!(names(&found.outputs), ["logits"]);
    assert!(found.to_string().contains("\nencoder\n   0-1   plain "), "{found}");
    // The table of positions is an index by the input of positions now.
    assert_eq!(rewritten.context_length(), Some(64));
    let crossing = rewritten.crossing().unwrap();
    assert_eq!(names(&crossing.inputs()), ["input_ids", "encoder_hidden_states"]);
    let of = |layer: u32| ["key", "value"].map(|side| format!("present.{layer}.encoder.{side}"));
    assert_eq!(names(&crossing.outputs()), [of(0), of(1)].concat());
    for model in [rewritten.model(), rewritten.fused(), crossing] {
        assert!(Model::read(&model.to_bytes(&source, Weights::Inline).unwrap().as_slice()).is_ok());
    }
    let parts = rewritten.parts(&source).unwrap();
    let attended =
        parts.iter().flat_map(|part| &part.attentions).map(|attention| (attention.layer, attention.is_crossed));
    assert_eq!(attended.collect::<Vec<_>>(), [(0, false), (0, true), (1, false), (1, true)]);
}

#[test]
fn a_decoder_whose_encoder_gives_keys_and_values_has_no_model_for_them() {
    let (source, model) = fixture("whisper-builder/decoder.onnx");
    let rewritten = Rewritten::new(&source, &model, &options()).unwrap();
    let own = |crossed| [0, 1].map(|layer| (layer, Form::MultiHeadAttention, Layout::Packed, crossed));
    assert_eq!(forms(rewritten.layers()), own(false));
    assert_eq!(forms(rewritten.crossed()), own(true));
    assert!(rewritten.crossing().is_none());
    assert_eq!(rewritten.context_length(), Some(64));
}

#[test]
fn numbers_that_follow_from_distances_are_refused() {
    let (source, model) = fixture("t5/decoder_model_merged.onnx");
    let error = Rewritten::new(&source, &model, &options()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("SelfAttention/Softmax (Softmax)"), "{error}");
}

/// The attention over states in a hand-made decoder.
#[derive(Clone, Copy, Default)]
struct Crossing {
    /// An operator instead of products and a softmax.
    operator: Option<&'static str>,
    mask: Mask,
    attributes: &'static [(&'static str, i64)],
    /// Reads the keys of the first layer in both layers.
    is_twice: bool,
    /// Takes values for keys, and keys for values.
    is_swapped: bool,
    /// Multiplies the values by 2.
    is_scaled: bool,
    /// Has an input that nothing reads.
    is_unread: bool,
}

/// The mask that is added to its scores.
#[derive(Clone, Copy, Default)]
enum Mask {
    #[default]
    None,
    /// `(1 - mask) * factor`.
    Of(f32),
    /// `mask * factor`.
    Inverted(f32),
    /// A mask with a number for each so many samples.
    Sampled(i64),
    /// As [`Mask::Of`], but a mask without ones hides nothing.
    Shown,
    /// Hides states from the first query alone.
    Row,
}

const MULTI_HEAD: &str = "com.microsoft.MultiHeadAttention";
const NAMES: [&str; 2] = ["past_key_cross_", "past_value_cross_"];

fn mask(decoder: &mut Decoder, mask: Mask, keys: &str) -> Option<String> {
    let frames = decoder.size_of(keys, 2);
    let new = decoder.size_of("input_ids", 1);
    let graph = &mut decoder.graph;
    let mut kept = "encoder_attention_mask".to_owned();
    if let Mask::Sampled(stride) = mask {
        let [start, end, axis, step] = [0, i64::MAX, 1, stride].map(|number| graph.ints(&[1], &[number]));
        kept = graph.node("Slice", &[&kept, &start, &end, &axis, &step], &[]);
        let zero = graph.ints(&[1], &[0]);
        let end = graph.node("Unsqueeze", &[&frames, &zero], &[]);
        kept = graph.node("Slice", &[&kept, &start, &end, &axis], &[]);
    }
    let kept = graph.node("Cast", &[&kept], &[Attr::Int("to", F32)]);
    let one = graph.floats(&[], &[1.]);
    let kept = if let Mask::Shown = mask {
        let (axis, nothing) = (graph.ints(&[1], &[1]), graph.floats(&[], &[0.]));
        let sum = graph.node("ReduceSum", &[&kept, &axis], &[]);
        let is_empty = graph.node("Equal", &[&sum, &nothing], &[]);
        graph.node("Where", &[&is_empty, &one, &kept], &[])
    } else {
        kept
    };
    let (hidden, factor) = match mask {
        Mask::None => return None,
        Mask::Inverted(factor) => (kept, factor),
        Mask::Of(factor) => (graph.node("Sub", &[&one, &kept], &[]), factor),
        Mask::Sampled(_) | Mask::Shown | Mask::Row => (graph.node("Sub", &[&one, &kept], &[]), -1e9),
    };
    let factor = graph.floats(&[], &[factor]);
    let mut added = graph.node("Mul", &[&hidden, &factor], &[]);
    let axes = graph.ints(&[2], &[1, 2]);
    added = graph.node("Unsqueeze", &[&added, &axes], &[]);
    if let Mask::Row = mask {
        let (zero, step) = (graph.ints(&[], &[0]), graph.ints(&[], &[1]));
        let rows = graph.node("Range", &[&zero, &new, &step], &[]);
        let is_first = graph.node("Equal", &[&rows, &zero], &[]);
        let column = graph.ints(&[1], &[1]);
        let is_first = graph.node("Unsqueeze", &[&is_first, &column], &[]);
        let nothing = graph.floats(&[], &[0.]);
        added = graph.node("Where", &[&is_first, &added, &nothing], &[]);
    }
    Some(added)
}

fn decoder(form: Crossing) -> Vec<u8> {
    let mut decoder = Decoder::new(2, false);
    decoder.graph.input("encoder_attention_mask", I64, &[Size::Named("batch"), Size::Named("frames")]);
    let heads = if form.operator == Some(MULTI_HEAD) { HEADS } else { 2 };
    let states = [Size::Named("batch"), Size::Is(heads), Size::Named("frames"), Size::Is(DIM)];
    for layer in 0..2 + usize::from(form.is_unread) {
        NAMES.iter().for_each(|name| drop(decoder.graph.input(&format!("{name}{layer}"), F32, &states)));
    }
    let graph = decoder.layers(|decoder, layer, operands| {
        let query = decoder.grouped(layer, operands, &[]);
        let [keys, values] = NAMES.map(|name| format!("{name}{}", if form.is_twice { 0 } else { layer }));
        let [keys, mut values] = if form.is_swapped { [values, keys] } else { [keys, values] };
        if form.is_scaled {
            let two = decoder.graph.floats(&[], &[2.]);
            values = decoder.graph.node("Mul", &[&values, &two], &[]);
        }
        let added = mask(decoder, form.mask, &keys);
        if let Some(operator) = form.operator {
            let mut inputs = vec![query.as_str(), &keys, &values];
            if let Some(added) = &added {
                inputs.extend(["", ""].iter().take(if operator == "Attention" { 0 } else { 2 }));
                inputs.push(added);
            }
            let mut attributes: Vec<Attr> =
                form.attributes.iter().map(|&(name, value)| Attr::Int(name, value)).collect();
            let heads = if operator == "Attention" { "q_num_heads" } else { "num_heads" };
            attributes.push(Attr::Int(heads, HEADS));
            return decoder.graph.node(operator, &inputs, &attributes);
        }
        let query = decoder.heads_first(&query, HEADS);
        let graph = &mut decoder.graph;
        // Two heads of queries share one of the states.
        let repeat = graph.ints(&[5], &[1, 1, 2, 1, 1]);
        let shape = graph.ints(&[4], &[0, HEADS, -1, DIM]);
        let axis = graph.ints(&[1], &[2]);
        let [keys, values] = [keys, values].map(|name| {
            let apart = graph.node("Unsqueeze", &[&name, &axis], &[]);
            let tiled = graph.node("Tile", &[&apart, &repeat], &[]);
            graph.node("Reshape", &[&tiled, &shape], &[])
        });
        let keys = graph.node("Transpose", &[&keys], &[Attr::Ints("perm", vec![0, 1, 3, 2])]);
        let mut scores = graph.node("MatMul", &[&query, &keys], &[]);
        let factor = graph.floats(&[], &[0.25]);
        scores = graph.node("Mul", &[&scores, &factor], &[]);
        if let Some(added) = &added {
            scores = graph.node("Add", &[&scores, added], &[]);
        }
        let weights = graph.node("Softmax", &[&scores], &[]);
        let attended = graph.node("MatMul", &[&weights, &values], &[]);
        decoder.packed(&attended)
    });
    graph.model(21)
}

fn rewrite(form: Crossing) -> Result<Rewritten, Error> {
    let bytes = decoder(form);
    Rewritten::new(&bytes, &Model::read(&bytes)?, &options())
}

#[test]
fn products_and_operators_over_states_are_recognised_with_their_masks() {
    let operators = [(MULTI_HEAD, Form::MultiHeadAttention), ("Attention", Form::Attention)];
    let operators = operators.map(|(operator, form)| (Some(operator), form));
    for (operator, form) in [(None, Form::Plain)].into_iter().chain(operators) {
        let heads = if form == Form::MultiHeadAttention { 4 } else { 2 };
        for (mask, stride) in [
            (Mask::None, None),
            (Mask::Of(-1e9), Some(1)),
            (Mask::Of(0.), None),
            (Mask::Shown, Some(1)),
            (Mask::Sampled(384), Some(384)),
        ] {
            let attributes: &[_] = if operator == Some("Attention") { &[("kv_num_heads", 2)] } else { &[] };
            let rewritten = rewrite(Crossing { operator, mask, attributes, ..Crossing::default() }).unwrap();
            assert_eq!(rewritten.mask_stride(), stride, "{form}");
            let found: Vec<_> =
                rewritten.crossed().iter().map(|layer| (layer.form, layer.num_heads, layer.kv_num_heads)).collect();
            assert_eq!(found, [(form, 4, heads); 2]);
            assert!((rewritten.crossed()[0].scale - 0.25).abs() < 1e-6);
            assert_eq!(names(&rewritten.inspection().inputs), ["input_ids", "logit_rows"]);
            assert_eq!(rewritten.layers().len(), 2);
        }
    }
}

#[test]
fn other_attentions_over_states_are_refused_by_name() {
    let standard = Crossing { operator: Some("Attention"), attributes: &[("kv_num_heads", 2)], ..Crossing::default() };
    let masked = |mask| Crossing { mask, ..Crossing::default() };
    for (form, expected) in [
        (masked(Mask::Of(-5.)), "adds -5 to scores"),
        (masked(Mask::Inverted(-1e9)), "hides other states"),
        (masked(Mask::Row), "hides a state from some queries or heads only"),
        (Crossing { attributes: &[("kv_num_heads", 2), ("is_causal", 1)], ..standard }, "it is causal"),
        (Crossing { is_swapped: true, ..standard }, "are not keys and values of a layer"),
        (Crossing { is_twice: true, ..standard }, "not one attention over the states"),
        (Crossing { is_scaled: true, ..standard }, "its values are scaled"),
        (Crossing { is_scaled: true, ..Crossing::default() }, "its values are scaled"),
        (Crossing { is_unread: true, ..standard }, "not one attention over the states"),
    ] {
        let error = rewrite(form).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
