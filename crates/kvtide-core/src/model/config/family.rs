//! The known model families: how they distinguish sliding from full layers, and the defaults of their configuration
//! classes.
//!
//! The numbers are those of the classes in transformers; `tests/model/transformers` records what the classes declare.

pub(super) struct ModelFamily {
    pub model_type: &'static str,
    pub architecture: &'static str,
    pub rule: LayerRule,
    /// The default of `num_hidden_layers`.
    pub layers: u32,
    /// The default of `hidden_size`.
    pub hidden: u32,
    /// True if `hidden_size` must be a multiple of the number of heads that it is divided by.
    pub hidden_is_multiple: bool,
    /// The default of `num_attention_heads`.
    pub query_heads: u32,
    /// `num_key_value_heads`. If derived, it is `num_attention_heads`.
    pub kv_heads: Size,
    /// `head_dim`. If derived, it is the hidden size divided by the number of heads.
    pub head_dim: Size,
    /// The default of `sliding_window`.
    pub window: Option<u32>,
    /// The default of `query_pre_attn_scalar`, in families that have it and `attn_logit_softcapping`.
    pub query_scalar: Option<f64>,
    /// The default of `attn_logit_softcapping`.
    pub softcap: Option<f64>,
    /// True if attention has learned sink logits.
    pub sink_logits: bool,
}

impl ModelFamily {
    /// The end of an error message about a size that the file may have left out.
    pub fn meaning(&self, unsaid: Size) -> String {
        match unsaid {
            Size::Derived => String::new(),
            Size::Default(size) | Size::Required(size) => {
                format!("; the default for model type {} is {size}", self.model_type)
            }
        }
    }
}

/// The rule by which a family distinguishes its layers.
#[derive(Clone, Copy, Debug)]
pub(super) enum LayerRule {
    /// All layers keep every token.
    Full,
    /// All layers slide if there is a window.
    Sliding,
    /// Layers from `max_window_layers` on slide if `use_sliding_window` is true.
    SlidingFrom {
        /// The default of `max_window_layers`.
        default: u32,
    },
    /// The last of every `nth` layers keeps every token; the others slide.
    FullEvery {
        /// The default of the period.
        nth: u32,
        /// The field that may give another period.
        field: Option<&'static str>,
    },
}

/// The value of a size that a file leaves out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Size {
    /// Derived from other fields.
    Derived,
    /// This value if missing; if `null`, derived from other fields.
    Default(u32),
    /// This value if missing; `null` is an error.
    Required(u32),
}

/// The family that the other families are described relative to.
const LLAMA: ModelFamily = ModelFamily {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    rule: LayerRule::Full,
    layers: 32,
    hidden: 4096,
    hidden_is_multiple: true,
    query_heads: 32,
    kv_heads: Size::Derived,
    head_dim: Size::Derived,
    window: None,
    query_scalar: None,
    softcap: None,
    sink_logits: false,
};

const QWEN2: ModelFamily = ModelFamily {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    rule: LayerRule::SlidingFrom { default: 28 },
    hidden_is_multiple: false,
    kv_heads: Size::Default(32),
    window: Some(4096),
    ..LLAMA
};

const GEMMA2: ModelFamily = ModelFamily {
    model_type: "gemma2",
    architecture: "Gemma2ForCausalLM",
    rule: LayerRule::FullEvery { nth: 2, field: None },
    layers: 26,
    hidden: 2304,
    query_heads: 8,
    kv_heads: Size::Required(4),
    head_dim: Size::Required(256),
    window: Some(4096),
    query_scalar: Some(256.),
    softcap: Some(50.),
    ..LLAMA
};

const GEMMA3: ModelFamily = ModelFamily {
    model_type: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    rule: LayerRule::FullEvery { nth: 6, field: Some("sliding_window_pattern") },
    softcap: None,
    ..GEMMA2
};

