//! Compares with the configuration classes of transformers: two versions, recorded by scripts/model-defaults.py.

use kvtide_core::Error;
use kvtide_core::model::{LayerKind, ModelDescription};
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
    let (layer, attention) = (model.layers()[0], model.attention());
    let mut is = Map::new();
    for (name, size) in [
        ("query_heads", attention.num_query_heads.unwrap()),
        ("kv_heads", layer.num_kv_heads),
        ("head_dim", layer.head_dim),
    ] {
        is.insert(name.to_owned(), json!(size));
    }
    let mut letters = String::new();
    for layer in model.layers() {
        match layer.kind {
            LayerKind::Full => letters.push('F'),
            LayerKind::Sliding { window, sinks: 0 } => {
                letters.push('S');
                assert_eq!(is.entry("window").or_insert(json!(window)), &json!(window));
            }
            other => panic!("{other:?}"),
        }
    }
    is.insert("layers".to_owned(), json!(letters));
    if let Some(scale) = attention.scale {
        is.insert("query_scalar".to_owned(), json!(scale.powi(-2).round() as u32));
    }
    if let Some(softcap) = attention.softcap {
        is.insert("softcap".to_owned(), json!(softcap));
    }
    Ok(is.into())
}

/// The field that a description is refused for.
fn refused_for(error: &Error) -> &str {
    match error {
        Error::InvalidModel { field, .. } | Error::UnsupportedModel { field, .. } => field,
        other => panic!("{other}"),
    }
}

#[test]
fn a_file_describes_what_its_class_makes_of_it() {
    let [older, newer] = recorded();
    for (family, found) in &newer {
        let (newer, older) = (found["cases"].as_array().unwrap(), older[family]["cases"].as_array().unwrap());
        assert!(newer.len() == older.len() && newer.len() > 50, "{family}");
        for (newer, older) in newer.iter().zip(older) {
            let file = &newer["file"];
            assert_eq!(file, &older["file"]);
            let own = described(file);
            match (&newer["is"], &older["is"]) {
                (Value::Null, Value::Null) => assert!(own.is_err(), "{file}: {own:?}"),
                // Newer classes refuse more: a hidden size that the heads do not divide is the one refusal that is kept.
                (Value::Null, is) => match &own {
                    Err(error) => assert!(refused_for(error).ends_with("hidden_size"), "{file}: {error}"),
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
    if family == "gemma3" {
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
            assert!(declared.len() >= 6, "{family}");
            let bare = described(&json!({ "model_type": family }));
            assert_eq!(bare, described(&file(family, declared)), "{family}");
            assert!(bare.is_ok(), "{family}");
        }
    }
}

#[test]
fn no_field_has_another_name() {
    for (family, found) in recorded().iter().flatten() {
        assert_eq!(found["aliases"], json!({}), "{family}");
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
