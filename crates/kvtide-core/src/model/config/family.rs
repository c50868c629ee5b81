//! The families that are known, and what their fields are when a file leaves them out.

use super::fields::Fields;
use super::rule::LayerRule;
use crate::detail::DetailValue;
use crate::error::{Error, Result};

/// A family: how its layers are told apart, and the defaults of its own configuration class.
pub(super) struct Family {
    pub model_type: &'static str,
    architecture: &'static str,
    pub rule: LayerRule,
    /// `sliding_window` when it is missing.
    pub window: Option<u32>,
    /// `num_attention_heads` when it is missing; none: it has to be there.
    pub query_heads: Option<u32>,
    /// `num_key_value_heads` when it is missing; none: as many as query heads.
    pub kv_heads: Option<u32>,
    /// `head_dim` when it is missing; none: the hidden size, divided by the heads.
    pub head_dim: Option<u32>,
    /// `query_pre_attn_scalar` when it is missing, in families that have it.
    pub query_scalar: Option<f64>,
    /// `attn_logit_softcapping` when it is missing.
    pub softcap: Option<f64>,
    /// Attention has learned sink logits.
    pub sink_logits: bool,
}

/// A family without anything of its own.
const PLAIN: Family = Family {
    model_type: "",
    architecture: "",
    rule: LayerRule::Full,
    window: None,
    query_heads: None,
    kv_heads: None,
    head_dim: None,
    query_scalar: None,
    softcap: None,
    sink_logits: false,
};

const GEMMA3: Family = Family {
    model_type: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    rule: LayerRule::FullEvery { nth: 6, fields: &["sliding_window_pattern", "_sliding_window_pattern"] },
    window: Some(4096),
    query_heads: Some(8),
    kv_heads: Some(4),
    head_dim: Some(256),
    query_scalar: Some(256.),
    ..PLAIN
};

const FAMILIES: &[Family] = &[
    Family { model_type: "llama", architecture: "LlamaForCausalLM", ..PLAIN },
    Family {
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        rule: LayerRule::Sliding,
        window: Some(4096),
        ..PLAIN
    },
    Family {
        model_type: "qwen2",
        architecture: "Qwen2ForCausalLM",
        rule: LayerRule::SlidingFrom { default: 28 },
        window: Some(4096),
        ..PLAIN
    },
    Family {
        model_type: "qwen3",
        architecture: "Qwen3ForCausalLM",
        rule: LayerRule::SlidingFrom { default: 28 },
        window: Some(4096),
        head_dim: Some(128),
        ..PLAIN
    },
    Family {
        model_type: "gemma2",
        architecture: "Gemma2ForCausalLM",
        rule: LayerRule::FullEvery { nth: 2, fields: &[] },
        window: Some(4096),
        head_dim: Some(256),
        query_scalar: Some(256.),
        softcap: Some(50.),
        ..PLAIN
    },
    GEMMA3,
    Family { model_type: "gemma3", architecture: "Gemma3ForConditionalGeneration", ..GEMMA3 },
    Family { model_type: "phi3", architecture: "Phi3ForCausalLM", rule: LayerRule::Sliding, ..PLAIN },
    Family {
        model_type: "gpt_oss",
        architecture: "GptOssForCausalLM",
        rule: LayerRule::FullEvery { nth: 2, fields: &[] },
        window: Some(128),
        head_dim: Some(64),
        sink_logits: true,
        ..PLAIN
    },
];

/// Models that are known to need something else, by the start of their type's name without its marks.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "recurrent state",
        &[
            "mamba",
            "falconmamba",
            "falconh1",
            "rwkv",
            "jamba",
            "bamba",
            "zamba",
            "recurrentgemma",
            "qwen3next",
            "qwen35",
            "granitemoehybrid",
            "nemotronh",
            "lfm2",
            "xlstm",
            "kimilinear",
            "olmohybrid",
        ],
    ),
    (
        "cross attention",
        &[
            "t5",
            "mt5",
            "umt5",
            "byt5",
            "longt5",
            "switchtransformers",
            "bart",
            "mbart",
            "pegasus",
            "marian",
            "m2m100",
            "nllb",
            "whisper",
            "mllama",
            "encoderdecoder",
            "visionencoderdecoder",
            "speechencoderdecoder",
            "prophetnet",
            "blenderbot",
            "moonshine",
        ],
    ),
];

/// The family of a file, and the fields that describe its text model.
pub(super) fn identify<'a>(root: &Fields<'a>) -> Result<(&'static Family, Fields<'a>)> {
    check_attention_kind(root)?;
    let family = by_name(root)?;
    let Some(text) = root.object("text_config", "text_config.")? else {
        return Ok((family, root.clone()));
    };
    if family.model_type != "gemma3" {
        return Err(unsupported("text_config", "an object", format!("none in a model of type {}", family.model_type)));
    }
    check_attention_kind(&text)?;
    match text.text("model_type")? {
        None | Some("gemma3_text") => Ok((family, text)),
        Some(other) => Err(unsupported(text.path("model_type"), other, "gemma3_text")),
    }
}

fn by_name(root: &Fields<'_>) -> Result<&'static Family> {
    if let Some(name) = root.text("model_type")? {
        let known = FAMILIES.iter().find(|family| family.model_type == name);
        return known.ok_or_else(|| unsupported("model_type", name, expected(name)));
    }
    let architectures = root.texts("architectures")?.unwrap_or_default();
    let Some(name) = architectures.first() else {
        return Err(unsupported("model_type", "missing", supported()));
    };
    let known = FAMILIES.iter().find(|family| family.architecture == *name);
    known.ok_or_else(|| unsupported("architectures[0]", *name, expected(name)))
}

/// Refuses what no family here does: cross attention, and attention that sees the future.
fn check_attention_kind(fields: &Fields<'_>) -> Result<()> {
    for flag in ["is_encoder_decoder", "add_cross_attention"] {
        if fields.flag(flag)? {
            return Err(unsupported(fields.path(flag), "true", "false: cross attention is not supported"));
        }
    }
    if fields.says("cross_attention_layers") {
        let expected = "none: cross attention is not supported";
        return Err(unsupported(fields.path("cross_attention_layers"), "a list", expected));
    }
    if fields.says("use_bidirectional_attention") && fields.flag("use_bidirectional_attention").unwrap_or(true) {
        let expected = "false: what later tokens change cannot be kept";
        return Err(unsupported(fields.path("use_bidirectional_attention"), "true", expected));
    }
    Ok(())
}

/// What would be supported, and what is wrong with the model where that is known.
fn expected(name: &str) -> String {
    let name = name.replace(['_', '-'], "").to_lowercase();
    let known = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match REFUSED.iter().find(|(_, prefixes)| known(prefixes)) {
        Some((what, _)) => format!("{}: {what} is not supported", supported()),
        None => supported(),
    }
}

fn supported() -> String {
    let names: Vec<_> = FAMILIES.iter().map(|family| family.model_type).collect();
    format!("one of {}", names.join(", "))
}

/// A refusal of a model that works otherwise.
pub(super) fn unsupported(
    field: impl Into<String>,
    value: impl Into<DetailValue>,
    expected: impl Into<String>,
) -> Error {
    Error::UnsupportedModel { field: field.into(), value: value.into(), expected: expected.into() }
}
