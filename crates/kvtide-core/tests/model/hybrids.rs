//! The config files of families with states: published sizes, the forms of states, and files that are errors.

use kvtide_core::model::{LayerKind, ModelDescription, StateDType};
use kvtide_core::{Code, Error};

fn model(config: &str) -> ModelDescription {
    ModelDescription::from_config(config).unwrap_or_else(|error| panic!("{error}: {config}"))
}

/// The kinds of all layers as letters: F for attention, M for a state, B for both, - for neither.
fn kinds(model: &ModelDescription) -> String {
    let letter = |(index, kind)| match kind {
        LayerKind::Full if model.states().iter().any(|state| state.layer == index) => 'B',
        LayerKind::Full => 'F',
        LayerKind::State => 'M',
        LayerKind::Empty => '-',
        other => panic!("{other:?}"),
    };
    (0..).zip(model.layers()).map(|(index, layer)| letter((index, layer.kind))).collect()
}

/// The states of a layer: name, shape and element type.
fn states(model: &ModelDescription, layer: u32) -> Vec<String> {
    let of = model.states().iter().filter(|state| state.layer == layer);
    of.map(|state| format!("{} {:?} {}", state.name, state.shape, state.dtype)).collect()
}

const LFM2: &str = r#"{ "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "num_hidden_layers": 16, "hidden_size": 2048,
    "num_attention_heads": 32, "num_key_value_heads": 8, "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8, 10, 12, 14] }"#;

const GRANITE: &str = r#"{ "model_type": "granitemoehybrid", "num_hidden_layers": 4, "hidden_size": 1536, "num_attention_heads": 12,
    "num_key_value_heads": 4, "attention_multiplier": 0.0078125, "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2 }"#;

const NEMOTRON: &str = r#"{ "model_type": "nemotron_h", "num_hidden_layers": 6, "hybrid_override_pattern": "M-M*-E" }"#;

#[test]
fn lfm2_keeps_the_columns_of_short_convolutions() {
    let lfm2 = model(LFM2);
    assert_eq!(kinds(&lfm2), "MMFMMFMMFMFMFMFM");
    assert_eq!(states(&lfm2, 0), ["conv [2048, 2] f32"]);
    assert!(states(&lfm2, 2).is_empty());
    assert_eq!(lfm2.state_layout().bytes, 10 * 2048 * 2 * 4);
    let half = ModelDescription::from_config_in(LFM2, StateDType::BF16).unwrap();
    assert_eq!(
        (states(&half, 0), half.state_layout().bytes),
        (vec!["conv [2048, 2] bf16".to_owned()], 10 * 2048 * 2 * 2)
    );
    let groups: Vec<_> = lfm2.groups().iter().map(|group| (group.kind, group.layers.len(), group.head_dim)).collect();
    assert_eq!(groups, [(LayerKind::Full, 6, 64), (LayerKind::State, 10, 0)]);
    let moe = model(
        r#"{ "model_type": "lfm2_moe", "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"] }"#,
    );
    assert_eq!((kinds(&moe), states(&moe, 2)), ("MFM".to_owned(), vec!["conv [2048, 2] f32".to_owned()]));
}

