//! Compares with the configuration classes of transformers: two versions, recorded by scripts/model-defaults.py.

use kvtide_core::Error;
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription, StateDType, StateTensor};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::support;

/// The newest last.
const RECORDED: [&str; 2] = [include_str!("transformers/4.57.6.json"), include_str!("transformers/5.23.0.json")];

fn recorded() -> [Map<String, Value>; 2] {
    RECORDED.map(|text| serde_json::from_str(text).unwrap())
}

/// The description of a file, in the words of the record.
fn described(file: &Value) -> Result<Value, Error> {
    let model = ModelDescription::from_config(&file.to_string())?;
    let attention = model.attention();
    let mut is = Map::new();
    let with_kv: Vec<&LayerDescription> = model.layers().iter().filter(|layer| layer.kind.has_kv()).collect();
    assert_eq!(attention.num_query_heads.is_some(), !with_kv.is_empty());
    if let Some(layer) = with_kv.first() {
        for (name, size) in [
            ("query_heads", attention.num_query_heads.unwrap()),
            ("kv_heads", layer.num_kv_heads),
            ("head_dim", layer.head_dim),
        ] {
            is.insert(name.to_owned(), json!(size));
        }
    }
    let mut letters = String::new();
    for (index, layer) in (0..).zip(model.layers()) {
        let has_state = model.states().iter().any(|state| state.layer == index);
        match layer.kind {
            LayerKind::Full if has_state => letters.push('B'),
            LayerKind::Full => letters.push('F'),
            LayerKind::State if has_state => letters.push('M'),
            LayerKind::Empty if !has_state => letters.push('-'),
            LayerKind::Sliding { window, sinks: 0 } => {
                letters.push('S');
                assert_eq!(is.entry("window").or_insert(json!(window)), &json!(window));
            }
            other => panic!("{other:?}"),
        }
    }
    is.insert("layers".to_owned(), json!(letters));
    states(&model, &mut is);
    if let Some(scale) = attention.scale {
        if file["model_type"].as_str().is_some_and(|family| family.starts_with("granite")) {
            is.insert("scale".to_owned(), json!(scale));
        } else {
            is.insert("query_scalar".to_owned(), json!(scale.powi(-2).round() as u32));
        }
    }
    if let Some(softcap) = attention.softcap {
        is.insert("softcap".to_owned(), json!(softcap));
    }
    Ok(is.into())
}

/// Adds the shapes of a layer's states, which are those of all layers that have some, and another element type of `ssm`
/// than 32 bits.
fn states(model: &ModelDescription, is: &mut Map<String, Value>) {
    let Some(first) = model.states().first() else { return };
    let of = |layer: u32| model.states().iter().filter(move |state| state.layer == layer);
    let shapes: Map<_, _> = of(first.layer).map(|state| (state.name.clone(), json!(state.shape))).collect();
    is.insert("states".to_owned(), shapes.into());
    let mut layers: Vec<u32> = model.states().iter().map(|state| state.layer).collect();
    layers.dedup();
    for layer in layers {
        let moved = |state: &StateTensor| StateTensor { layer, ..state.clone() };
        assert!(of(layer).cloned().eq(of(first.layer).map(moved)));
    }
    for state in of(first.layer) {
        match (&*state.name, state.dtype) {
            (_, StateDType::F32) => {}
            ("ssm", StateDType::F16) => drop(is.insert("ssm_dtype".to_owned(), json!("float16"))),
            ("ssm", StateDType::BF16) => drop(is.insert("ssm_dtype".to_owned(), json!("bfloat16"))),
            other => panic!("{other:?}"),
        }
    }
}

/// The field that a description is refused for.
fn refused_for(error: &Error) -> &str {
    match error {
        Error::InvalidModel { field, .. } | Error::UnsupportedModel { field, .. } => field,
        other => panic!("{other}"),
    }
}

/// True if a family has states.
fn is_hybrid(found: &Value) -> bool {
    found["cases"].as_array().unwrap().iter().any(|case| !case["is"]["states"].is_null())
}

/// True if a field of a file's text model is null.
fn is_null(file: &Value, field: &str) -> bool {
    let field = field.trim_start_matches("text_config.");
    file.get("text_config").unwrap_or(file).get(field).is_some_and(Value::is_null)
}