pub(super) const FAMILIES: &[ModelFamily] = &[
    LLAMA,
    ModelFamily {
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        rule: LayerRule::Sliding,
        hidden_is_multiple: false,
        kv_heads: Size::Default(8),
        window: Some(4096),
        ..LLAMA
    },
    QWEN2,
    ModelFamily { model_type: "qwen3", architecture: "Qwen3ForCausalLM", head_dim: Size::Required(128), ..QWEN2 },
    GEMMA2,
    GEMMA3,
    ModelFamily { model_type: "gemma3", architecture: "Gemma3ForConditionalGeneration", ..GEMMA3 },
    ModelFamily {
        model_type: "phi3",
        architecture: "Phi3ForCausalLM",
        rule: LayerRule::Sliding,
        hidden: 3072,
        hidden_is_multiple: false,
        ..LLAMA
    },
    ModelFamily {
        model_type: "gpt_oss",
        architecture: "GptOssForCausalLM",
        rule: LayerRule::FullEvery { nth: 2, field: None },
        layers: 36,
        hidden: 2880,
        hidden_is_multiple: false,
        query_heads: 64,
        kv_heads: Size::Default(8),
        head_dim: Size::Default(64),
        window: Some(128),
        sink_logits: true,
        ..LLAMA
    },
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fields::FIELDS;
    use super::*;

    const RECORDED: [&str; 2] = [
        include_str!("../../../tests/model/transformers/4.57.6.json"),
        include_str!("../../../tests/model/transformers/5.23.0.json"),
    ];

    impl ModelFamily {
        /// The value that the table has for a missing field, as a class declares it; [`None`] if the family has no such
        /// field.
        fn declares(&self, field: &str) -> Option<Value> {
            let size = |size| match size {
                Size::Derived => Value::Null,
                Size::Default(size) | Size::Required(size) => json!(size),
            };
            let slides = !matches!(self.rule, LayerRule::Full);
            let switched = match self.rule {
                LayerRule::SlidingFrom { default } => Some(default),
                _ => None,
            };
            match field {
                "num_hidden_layers" => Some(json!(self.layers)),
                "hidden_size" => Some(json!(self.hidden)),
                "num_attention_heads" => Some(json!(self.query_heads)),
                "num_key_value_heads" => Some(size(self.kv_heads)),
                "head_dim" => Some(size(self.head_dim)),
                "sliding_window" => slides.then_some(json!(self.window)),
                "use_sliding_window" => switched.map(|_| json!(false)),
                "max_window_layers" => switched.map(|default| json!(default)),
                "query_pre_attn_scalar" => self.query_scalar.map(|scalar| json!(scalar)),
                "attn_logit_softcapping" => self.query_scalar.map(|_| json!(self.softcap)),
                "layer_types" | "sliding_window_pattern" => None,
                other => panic!("{other} is in no family's table"),
            }
        }
    }

    fn alike(one: &Value, other: &Value) -> bool {
        one == other || (one.is_number() && one.as_f64() == other.as_f64())
    }

    #[test]
    fn each_default_is_that_of_the_familys_class() {
        for recorded in RECORDED {
            let recorded: Value = serde_json::from_str(recorded).unwrap();
            let names: Vec<_> = FAMILIES.iter().map(|family| family.model_type).collect();
            let mut known: Vec<_> = recorded.as_object().unwrap().keys().collect();
            known.sort_by_key(|known| names.iter().position(|name| name == known));
            assert_eq!(known, names);
            for family in FAMILIES {
                let declared = &recorded[family.model_type]["declared"];
                for field in FIELDS.iter().filter(|&&field| field != "layer_types") {
                    // A field that the class lacks may be derived in the family.
                    let own = family.declares(field).unwrap_or_default();
                    let class = declared.get(field).cloned().unwrap_or_default();
                    assert!(alike(&own, &class), "{} of {}: {own}, not {class}", field, family.model_type);
                }
                assert!(declared.get("layer_types").unwrap_or(&Value::Null).is_null());
            }
        }
    }
}