#[test]
fn mamba_2_keeps_columns_and_a_state_space() {
    let granite = model(GRANITE);
    assert_eq!((kinds(&granite), granite.attention().scale), ("MMFM".to_owned(), Some(0.0078125)));
    assert_eq!(states(&granite, 3), ["conv [3328, 3] f32", "ssm [48, 64, 128] f32"]);
    let bamba = model(r#"{ "model_type": "bamba", "mamba_d_state": 128, "attn_layer_indices": [9, 18, 27] }"#);
    assert_eq!(kinds(&bamba), format!("{0}F{1}F{1}F{2}", "M".repeat(9), "M".repeat(8), "M".repeat(4)));
    assert_eq!(states(&bamba, 0), ["conv [8448, 3] f32", "ssm [128, 64, 128] f32"]);
    let mamba2 = model(
        r#"{ "model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 2560, "num_heads": 80, "n_groups": 1 }"#,
    );
    assert_eq!(kinds(&mamba2), "M".repeat(64));
    assert_eq!((mamba2.groups().len(), mamba2.attention().num_query_heads), (1, None));
    assert_eq!(states(&mamba2, 63), ["conv [5376, 3] f32", "ssm [80, 64, 128] f32"]);
}

#[test]
fn falcon_h1_has_attention_and_a_state_in_each_layer() {
    let falcon = model(
        r#"{ "model_type": "falcon_h1", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 8,
             "num_key_value_heads": 2, "head_dim": 128, "mamba_d_ssm": 3072, "mamba_n_heads": 48, "mamba_d_head": 64,
             "mamba_d_state": 256 }"#,
    );
    assert_eq!(kinds(&falcon), "B".repeat(24));
    let groups: Vec<_> = falcon.groups().iter().map(|group| (group.kind, group.layers.len(), group.head_dim)).collect();
    assert_eq!(groups, [(LayerKind::Full, 24, 128), (LayerKind::State, 24, 0)]);
    assert_eq!(states(&falcon, 7), ["conv [3584, 3] f32", "ssm [48, 64, 256] f32"]);
}

#[test]
fn nemotron_h_counts_feed_forward_layers() {
    let nemotron = model(NEMOTRON);
    assert_eq!(kinds(&nemotron), "M-MF--");
    assert_eq!(states(&nemotron, 2), ["conv [10240, 3] f32", "ssm [128, 64, 128] f32"]);
    let half = model(&NEMOTRON.replace("\"num_hidden", "\"mamba_ssm_cache_dtype\": \"bfloat16\", \"num_hidden"));
    assert_eq!(states(&half, 0)[1], "ssm [128, 64, 128] bf16");
    let listed = r#"{ "model_type": "nemotron_h", "layers_block_type": ["mamba", "moe", "attention"] }"#;
    assert_eq!(kinds(&model(listed)), "M-F");
}

#[test]
fn jamba_and_mamba_keep_a_state_for_each_channel() {
    let jamba = model(r#"{ "model_type": "jamba" }"#);
    assert_eq!(kinds(&jamba), "MMMMFMMM".repeat(4));
    assert_eq!(states(&jamba, 0), ["conv [8192, 3] f32", "ssm [8192, 16] f32"]);
    let mamba = model(r#"{ "architectures": ["MambaForCausalLM"], "hidden_size": 2560, "num_hidden_layers": 64 }"#);
    assert_eq!((kinds(&mamba), states(&mamba, 0)), ("M".repeat(64), states(&mamba, 63)));
    assert_eq!(states(&mamba, 0), ["conv [5120, 3] f32", "ssm [5120, 16] f32"]);
}

#[test]
fn the_delta_rule_keeps_a_matrix_for_each_head() {
    let next = model(r#"{ "model_type": "qwen3_next", "num_hidden_layers": 8 }"#);
    assert_eq!(kinds(&next), "MMMFMMMF");
    assert_eq!(states(&next, 0), ["conv [8192, 3] f32", "recurrent [32, 128, 128] f32"]);
    assert_eq!((next.layers()[3].num_kv_heads, next.layers()[3].head_dim), (2, 256));
    let inside = r#"{ "model_type": "qwen3_5", "text_config": { "model_type": "qwen3_5_text", "num_hidden_layers": 4,
                      "linear_num_value_heads": 16, "full_attention_interval": 2 } }"#;
    let alone = r#"{ "model_type": "qwen3_5_text", "num_hidden_layers": 4, "linear_num_value_heads": 16,
                     "full_attention_interval": 2 }"#;
    assert_eq!(model(inside), model(alone));
    assert_eq!((kinds(&model(alone)), model(alone).layers()[1].num_kv_heads), ("MFMF".to_owned(), 4));
    let moe = r#"{ "model_type": "qwen3_5_moe", "text_config": { "num_hidden_layers": 4 } }"#;
    assert_eq!((kinds(&model(moe)), model(moe).layers()[3].num_kv_heads), ("MMMF".to_owned(), 2));
}