/// True if a file has a null that newer classes refuse and a description does not read: a size that no layer needs.
fn has_unread_null(file: &Value) -> bool {
    let fields = ["hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "full_attention_interval"];
    fields.iter().any(|field| is_null(file, field))
}

#[test]
fn a_file_describes_what_its_class_makes_of_it() {
    let [older, newer] = recorded();
    for (family, found) in &newer {
        let newer = found["cases"].as_array().unwrap();
        // The older version does not have all families.
        let is_strict = is_hybrid(found) || !older.contains_key(family);
        let older = older.get(family).map_or(newer, |found| found["cases"].as_array().unwrap());
        assert!(newer.len() == older.len() && newer.len() > 40, "{family}");
        for (newer, older) in newer.iter().zip(older) {
            let file = &newer["file"];
            assert_eq!(file, &older["file"]);
            let own = described(file);
            match (&newer["is"], &older["is"]) {
                (Value::Null, Value::Null) => {
                    assert!(own.is_err() || is_strict && has_unread_null(file), "{file}: {own:?}")
                }
                // Newer classes refuse more: a hidden size that the heads do not divide is the one refusal that is kept,
                // and in families with states or without an older class those of null.
                (Value::Null, is) => match &own {
                    Err(error) => {
                        let field = refused_for(error);
                        let is_null = is_strict && is_null(file, field);
                        assert!(field.ends_with("hidden_size") || is_null, "{file}: {error}");
                    }
                    Ok(own) => assert_eq!(own, is, "{file}"),
                },
                (is, Value::Null) => assert_eq!(own.as_ref(), Ok(is), "{file}"),
                (is, both) => assert_eq!((own.as_ref(), is), (Ok(is), both), "{file}"),
            }
        }
    }
}

/// A file of a family, with these fields of its text model.
fn file(family: &str, fields: &Map<String, Value>) -> Value {
    if matches!(family, "gemma3" | "qwen3_5" | "qwen3_5_moe") {
        return json!({ "model_type": family, "text_config": fields });
    }
    let mut file = fields.clone();
    file.insert("model_type".to_owned(), family.into());
    file.into()
}

#[test]
fn a_file_without_a_field_is_the_file_with_every_default() {
    for recorded in recorded() {
        for (family, found) in &recorded {
            let declared = found["declared"].as_object().unwrap();
            assert!(declared.len() >= 5, "{family}");
            let bare = described(&json!({ "model_type": family }));
            assert_eq!(bare, described(&file(family, declared)), "{family}");
            // No model can be built of LFM2-MoE without the types of its layers.
            assert_eq!(bare.is_ok(), family != "lfm2_moe", "{family}");
        }
    }
}

#[test]
fn no_field_has_another_name() {
    for (family, found) in recorded().iter().flatten() {
        // Both names of the list of types are read.
        let aliases = match &**family {
            "granitemoehybrid" => json!({ "layers_block_type": "layer_types" }),
            "nemotron_h" => json!({ "layer_types": "layers_block_type" }),
            _ => json!({}),
        };
        assert_eq!(found["aliases"], aliases, "{family}");
    }
}

/// Values that a field may have besides its default.
fn others(field: &str) -> &'static [&'static str] {
    match field {
        "num_hidden_layers" => &["1", "2", "9", "0"],
        "hidden_size" => &["64", "100", "31"],
        "num_attention_heads" => &["1", "4", "48", "null"],
        "num_key_value_heads" => &["null", "1", "2", "8"],
        "head_dim" => &["null", "16"],
        "sliding_window" => &["null", "5", "4096"],
        "use_sliding_window" => &["true", "true", "null"],
        "max_window_layers" => &["0", "1", "null"],
        "layer_types" => &["null", r#"["sliding_attention", "full_attention"]"#],
        "query_pre_attn_scalar" => &["144", "null"],
        "attn_logit_softcapping" => &["null", "30.5"],
        "attention_multiplier" => &["null", "0.25"],
        "sliding_window_pattern" => &["3", r#""LLG""#],
        "no_rope_layers" => &["null", "[1, 0]"],
        "no_rope_layer_interval" => &["2", "3"],
        "layers_block_type" => &["null", r#"["mamba", "attention", "mlp"]"#],
        "full_attn_idxs" | "attn_layer_indices" => &["null", "[0, 3]", "[-1, 900]"],
        "mamba_d_head" => &["null", r#""auto""#, "64"],
        "mamba_d_ssm" => &["null", "2048"],
        "mamba_ssm_cache_dtype" => &["null", r#""bfloat16""#, r#""float64""#],
        "attn_layer_offset" => &["0", "8", "null"],
        name if name.starts_with("mamba") || name.starts_with("linear") || name.starts_with("conv") => {
            &["2", "8", "null"]
        }
        "state_size" | "ssm_state_size" | "num_heads" | "n_groups" | "expand" | "attn_layer_period" => &["2", "16"],
        _ => &["false"],
    }
}

#[test]
fn fields_that_equal_their_defaults_may_go() {
    let recorded = recorded();
    let choices = proptest::collection::vec((0u32..4, any::<prop::sample::Index>()), 16);
    let drawn = (0..recorded.len(), any::<prop::sample::Index>(), choices);
    support::run("defaults left out", 20_000, drawn, |(version, family, choices)| {
        let families = &recorded[version];
        let (family, found) = families.iter().nth(family.index(families.len())).unwrap();
        let (mut full, mut short) = (Map::new(), Map::new());
        for ((name, default), (choice, other)) in found["declared"].as_object().unwrap().iter().zip(choices) {
            match choice {
                0 => {
                    let value: Value = serde_json::from_str(other.get::<&str>(others(name))).unwrap();
                    full.insert(name.clone(), value.clone());
                    short.insert(name.clone(), value);
                }
                1 => {}
                _ => {
                    full.insert(name.clone(), default.clone());
                }
            }
        }
        let (full, short) = (file(family, &full), file(family, &short));
        prop_assert_eq!(described(&full), described(&short), "{} and {}", full, short);
        Ok(())
    });
}
