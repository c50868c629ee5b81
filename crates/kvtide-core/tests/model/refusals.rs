//! Files that are errors: no config, contradictory fields, and unsupported models.

use kvtide_core::model::ModelDescription;
use kvtide_core::{Code, Error};
use proptest::prelude::*;

use crate::support;

const LLAMA: &str = r#"{ "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4 }"#;
const QWEN: &str = r#"{ "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "sliding_window": 8 }"#;
const GEMMA: &str = r#"{ "model_type": "gemma3", "text_config": { "num_hidden_layers": 2 } }"#;

fn refusal(config: &str) -> Error {
    ModelDescription::from_config(config).expect_err(config)
}

/// The config with a field put in front, or in front of the inner ones.
fn with(config: &str, field: &str) -> String {
    let (at, inner) = (config.rfind('{').unwrap(), &config[config.rfind('{').unwrap() + 1..]);
    format!("{}{{ {field},{inner}", &config[..at])
}

/// The config with a field's value replaced.
fn replaced(config: &str, field: &str, value: &str) -> String {
    let mut parsed: serde_json::Value = serde_json::from_str(config).unwrap();
    parsed[field] = serde_json::from_str(value).unwrap();
    parsed.to_string()
}

#[test]
fn text_that_is_no_object_is_refused() {
    for text in ["", "{", "[1]", "7", "null", "{\"model_type\": }", &"[".repeat(100_000)] {
        let error = refusal(text);
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().starts_with("model is "), "{error}");
    }
}

