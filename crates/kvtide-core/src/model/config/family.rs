//! A model family: how it distinguishes its layers, and the defaults of its configuration class. Families whose layers have
//! attention alone are in attention.rs, those with states in hybrid.rs.
//!
//! The numbers are those of the classes in transformers; `tests/model/transformers` records what the classes declare.

use super::count::Count;
use super::state::StateForm;
use super::{attention, hybrid};

pub(super) struct ModelFamily {
    pub model_type: &'static str,
    pub architecture: &'static str,
    /// The model type of `text_config`, if the file of the family has its text model inside.
    pub text: Option<&'static str>,
    pub rule: LayerRule,
    /// The fields that may list the type of each layer; the first one that is there counts.
    pub lists: &'static [&'static str],
    /// The names of types in these lists.
    pub types: &'static [(&'static str, LayerType)],
    /// The default of `num_hidden_layers`; [`None`] if the list has as many entries as the model has layers.
    pub layers: Option<u32>,
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
    /// The default of `attention_multiplier`, in families that have it.
    pub multiplier: Option<f64>,
    /// True if attention has learned sink logits.
    pub sink_logits: bool,
    /// The state of a layer that keeps one.
    pub state: Option<StateForm>,
}

impl ModelFamily {
    /// True if the window counts only where `use_sliding_window` is true.
    pub fn is_switched(&self) -> bool {
        matches!(self.rule, LayerRule::SlidingFrom { is_switched: true, .. })
    }

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

/// The type of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LayerType {
    /// Attention to every token.
    Full,
    /// Attention to a window.
    Sliding,
    /// A state, and no attention.
    State,
    /// A state, and attention to every token.
    Both,
    /// Neither: a feed-forward layer that counts as a layer.
    Empty,
}

/// The names of types in families without states.
const ATTENTION: &[(&str, LayerType)] =
    &[("full_attention", LayerType::Full), ("sliding_attention", LayerType::Sliding)];

