//! The config files of each family: the kinds of their layers, and their attention.

use kvtide_core::model::{AttentionDescription, LayerDescription, LayerKind, ModelDescription};

fn model(config: &str) -> ModelDescription {
    ModelDescription::from_config(config).unwrap_or_else(|error| panic!("{error}: {config}"))
}

/// The kinds of all layers as letters: F for a full one, S for one that slides by `window`.
fn kinds(model: &ModelDescription, window: u32) -> String {
    let letter = |layer: &LayerDescription| match layer.kind {
        LayerKind::Full => 'F',
        LayerKind::Sliding { window: found, sinks: 0 } if found == window => 'S',
        other => panic!("{other:?}"),
    };
    model.layers().iter().map(letter).collect()
}

/// Heads of queries, heads of keys and values, and the head's dimension of the first layer.
fn sizes(model: &ModelDescription) -> (u32, u32, u32) {
    let LayerDescription { num_kv_heads, head_dim, value_head_dim, .. } = model.layers()[0];
    assert_eq!(head_dim, value_head_dim);
    (model.attention().num_query_heads.unwrap(), num_kv_heads, head_dim)
}

#[test]
fn llama() {
    let llama = model(
        r#"{ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
             "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 500000.0 }"#,
    );
    assert_eq!(kinds(&llama, 0), "F".repeat(32));
    assert_eq!(sizes(&llama), (32, 8, 128));
    let plain = AttentionDescription { num_query_heads: Some(32), ..Default::default() };
    assert_eq!((llama.groups().len(), llama.attention()), (1, &plain));
}