#[test]
fn a_wrong_value_is_refused_by_its_fields_name() {
    for (config, field, value, shown) in [
        (LLAMA, "num_hidden_layers", "0", "0"),
        (LLAMA, "num_hidden_layers", "null", "null"),
        (LLAMA, "num_hidden_layers", "2.5", "2.5"),
        (LLAMA, "num_hidden_layers", "-1", "-1"),
        (LLAMA, "num_hidden_layers", "2000000000", "2000000000"),
        (LLAMA, "num_attention_heads", "\"4\"", "\"4\""),
        (LLAMA, "num_key_value_heads", "3", "3"),
        (LLAMA, "num_key_value_heads", "0", "0"),
        (LLAMA, "head_dim", "4294967296", "4294967296"),
        (LLAMA, "hidden_size", "66", "66"),
        (LLAMA, "layer_types", "[1, 2]", "an array of 2"),
        (LLAMA, "model_type", "7", "7"),
        (QWEN, "use_sliding_window", "1", "1"),
        (QWEN, "sliding_window", "0", "0"),
        (QWEN, "max_window_layers", "-1", "-1"),
    ] {
        let config = replaced(config, field, value);
        let config =
            if field == "max_window_layers" { replaced(&config, "use_sliding_window", "true") } else { config };
        match refusal(&config) {
            Error::InvalidModel { field: found, value, .. } => {
                assert_eq!((found.as_str(), value.to_string().as_str()), (field, shown))
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn fields_within_another_are_named_with_it() {
    let error = refusal(&with(GEMMA, r#""head_dim": "wide""#));
    assert_eq!(error.to_string(), r#"text_config.head_dim is "wide", expected a whole number of at least 1"#);
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[test]
fn null_is_refused_where_no_class_takes_it() {
    const GEMMA2: &str = r#"{ "model_type": "gemma2" }"#;
    const QWEN3: &str = r#"{ "model_type": "qwen3", "use_sliding_window": true }"#;
    const GEMMA3: &str = r#"{ "model_type": "gemma3_text" }"#;
    for (config, field) in [
        (GEMMA2, "num_key_value_heads"),
        (GEMMA2, "head_dim"),
        (GEMMA2, "query_pre_attn_scalar"),
        (QWEN3, "num_attention_heads"),
        (QWEN3, "head_dim"),
        (QWEN3, "max_window_layers"),
        (GEMMA3, "sliding_window_pattern"),
    ] {
        let message = refusal(&replaced(config, field, "null")).to_string();
        assert!(message.starts_with(&format!("{field} is null, expected a")), "{message}");
    }
    assert!(ModelDescription::from_config(&replaced(GEMMA2, "attn_logit_softcapping", "null")).is_ok());
}

#[test]
fn a_default_that_does_not_fit_is_named_as_one() {
    let error = refusal(r#"{ "model_type": "mistral", "num_attention_heads": 4 }"#);
    assert_eq!(
        error.to_string(),
        "num_key_value_heads is 8, expected a divisor of 4 (num_attention_heads); the default for model type mistral is 8"
    );
    let error = refusal(r#"{ "model_type": "phi3", "hidden_size": 31 }"#);
    assert_eq!(
        error.to_string(),
        "hidden_size is 31, expected at least 32 (num_attention_heads), because there is no head_dim"
    );
}

#[test]
fn fields_outside_of_the_text_model_are_not_passed_over() {
    for config in [
        r#"{ "model_type": "gemma3", "num_hidden_layers": 7 }"#,
        r#"{ "model_type": "gemma3", "head_dim": 8, "text_config": null }"#,
    ] {
        let error = refusal(config);
        assert!(error.to_string().starts_with("text_config is missing, expected an object that contains "), "{error}");
    }
}

#[test]
fn layer_types_have_to_fit() {
    let error = refusal(&with(LLAMA, r#""layer_types": ["full_attention"]"#));
    assert_eq!(error.to_string(), "layer_types.length is 1, expected 2 (num_hidden_layers)");
    let types = r#""layer_types": ["sliding_attention", "full_attention"]"#;
    assert_eq!(
        refusal(&with(LLAMA, types)).to_string(),
        "sliding_window is null, expected a window, because layers are sliding_attention"
    );
    assert_eq!(
        refusal(&with(QWEN, types)).to_string(),
        "use_sliding_window is false, expected true, because layers are sliding_attention"
    );
}

/// The field of a refusal with `UNSUPPORTED_MODEL`, and whether its message has this in it.
fn unsupported(config: &str, says: &str) -> String {
    let error = refusal(config);
    assert_eq!(error.code(), Code::UnsupportedModel, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    match error {
        Error::UnsupportedModel { field, .. } => field,
        other => panic!("{other}"),
    }
}

#[test]
fn models_that_work_otherwise_are_refused_by_name() {
    for (name, says) in [
        ("rwkv", "recurrent state"),
        ("zamba2", "recurrent state"),
        ("xlstm", "recurrent state"),
        ("kimi_linear", "recurrent state"),
        ("recurrent_gemma", "recurrent state"),
        ("t5", "cross attention"),
        ("whisper", "cross attention"),
        ("mllama", "cross attention"),
        ("vision-encoder-decoder", "cross attention"),
        ("llama4", "one of llama, mistral"),
        ("", "one of llama, mistral"),
    ] {
        assert_eq!(
            unsupported(&format!(r#"{{ "model_type": "{name}", "num_hidden_layers": 2 }}"#), says),
            "model_type"
        );
        assert!(refusal(&format!(r#"{{ "model_type": "{name}" }}"#)).to_string().contains(&format!("is {name}")));
    }
    assert_eq!(unsupported("{}", "model_type is missing"), "model_type");
    assert_eq!(unsupported(r#"{ "architectures": ["RwkvForCausalLM"] }"#, "recurrent state"), "architectures[0]");
    assert_eq!(
        unsupported(r#"{ "architectures": ["T5ForConditionalGeneration"] }"#, "cross attention"),
        "architectures[0]"
    );
}

#[test]
fn fields_that_mean_something_else_are_refused_by_name() {
    assert_eq!(unsupported(&with(LLAMA, r#""is_encoder_decoder": true"#), "cross attention"), "is_encoder_decoder");
    assert_eq!(unsupported(&with(LLAMA, r#""add_cross_attention": true"#), "cross attention"), "add_cross_attention");
    let crossed = with(LLAMA, r#""cross_attention_layers": [3, 8]"#);
    assert_eq!(unsupported(&crossed, "cross attention"), "cross_attention_layers");
    let single = with(LLAMA, r#""per_layer_config": { "1": { "num_key_value_heads": 1 } }"#);
    assert_eq!(unsupported(&single, "settings of single layers"), "per_layer_config");
    let both = with(GEMMA, r#""use_bidirectional_attention": true"#);
    assert_eq!(unsupported(&both, "later tokens"), "text_config.use_bidirectional_attention");
    let recurrent = with(LLAMA, r#""layer_types": ["linear_attention", "full_attention"]"#);
    assert_eq!(unsupported(&recurrent, "recurrent state"), "layer_types[0]");
    let chunked = with(LLAMA, r#""layer_types": ["full_attention", "chunked_attention"]"#);
    assert_eq!(unsupported(&chunked, "full_attention or sliding_attention"), "layer_types[1]");
    let inner = with(GEMMA, r#""model_type": "gemma3n_text""#);
    assert_eq!(unsupported(&inner, "gemma3_text"), "text_config.model_type");
    let inside = with(LLAMA, r#""text_config": {}"#);
    assert_eq!(unsupported(&inside, "llama"), "text_config");
    for (inner, says) in [
        (r#"{ "model_type": "stranger" }"#, "is llava, expected one of llama"),
        (r#"{ "model_type": "gemma3" }"#, "is llava"),
        ("{}", "is llava"),
        (r#"{ "model_type": 7 }"#, "text_config.model_type is 7"),
    ] {
        let error = refusal(&format!(r#"{{ "model_type": "llava", "text_config": {inner} }}"#)).to_string();
        assert!(error.contains(says) && error.len() < 300, "{error}");
    }
    for (outer, field) in [
        (r#""model_type": "mllama""#, "model_type"),
        (r#""architectures": ["MllamaForConditionalGeneration"]"#, "architectures[0]"),
    ] {
        let crossed = format!(r#"{{ {outer}, "text_config": {{ "model_type": "llama" }} }}"#);
        assert_eq!(unsupported(&crossed, "cross attention"), field);
    }
    let encoder = r#"{ "model_type": "llava", "text_config": { "model_type": "llama", "add_cross_attention": true } }"#;
    assert_eq!(unsupported(encoder, "cross attention"), "text_config.add_cross_attention");
    let short = r#"{ "model_type": "smollm3", "no_rope_layers": [1, 0] }"#;
    assert_eq!(refusal(short).to_string(), "no_rope_layers.length is 2, expected at least 36 (num_hidden_layers)");
    let letters = r#"{ "model_type": "exaone4", "sliding_window_pattern": "LX" }"#;
    assert_eq!(unsupported(letters, "L or G"), "sliding_window_pattern[1]");
    let empty = refusal(r#"{ "model_type": "exaone4", "sliding_window_pattern": "" }"#).to_string();
    assert!(empty.starts_with("sliding_window_pattern.length is 0"), "{empty}");
}

#[test]
fn words_that_python_writes_do_not_hide_what_is_wrong() {
    let config = r#"{ "model_type": "zamba2", "time_step_limit": [0.0, Infinity], "layer_norm_epsilon": NaN }"#;
    assert_eq!(unsupported(config, "recurrent state"), "model_type");
}

#[test]
fn any_value_in_any_field_is_taken_or_refused_with_a_code() {
    let fields = prop::sample::select(vec![
        "model_type",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_size",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "sliding_window_pattern",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "text_config",
        "architectures",
        "is_encoder_decoder",
    ]);
    let values = prop::sample::select(vec![
        "null",
        "true",
        "false",
        "0",
        "1",
        "2",
        "3",
        "-1",
        "0.5",
        "1e300",
        "1e-300",
        "4294967295",
        "18446744073709551615",
        "\"\"",
        "\"gemma3\"",
        "\"phi3\"",
        "\"gpt_oss\"",
        "[]",
        "[null]",
        "[\"full_attention\", \"sliding_attention\"]",
        "{}",
    ]);
    let changes = proptest::collection::vec((fields, values), 1..6);
    support::run("configs", 5_000, (prop::sample::select(vec![LLAMA, QWEN, GEMMA]), changes), |(config, changes)| {
        let changed = changes.iter().fold(config.to_owned(), |config, (field, value)| replaced(&config, field, value));
        match ModelDescription::from_config(&changed) {
            Ok(model) => prop_assert!(!model.layers().is_empty()),
            Err(error) => {
                prop_assert!(matches!(error.code(), Code::InvalidArgument | Code::UnsupportedModel), "{error}");
                prop_assert_eq!(error.details()[0].name, "argument");
            }
        }
        Ok(())
    });
}