/// The rule by which a family distinguishes its layers if there is no list of their types.
#[derive(Clone, Copy, Debug)]
pub(super) enum LayerRule {
    /// All layers are alike.
    All(LayerType),
    /// The list must be there.
    Listed,
    /// All layers slide if there is a window.
    Sliding,
    /// Layers from `max_window_layers` on slide.
    SlidingFrom {
        /// The default of `max_window_layers`; [`None`] if the family has no such field, and all layers slide.
        first: Option<u32>,
        /// True if only `use_sliding_window` lets layers slide.
        is_switched: bool,
    },
    /// Layers without rotary embeddings slide if `use_sliding_window` is true: those with a 0 in `no_rope_layers`, else the
    /// last of each period. The switch says nothing of a list of types.
    SlidingUnrotated {
        /// The number of layers of a period.
        period: Count,
    },
    /// The last of every `nth` layers keeps every token; the others slide, or keep a state if the family has states.
    FullEvery {
        /// The default of the period.
        nth: u32,
        /// The field that may give another period, or a text of the letters L and G, for layers with a window and without.
        field: Option<&'static str>,
    },
    /// One of every `period` layers keeps every token, the one at `offset`; the others keep a state.
    FullAtOffset {
        /// The number of layers of a period.
        period: Count,
        /// The index in the period.
        offset: (&'static str, u32),
    },
    /// The layers whose indices a field lists keep every token; the others keep a state.
    FullAt {
        /// The field.
        field: &'static str,
        /// The type of all layers if there is no such list.
        missing: LayerType,
    },
    /// The letters of a text are the types of the layers.
    Pattern {
        /// The field.
        field: &'static str,
        /// The types of letters.
        letters: &'static [(char, LayerType)],
        /// The default.
        default: &'static str,
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
pub(super) const LLAMA: ModelFamily = ModelFamily {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    text: None,
    rule: LayerRule::All(LayerType::Full),
    lists: &["layer_types"],
    types: ATTENTION,
    layers: Some(32),
    hidden: 4096,
    hidden_is_multiple: true,
    query_heads: 32,
    kv_heads: Size::Derived,
    head_dim: Size::Derived,
    window: None,
    query_scalar: None,
    softcap: None,
    multiplier: None,
    sink_logits: false,
    state: None,
};

/// All families.
pub(super) fn all() -> impl Iterator<Item = &'static ModelFamily> {
    attention::FAMILIES.iter().chain(hybrid::FAMILIES)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fields::{FIELDS, LISTS};
    use super::*;

    const RECORDED: [&str; 2] = [
        include_str!("../../../tests/model/transformers/4.57.6.json"),
        include_str!("../../../tests/model/transformers/5.23.0.json"),
    ];

    /// Families that the older version does not have.
    const NEWER: [&str; 7] =
        ["ministral3", "lfm2_moe", "nemotron_h", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe"];

    impl ModelFamily {
        /// The value that the table has for a missing field, as a class declares it; [`None`] if the family has no such
        /// field.
        fn declares(&self, field: &str) -> Option<Value> {
            let size = |size| match size {
                Size::Derived => Value::Null,
                Size::Default(size) | Size::Required(size) => json!(size),
            };
            let slides = !matches!(self.rule, LayerRule::All(_)) && self.state.is_none();
            let of_state = self.state.as_ref().and_then(|state| state.declares(field));
            let has_attention = !self.lists.is_empty();
            match field {
                _ if of_state.is_some() => of_state,
                "num_hidden_layers" => Some(json!(self.layers)),
                "hidden_size" => Some(json!(self.hidden)),
                "num_attention_heads" | "num_key_value_heads" | "head_dim" if !has_attention => None,
                "num_attention_heads" => Some(json!(self.query_heads)),
                "num_key_value_heads" => Some(size(self.kv_heads)),
                "head_dim" => Some(size(self.head_dim)),
                "sliding_window" => slides.then_some(json!(self.window)),
                "use_sliding_window" => {
                    let is_read = self.is_switched() || matches!(self.rule, LayerRule::SlidingUnrotated { .. });
                    is_read.then_some(json!(false))
                }
                "query_pre_attn_scalar" => self.query_scalar.map(|scalar| json!(scalar)),
                "attn_logit_softcapping" => self.query_scalar.map(|_| json!(self.softcap)),
                // The other classes read it without declaring it.
                "sliding_window_pattern" => (self.model_type == "exaone4").then(|| json!(4)),
                "attention_multiplier" => self.multiplier.map(|multiplier| json!(multiplier)),
                other => self.declares_in_rule(other),
            }
        }

        /// The same for the fields of its rule.
        fn declares_in_rule(&self, field: &str) -> Option<Value> {
            match self.rule {
                LayerRule::FullAtOffset { period, .. } if period.field == field => Some(json!(period.default)),
                LayerRule::FullAtOffset { offset, .. } if offset.0 == field => Some(json!(offset.1)),
                LayerRule::SlidingFrom { first, .. } if field == "max_window_layers" => first.map(|first| json!(first)),
                LayerRule::SlidingUnrotated { period } if period.field == field => Some(json!(period.default)),
                _ => None,
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
            let known = recorded.as_object().unwrap();
            let unknown = known.keys().find(|known| all().all(|family| family.model_type != **known));
            assert_eq!(unknown, None);
            // The older version has not all families with states.
            let missing: Vec<_> = all().map(|family| family.model_type).filter(|of| !known.contains_key(*of)).collect();
            assert!(missing.is_empty() || known.len() == 55 && missing.iter().all(|name| NEWER.contains(name)));
            for family in all().filter(|family| known.contains_key(family.model_type)) {
                let declared = &recorded[family.model_type]["declared"];
                for field in FIELDS.iter().filter(|&&field| !LISTS.contains(&field)) {
                    let own = family.declares(field);
                    if own.is_none() && family.state.is_some() {
                        // A field that the family does not read; files with such fields are recorded as well.
                        continue;
                    }
                    // A field that the class lacks may be derived in the family.
                    let own = own.unwrap_or_default();
                    let class = declared.get(field).cloned().unwrap_or_default();
                    assert!(alike(&own, &class), "{} of {}: {own}, not {class}", field, family.model_type);
                }
                assert!(declared.get("layer_types").unwrap_or(&Value::Null).is_null());
            }
        }
    }
}
