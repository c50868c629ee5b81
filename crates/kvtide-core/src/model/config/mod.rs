//! A description straight from a Hugging Face `config.json`.
//!
//! ```text
//! text ──> json.rs      strict JSON, but for Python's NaN and Infinity
//!      ──> family.rs    which family it is, and what its fields are when they are missing; who is refused by name
//!      ──> rule.rs      the kind of each layer: `layer_types`, else the family's rule
//!      ──> sizes        heads and dims, with the same defaults as the families' own classes
//! ```
//!
//! Missing fields mean what they mean to the classes that write these files: several published files leave out what
//! equals a family's default.

mod family;
mod fields;
mod json;
mod rule;

use super::attention::AttentionDescription;
use super::description::{ModelDescription, check_count};
use super::layer::LayerDescription;
use crate::error::Result;
use family::Family;
use fields::{Fields, Found};

/// Reads a whole `config.json`.
pub(super) fn description(text: &str) -> Result<ModelDescription> {
    let root = json::parse(text)?;
    let root = Fields::root(&root)?;
    let (family, fields) = family::identify(&root)?;
    let layers = fields.require_count("num_hidden_layers")?;
    check_count(&fields.path("num_hidden_layers"), layers as usize)?;
    let sizes = Sizes::read(family, &fields)?;
    let layer = LayerDescription::full(sizes.kv_heads, sizes.head_dim);
    let kinds = rule::kinds(family, &fields, layers)?;
    let described = ModelDescription::new(kinds.into_iter().map(|kind| layer.with_kind(kind)).collect())?;
    described.with_attention(attention(family, &fields, sizes.query_heads)?)
}

/// The sizes of a layer.
struct Sizes {
    query_heads: u32,
    kv_heads: u32,
    head_dim: u32,
}

impl Sizes {
    fn read(family: &Family, fields: &Fields<'_>) -> Result<Self> {
        let query_heads = match (fields.count("num_attention_heads")?, family.query_heads) {
            (Found::Value(heads), _) | (Found::Missing, Some(heads)) => heads,
            _ => fields.require_count("num_attention_heads")?,
        };
        let kv_heads = match fields.count("num_key_value_heads")? {
            Found::Value(heads) => heads,
            Found::Missing => family.kv_heads.unwrap_or(query_heads),
            Found::Null => query_heads,
        };
        if query_heads % kv_heads != 0 {
            let expected = format!("a number that {query_heads}, num_attention_heads, is a multiple of");
            return Err(super::description::invalid(fields.path("num_key_value_heads"), kv_heads, expected));
        }
        let head_dim = match (fields.count("head_dim")?, family.head_dim) {
            (Found::Value(dim), _) | (Found::Missing, Some(dim)) => dim,
            _ => divided(fields, query_heads)?,
        };
        Ok(Sizes { query_heads, kv_heads, head_dim })
    }
}

/// The head's dimension where no field says it.
fn divided(fields: &Fields<'_>, query_heads: u32) -> Result<u32> {
    let hidden = fields.require_count("hidden_size")?;
    if hidden % query_heads != 0 {
        let expected = format!("a multiple of {query_heads}, num_attention_heads, where there is no head_dim");
        return Err(super::description::invalid(fields.path("hidden_size"), hidden, expected));
    }
    Ok(hidden / query_heads)
}

fn attention(family: &Family, fields: &Fields<'_>, query_heads: u32) -> Result<AttentionDescription> {
    let scalar = match fields.number("query_pre_attn_scalar")? {
        Found::Value(scalar) if family.query_scalar.is_some() => Some(scalar),
        Found::Missing => family.query_scalar,
        _ => None,
    };
    let softcap = match fields.number("attn_logit_softcapping")? {
        Found::Value(softcap) if family.query_scalar.is_some() => Some(softcap),
        Found::Missing => family.softcap,
        _ => None,
    };
    Ok(AttentionDescription {
        num_query_heads: Some(query_heads),
        scale: scalar.map(|scalar| scalar.sqrt().recip() as f32),
        softcap: softcap.map(|softcap| softcap as f32),
        sink_logits: family.sink_logits,
    })
}