#[test]
fn heads_and_dims_that_are_missing_follow_from_the_others() {
    let with = |fields: &str| {
        model(&format!(
            r#"{{ "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4{fields} }}"#
        ))
    };
    assert_eq!(sizes(&with("")), (4, 4, 16));
    assert_eq!(sizes(&with(r#", "num_key_value_heads": null, "head_dim": null"#)), (4, 4, 16));
    assert_eq!(sizes(&with(r#", "num_key_value_heads": 2, "head_dim": 24"#)), (4, 2, 24));
}

#[test]
fn a_file_may_name_its_class_alone() {
    let config = r#"{ "architectures": ["MistralForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 16,
                     "sliding_window": 5 }"#;
    assert_eq!((kinds(&model(config), 5), sizes(&model(config))), ("S".to_owned(), (16, 8, 4)));
}

#[test]
fn mistral_slides_where_it_has_a_window() {
    let with = |window: &str| {
        let config = format!(
            r#"{{ "model_type": "mistral", "num_hidden_layers": 3, "hidden_size": 4096, "num_attention_heads": 32,
                  "num_key_value_heads": 8{window} }}"#
        );
        kinds(&model(&config), 4096)
    };
    assert_eq!(with(r#", "sliding_window": 4096"#), "SSS");
    assert_eq!(with(r#", "sliding_window": null"#), "FFF");
    assert_eq!(with(""), "SSS");
}

#[test]
fn qwen_slides_where_it_is_switched_on_from_a_layer_on() {
    for family in ["qwen2", "qwen3"] {
        let with = |fields: &str| {
            let config = format!(
                r#"{{ "model_type": "{family}", "num_hidden_layers": 4, "hidden_size": 896, "num_attention_heads": 14,
                      "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 32768, {fields} }}"#
            );
            kinds(&model(&config), 32768)
        };
        assert_eq!(with(r#""use_sliding_window": false, "max_window_layers": 0"#), "FFFF");
        assert_eq!(with(r#""max_window_layers": 0"#), "FFFF");
        assert_eq!(with(r#""use_sliding_window": true, "max_window_layers": 3"#), "FFFS");
        assert_eq!(with(r#""use_sliding_window": true, "max_window_layers": 0"#), "SSSS");
        assert_eq!(with(r#""use_sliding_window": true, "max_window_layers": 28"#), "FFFF");
        assert_eq!(with(r#""use_sliding_window": true"#), "FFFF");
    }
}

#[test]
fn qwen3_has_heads_of_128_where_it_says_nothing() {
    let config = r#"{ "model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 1024, "num_attention_heads": 16,
                     "num_key_value_heads": 8 }"#;
    assert_eq!(sizes(&model(config)), (16, 8, 128));
}

#[test]
fn gemma2_alternates_and_caps() {
    let gemma = model(
        r#"{ "model_type": "gemma2", "num_hidden_layers": 5, "hidden_size": 4608, "num_attention_heads": 32,
             "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 4096, "query_pre_attn_scalar": 144,
             "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0 }"#,
    );
    assert_eq!(kinds(&gemma, 4096), "SFSFS");
    assert_eq!(gemma.groups().len(), 2);
    let attention = AttentionDescription {
        num_query_heads: Some(32),
        scale: Some(1. / 12.),
        softcap: Some(50.),
        sink_logits: false,
    };
    assert_eq!(gemma.attention(), &attention);
    let bare =
        r#"{ "model_type": "gemma2", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4 }"#;
    assert_eq!((sizes(&model(bare)), model(bare).attention().scale), ((8, 4, 256), Some(0.0625)));
    let without = bare.replace('}', r#", "attn_logit_softcapping": null }"#);
    assert_eq!(model(&without).attention().softcap, None);
}

#[test]
fn gemma3_keeps_everything_in_each_sixth_layer() {
    let text = r#"{ "model_type": "gemma3_text", "num_hidden_layers": 8, "hidden_size": 1152, "num_attention_heads": 4,
                   "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "query_pre_attn_scalar": 256 }"#;
    assert_eq!(kinds(&model(text), 512), "SSSSSFSS");
    assert_eq!(model(text).attention().scale, Some(0.0625));
    assert_eq!(model(text).attention().softcap, None);
    let with = |fields: &str| kinds(&model(&text.replace("\"head_dim\"", &format!("{fields}, \"head_dim\""))), 512);
    assert_eq!(with(r#""sliding_window_pattern": 3"#), "SSFSSFSS");
    // A class writes the second one, and reads the first.
    assert_eq!(with(r#""sliding_window_pattern": 3, "_sliding_window_pattern": 6"#), "SSFSSFSS");
    assert_eq!(with(r#""_sliding_window_pattern": 3"#), "SSSSSFSS");
}

#[test]
fn gemma3_with_images_has_its_text_model_inside_and_leaves_out_defaults() {
    let gemma = model(
        r#"{ "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
             "text_config": { "hidden_size": 2560, "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 1024 },
             "vision_config": { "num_attention_heads": 16, "model_type": "siglip_vision_model" } }"#,
    );
    assert_eq!((kinds(&gemma, 1024), sizes(&gemma)), ("SSSSSFS".to_owned(), (8, 4, 256)));
}

#[test]
fn phi3_slides_where_it_has_a_window() {
    let with = |window: &str| {
        let config = format!(
            r#"{{ "model_type": "phi3", "num_hidden_layers": 2, "hidden_size": 3072, "num_attention_heads": 32,
                  "num_key_value_heads": 32{window} }}"#
        );
        (kinds(&model(&config), 2047), sizes(&model(&config)))
    };
    assert_eq!(with(r#", "sliding_window": 2047"#), ("SS".to_owned(), (32, 32, 96)));
    assert_eq!(with(r#", "sliding_window": null"#).0, "FF");
    assert_eq!(with("").0, "FF");
}

#[test]
fn gpt_oss_alternates_and_has_learned_sinks() {
    let gpt = model(
        r#"{ "model_type": "gpt_oss", "num_hidden_layers": 4, "hidden_size": 2880, "num_attention_heads": 64,
             "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "rope_scaling": { "rope_type": "yarn" } }"#,
    );
    assert_eq!((kinds(&gpt, 128), sizes(&gpt)), ("SFSF".to_owned(), (64, 8, 64)));
    assert!(gpt.attention().sink_logits);
    assert_eq!((gpt.attention().scale, gpt.attention().softcap), (None, None));
}

#[test]
fn a_list_of_layer_types_goes_before_the_familys_rule() {
    for family in ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt_oss"] {
        let config = format!(
            r#"{{ "model_type": "{family}", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "sliding_window": 9, "use_sliding_window": true,
                  "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] }}"#
        );
        assert_eq!(kinds(&model(&config), 9), "FSS", "{family}");
    }
}

#[test]
fn a_text_of_letters_is_repeated_and_the_last_layer_keeps_every_token() {
    let with = |pattern: &str| {
        let config = format!(
            r#"{{ "model_type": "exaone4", "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "sliding_window": 9, "sliding_window_pattern": {pattern} }}"#
        );
        kinds(&model(&config), 9)
    };
    assert_eq!(with(r#""LG""#), "SFSFF");
    assert_eq!(with(r#""L""#), "SSSSF");
    assert_eq!(with("2"), "SFSFS");
}

#[test]
fn layers_without_rotary_embeddings_slide_in_smollm3() {
    let with = |fields: &str| {
        let config = format!(
            r#"{{ "model_type": "smollm3", "num_hidden_layers": 4, "sliding_window": 9, "use_sliding_window": true{fields} }}"#
        );
        kinds(&model(&config), 9)
    };
    assert_eq!(with(""), "FFFS");
    assert_eq!(with(r#", "no_rope_layer_interval": 2"#), "FSFS");
    assert_eq!(with(r#", "no_rope_layers": [0, 1, 1, 0, 0]"#), "SFFS");
    assert_eq!(with(r#", "no_rope_layers": [0, 1, 1, 0], "use_sliding_window": false"#), "FFFF");
}

#[test]
fn in_a_file_of_another_type_the_text_model_counts() {
    for outer in [r#""model_type": "llava", "#, r#""architectures": ["Idefics3ForConditionalGeneration"], "#, ""] {
        let inner = r#"{ "model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 5 }"#;
        let config = format!(r#"{{ {outer}"num_hidden_layers": 9, "text_config": {inner} }}"#);
        assert_eq!(model(&config).layers(), model(inner).layers(), "{outer}");
    }
}
