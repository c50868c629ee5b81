//! Makes a model description from a Hugging Face `config.json`.
//!
//! ```text
//! text ──> fields.rs    strict JSON, plus Python's NaN and Infinity
//!      ──> identity.rs  finds the family and the object that describes its text model; names unsupported models
//!      ──> family.rs    has each family's defaults of missing fields: attention.rs and hybrid.rs list the families
//!      ──> rule.rs      decides the type of each layer: `layer_types`, else the family's rule
//!      ──> heads        heads and dims
//!      ──> state.rs     the tensors of a layer's state
//! ```
//!
//! A missing field has the default of the transformers class that writes the file, since these classes leave out fields
//! that equal a default. A field that is `null` means what it means to that class, which may differ. If no version of
//! the class accepts `null`, it is an error.

mod attention;
mod count;
mod family;
mod fields;
mod hybrid;
mod identity;
mod rule;
mod state;

use super::description::ModelDescription;
use super::layer::{AttentionDescription, LayerDescription, LayerKind};
use super::state::{StateDType, StateTensor};
use crate::error::{Error, Result};
use family::{LayerType, ModelFamily, Size};
use fields::{Fields, Given};

impl ModelDescription {
    /// Returns the model that a Hugging Face `config.json` describes: Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma, Phi,
    /// gpt-oss, Granite, OLMo, SmolLM3, Cohere, GLM and others; with states LFM2, LFM2-MoE, Granite 4 hybrid, Bamba,
    /// Falcon-H1, Nemotron-H, Jamba, Mamba, Falcon-Mamba, Mamba 2, Qwen3-Next or Qwen3.5. In a file of another type with
    /// a `text_config`, that object counts. A missing field, or one that is `null`, means what it means to the family's
    /// class in transformers. Other models, other recurrent states and cross attention are refused with
    /// `UNSUPPORTED_MODEL`.
    ///
    /// A convolution keeps the columns that it needs to continue, one fewer than its kernel has. A graph may keep as many
    /// as the kernel: describe the states that it declares. Convolutions have 32-bit elements, as all other states have
    /// unless the file says otherwise; see [`from_config_in`](Self::from_config_in).
    pub fn from_config(json: &str) -> Result<Self> {
        ModelDescription::from_config_in(json, StateDType::F32)
    }

    /// As [`from_config`](Self::from_config), with this element type of convolutions: that of the model's activations.
    pub fn from_config_in(json: &str, convolution: StateDType) -> Result<Self> {
        let root = fields::parse(json)?;
        let root = Fields::root(&root)?;
        let (family, fields) = identity::identify(&root)?;
        let (types, sliding) = rule::types(family, &fields)?;
        let has = |wanted: &[LayerType]| types.iter().any(|of| wanted.contains(of));
        let attention = match has(&[LayerType::Full, LayerType::Sliding, LayerType::Both]) {
            true => Some(heads(family, &fields)?),
            false => None,
        };
        let with_kv = |kind| attention.map_or(LayerDescription::empty(), |(_, layer)| layer.with_kind(kind));
        let layer = |of: &LayerType| match of {
            LayerType::Full | LayerType::Both => with_kv(LayerKind::Full),
            LayerType::Sliding => with_kv(sliding),
            LayerType::State => LayerDescription::state(),
            LayerType::Empty => LayerDescription::empty(),
        };
        let mut model = ModelDescription::new(types.iter().map(layer).collect())?;
        if let Some((query_heads, _)) = attention {
            model = model.with_attention(self::attention(family, &fields, query_heads)?)?;
        }
        if let Some(form) = &family.state {
            let tensors = state::tensors(form, family, &fields, convolution)?;
            model = model.with_states(states(&types, &tensors))?;
        }
        model.check_states()?;
        Ok(model)
    }
}

/// The tensors of all layers with a state, of one layer's tensors.
fn states(types: &[LayerType], tensors: &[StateTensor]) -> Vec<StateTensor> {
    let with = (0u32..).zip(types).filter(|(_, of)| matches!(of, LayerType::State | LayerType::Both));
    with.flat_map(|(layer, _)| tensors.iter().map(move |tensor| StateTensor { layer, ..tensor.clone() })).collect()
}

/// Returns the number of query heads, and a layer.
fn heads(family: &ModelFamily, fields: &Fields<'_>) -> Result<(u32, LayerDescription)> {
    let query_heads = fields.count_or("num_attention_heads", family.query_heads)?;
    let kv_heads = size(fields, "num_key_value_heads", family.kv_heads, || Ok(query_heads))?;
    if query_heads % kv_heads != 0 {
        let meaning = family.meaning(family.kv_heads);
        let expected = format!("a divisor of {query_heads} (num_attention_heads){meaning}");
        return Err(Error::model(fields.path("num_key_value_heads"), kv_heads, expected));
    }
    let head_dim = size(fields, "head_dim", family.head_dim, || divided(family, fields, query_heads))?;
    Ok((query_heads, LayerDescription::full(kv_heads, head_dim)))
}

/// Returns a size: the value of its field, else the family's default.
fn size(fields: &Fields<'_>, name: &str, unsaid: Size, derived: impl Fn() -> Result<u32>) -> Result<u32> {
    match (fields.count(name)?, unsaid) {
        (Given::Value(size), _) => Ok(size),
        (Given::Missing, Size::Default(size) | Size::Required(size)) => Ok(size),
        (Given::Null, Size::Required(_)) => Err(fields.null(name, "a whole number of at least 1")),
        (Given::Null, Size::Default(_)) | (_, Size::Derived) => derived(),
    }
}

/// The dimension of a head, if no field gives it.
fn divided(family: &ModelFamily, fields: &Fields<'_>, query_heads: u32) -> Result<u32> {
    let hidden = fields.count_or("hidden_size", family.hidden)?;
    let refused = |expected: &str| {
        let expected = format!("{expected} {query_heads} (num_attention_heads), because there is no head_dim");
        Err(Error::model(fields.path("hidden_size"), hidden, expected))
    };
    match hidden / query_heads {
        _ if family.hidden_is_multiple && hidden % query_heads != 0 => refused("a multiple of"),
        0 => refused("at least"),
        dim => Ok(dim),
    }
}

fn attention(family: &ModelFamily, fields: &Fields<'_>, query_heads: u32) -> Result<AttentionDescription> {
    let plain = AttentionDescription {
        num_query_heads: Some(query_heads),
        sink_logits: family.sink_logits,
        ..AttentionDescription::default()
    };
    if let Some(default) = family.multiplier {
        let scale = match fields.number("attention_multiplier")? {
            Given::Value(scale) => scale,
            Given::Missing => default,
            Given::Null => return Err(fields.null("attention_multiplier", "a number over 0")),
        };
        return Ok(AttentionDescription { scale: Some(scale as f32), ..plain });
    }
    let Some(scalar) = family.query_scalar else { return Ok(plain) };
    let scalar = match fields.number("query_pre_attn_scalar")? {
        Given::Value(scalar) => scalar,
        Given::Missing => scalar,
        Given::Null => return Err(fields.null("query_pre_attn_scalar", "a number over 0")),
    };
    let softcap = match fields.number("attn_logit_softcapping")? {
        Given::Value(softcap) => Some(softcap),
        Given::Missing => family.softcap,
        Given::Null => None,
    };
    Ok(AttentionDescription {
        scale: Some(scalar.sqrt().recip() as f32),
        softcap: softcap.map(|softcap| softcap as f32),
        ..plain
    })
}