/// The config with a field replaced.
fn with(config: &str, field: &str, value: &str) -> String {
    let mut parsed: serde_json::Value = serde_json::from_str(config).unwrap();
    parsed[field] = serde_json::from_str(value).unwrap();
    parsed.to_string()
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_name() {
    for (config, field, value, found, expected) in [
        (LFM2, "conv_L_cache", "1", "conv_L_cache", "at least 2"),
        (LFM2, "conv_L_cache", "0", "conv_L_cache", "a whole number of at least 1"),
        (LFM2, "full_attn_idxs", "[1.5]", "full_attn_idxs", "a list of whole numbers"),
        (GRANITE, "mamba_n_heads", "50", "mamba_n_heads", "a divisor of 3072 (mamba_expand times hidden_size)"),
        (GRANITE, "mamba_d_head", "32", "mamba_d_head", "64, which is 3072"),
        (GRANITE, "mamba_d_head", "\"all\"", "mamba_d_head", "a whole number of at least 1"),
        (GRANITE, "mamba_d_state", "null", "mamba_d_state", "a whole number of at least 1"),
        (GRANITE, "mamba_n_groups", "2000000000", "mamba_n_groups", "a smaller one"),
        (GRANITE, "mamba_expand", "2147483647", "mamba_expand", "a smaller one"),
        (GRANITE, "attention_multiplier", "null", "attention_multiplier", "a number over 0"),
        (GRANITE, "layer_types", "[\"mamba\"]", "layer_types.length", "4 (num_hidden_layers)"),
        (NEMOTRON, "hybrid_override_pattern", "\"\"", "hybrid_override_pattern.length", "1 to 65536"),
        (NEMOTRON, "mamba_ssm_cache_dtype", "\"int8\"", "mamba_ssm_cache_dtype", "float32, float16 or bfloat16"),
        (NEMOTRON, "mamba_num_heads", "2147483647", "mamba_num_heads", "a smaller one"),
        (r#"{ "model_type": "jamba" }"#, "attn_layer_offset", "8", "attn_layer_offset", "below 8 (attn_layer_period)"),
        (r#"{ "model_type": "mamba2" }"#, "num_heads", "64", "head_dim", "128, which is 8192"),
        (
            r#"{ "model_type": "lfm2_moe" }"#,
            "num_hidden_layers",
            "3",
            "layer_types",
            "a list with full_attention or conv",
        ),
        (r#"{ "model_type": "nemotron_h" }"#, "hybrid_override_pattern", "\"--\"", "layers", "at least one layer"),
        (r#"{ "model_type": "mamba" }"#, "state_size", "2147483647", "layers[0].tensors[1].shape", "at most"),
    ] {
        let error = ModelDescription::from_config(&with(config, field, value)).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        let Error::InvalidModel { field: named, expected: wanted, .. } = error else { panic!("{error}") };
        assert_eq!((named.as_str(), wanted.starts_with(expected)), (found, true), "{wanted}");
    }
}

#[test]
fn layers_of_other_types_are_unsupported() {
    for (config, found) in [
        (
            r#"{ "model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv", "sliding_attention"] }"#,
            "layer_types[1]",
        ),
        (r#"{ "model_type": "granitemoehybrid", "num_hidden_layers": 1, "layer_types": ["conv"] }"#, "layer_types[0]"),
        (r#"{ "model_type": "falcon_h1", "num_hidden_layers": 1, "layer_types": ["attention"] }"#, "layer_types[0]"),
        (r#"{ "model_type": "nemotron_h", "hybrid_override_pattern": "M+" }"#, "hybrid_override_pattern[1]"),
    ] {
        let error = ModelDescription::from_config(config).unwrap_err();
        assert_eq!(error.code(), Code::UnsupportedModel, "{error}");
        let Error::UnsupportedModel { field, .. } = error else { panic!("{error}") };
        assert_eq!(field, found);
    }
}
