//! Decides the kind of each layer: from `layer_types`, else by the family's rule.

use super::family::{LayerRule, ModelFamily};
use super::fields::{Fields, Given};
use crate::error::{Error, Result};
use crate::model::layer::LayerKind;

/// The kinds of `layers` layers.
pub(super) fn kinds(family: &ModelFamily, fields: &Fields<'_>, layers: u32) -> Result<Vec<LayerKind>> {
    let window = window(family, fields)?;
    let slides = match fields.texts("layer_types")? {
        Some(types) => listed(fields, &types, layers)?,
        None => derived(family, fields, window, layers)?,
    };
    let kind = |slides| if slides { sliding(family, fields, window) } else { Ok(LayerKind::Full) };
    slides.into_iter().map(kind).collect()
}

/// For each layer, returns true if it slides according to `layer_types`.
fn listed(fields: &Fields<'_>, types: &[&str], layers: u32) -> Result<Vec<bool>> {
    if types.len() != layers as usize {
        let expected = format!("{layers} (num_hidden_layers)");
        return Err(Error::model(fields.path("layer_types.length"), types.len(), expected));
    }
    let slides = |(index, name): (usize, &&str)| match *name {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => {
            let expected = if other.contains("linear") || other.contains("mamba") || other.contains("recurrent") {
                "full_attention or sliding_attention: recurrent state is not supported"
            } else {
                "full_attention or sliding_attention"
            };
            Err(Error::unsupported(fields.path(&format!("layer_types[{index}]")), other, expected))
        }
    };
    types.iter().enumerate().map(slides).collect()
}

/// For each layer, returns true if it slides by the family's rule.
fn derived(family: &ModelFamily, fields: &Fields<'_>, window: Option<u32>, layers: u32) -> Result<Vec<bool>> {
    Ok(match family.rule {
        LayerRule::Full => vec![false; layers as usize],
        LayerRule::Sliding => vec![window.is_some(); layers as usize],
        LayerRule::SlidingFrom { default } => {
            let first = match fields.index("max_window_layers")? {
                Given::Value(first) => first,
                Given::Null if window.is_some() => return Err(fields.null("max_window_layers", "a whole number")),
                Given::Null | Given::Missing => default.into(),
            };
            (0..layers).map(|layer| window.is_some() && u64::from(layer) >= first).collect()
        }
        LayerRule::FullEvery { nth, field } => {
            let every = field.map_or(Ok(nth), |name| fields.count_or(name, nth))?;
            (0..layers).map(|layer| (layer + 1) % every != 0).collect()
        }
    })
}

/// The window that the file describes; [`None`] if there is none or it is switched off.
fn window(family: &ModelFamily, fields: &Fields<'_>) -> Result<Option<u32>> {
    let switched_on = !matches!(family.rule, LayerRule::SlidingFrom { .. }) || fields.flag("use_sliding_window")?;
    Ok(named_window(family, fields)?.filter(|_| switched_on))
}

/// The window, even if it is switched off.
fn named_window(family: &ModelFamily, fields: &Fields<'_>) -> Result<Option<u32>> {
    Ok(match fields.count("sliding_window")? {
        Given::Value(window) => Some(window),
        Given::Missing => family.window,
        Given::Null => None,
    })
}

/// The kind of a sliding layer.
fn sliding(family: &ModelFamily, fields: &Fields<'_>, window: Option<u32>) -> Result<LayerKind> {
    if let Some(window) = window {
        return Ok(LayerKind::Sliding { window, sinks: 0 });
    }
    Err(match named_window(family, fields)? {
        Some(_) => {
            Error::model(fields.path("use_sliding_window"), "false", "true, because layers are sliding_attention")
        }
        None => Error::model(fields.path("sliding_window"), "null", "a window, because layers are sliding_attention"),
    })
}
