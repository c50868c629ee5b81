//! Decides the type of each layer: from `layer_types`, else by the family's rule.

use std::collections::HashSet;

use super::count::Count;
use super::family::{LayerRule, LayerType, ModelFamily};
use super::fields::{Fields, Given};
use crate::error::{Error, Result};
use crate::model::description::check_count;
use crate::model::layer::LayerKind;

/// The types of all layers, and the kind of those that slide.
pub(super) fn types(family: &ModelFamily, fields: &Fields<'_>) -> Result<(Vec<LayerType>, LayerKind)> {
    let window = window(family, fields)?;
    let layers = family.layers.map(|default| fields.count_or("num_hidden_layers", default)).transpose()?;
    if let Some(layers) = layers {
        check_count(&fields.path("num_hidden_layers"), layers as usize)?;
    }
    let types = match list(family, fields)? {
        Some((field, types)) => listed(family, fields, field, &types, layers)?,
        None => derived(family, fields, window, layers)?,
    };
    let slides = types.contains(&LayerType::Sliding);
    let kind = if slides { sliding(family, fields, window)? } else { LayerKind::Full };
    Ok((types, kind))
}

/// The list of types, and its field.
fn list<'a>(family: &ModelFamily, fields: &Fields<'a>) -> Result<Option<(&'static str, Vec<&'a str>)>> {
    for &field in family.lists {
        if let Some(types) = fields.texts(field)? {
            return Ok(Some((field, types)));
        }
    }
    Ok(None)
}

/// The type of each layer according to a list.
fn listed(
    family: &ModelFamily,
    fields: &Fields<'_>,
    field: &str,
    types: &[&str],
    layers: Option<u32>,
) -> Result<Vec<LayerType>> {
    match layers {
        Some(layers) if types.len() != layers as usize => {
            let expected = format!("{layers} (num_hidden_layers)");
            return Err(Error::model(fields.path(&format!("{field}.length")), types.len(), expected));
        }
        Some(_) => {}
        None => check_count(&fields.path(&format!("{field}.length")), types.len())?,
    }
    let known = |(index, name): (usize, &&str)| {
        let found = family.types.iter().find(|(known, _)| known == name);
        found.map(|(_, of)| *of).ok_or_else(|| {
            let names: Vec<_> = family.types.iter().map(|(name, _)| *name).collect();
            let is_recurrent = ["linear", "mamba", "recurrent"].iter().any(|word| name.contains(word));
            let reason = if is_recurrent { ": recurrent state is not supported in this family" } else { "" };
            let expected = format!("{}{reason}", names.join(" or "));
            Error::unsupported(fields.path(&format!("{field}[{index}]")), *name, expected)
        })
    };
    types.iter().enumerate().map(known).collect()
}

/// The type of each layer by the family's rule.
fn derived(
    family: &ModelFamily,
    fields: &Fields<'_>,
    window: Option<u32>,
    layers: Option<u32>,
) -> Result<Vec<LayerType>> {
    let of = |slides| if slides { LayerType::Sliding } else { LayerType::Full };
    // A family whose layers are counted by a list has a pattern as its rule.
    let layers = layers.unwrap_or(0);
    let all = |of| vec![of; layers as usize];
    Ok(match family.rule {
        LayerRule::All(of) => all(of),
        LayerRule::Listed => {
            let names: Vec<_> = family.types.iter().map(|(name, _)| *name).collect();
            let expected = format!("a list with {} for each layer", names.join(" or "));
            return Err(Error::model(fields.path(family.lists[0]), "missing", expected));
        }
        LayerRule::Sliding => all(of(window.is_some())),
        LayerRule::SlidingFrom { first, .. } => {
            let first = first.map_or(Ok(0), |default| first_sliding(fields, default, window))?;
            (0..layers).map(|layer| of(window.is_some() && u64::from(layer) >= first)).collect()
        }
        LayerRule::SlidingUnrotated { period } => {
            let slides = window.is_some() && fields.flag("use_sliding_window")?;
            rotated(fields, period, layers)?.iter().map(|is_rotated| of(slides && !is_rotated)).collect()
        }
        LayerRule::FullEvery { field: Some(field), .. } if fields.has_text(field) => {
            let period = pattern(fields, field, LETTERS, "")?;
            // The last layer keeps every token whatever its letter is.
            let of =
                |layer: u32| if layer + 1 == layers { LayerType::Full } else { period[layer as usize % period.len()] };
            (0..layers).map(of).collect()
        }
        LayerRule::FullEvery { nth, field } => {
            let every = field.map_or(Ok(nth), |name| fields.count_or(name, nth))?;
            let other = if family.state.is_some() { LayerType::State } else { LayerType::Sliding };
            (1..=layers).map(|layer| if layer % every == 0 { LayerType::Full } else { other }).collect()
        }
        LayerRule::FullAtOffset { period, offset } => {
            let (period, offset) = at_offset(fields, period, offset)?;
            let is_full = |layer| layer % period == offset;
            (0..layers).map(|layer| if is_full(layer) { LayerType::Full } else { LayerType::State }).collect()
        }
        LayerRule::FullAt { field, missing } => match fields.indices(field)? {
            None => all(missing),
            Some(full) => {
                let full: HashSet<i64> = full.into_iter().collect();
                let is_full = |layer: u32| full.contains(&layer.into());
                (0..layers).map(|layer| if is_full(layer) { LayerType::Full } else { LayerType::State }).collect()
            }
        },
        LayerRule::Pattern { field, letters, default } => pattern(fields, field, letters, default)?,
    })
}

/// The letters of layers with a window and without, in a text that is repeated.
const LETTERS: &[(char, LayerType)] = &[('L', LayerType::Sliding), ('G', LayerType::Full)];

/// The first layer that slides if there is a window.
fn first_sliding(fields: &Fields<'_>, default: u32, window: Option<u32>) -> Result<u64> {
    match fields.index("max_window_layers")? {
        Given::Value(first) => Ok(first),
        Given::Null if window.is_some() => Err(fields.null("max_window_layers", "a whole number")),
        Given::Null | Given::Missing => Ok(default.into()),
    }
}

/// Tells which layers have rotary embeddings.
fn rotated(fields: &Fields<'_>, period: Count, layers: u32) -> Result<Vec<bool>> {
    let field = "no_rope_layers";
    match fields.indices(field)? {
        None => period.of(fields).map(|every| (1..=layers).map(|layer| layer % every != 0).collect()),
        Some(list) if list.len() >= layers as usize => {
            Ok(list.iter().take(layers as usize).map(|&is_rotated| is_rotated != 0).collect())
        }
        Some(list) => {
            let expected = format!("at least {layers} (num_hidden_layers)");
            Err(Error::model(fields.path(&format!("{field}.length")), list.len(), expected))
        }
    }
}

/// The period of layers that keep every token, and the index of such a layer in it.
fn at_offset(fields: &Fields<'_>, period: Count, (name, default): (&str, u32)) -> Result<(u32, u32)> {
    let every = period.of(fields)?;
    let offset = match fields.index(name)? {
        Given::Value(offset) => offset,
        Given::Missing => default.into(),
        Given::Null => return Err(fields.null(name, "a whole number")),
    };
    if offset >= every.into() {
        return Err(Error::model(fields.path(name), offset, format!("below {every} ({})", period.field)));
    }
    Ok((every, offset as u32))
}

/// The types that the letters of a text stand for.
fn pattern(
    fields: &Fields<'_>,
    field: &str,
    letters: &[(char, LayerType)],
    default: &'static str,
) -> Result<Vec<LayerType>> {
    let text = fields.text_or(field, default, "a text with a letter for each layer")?;
    check_count(&fields.path(&format!("{field}.length")), text.chars().count())?;
    let known = |(index, letter): (usize, char)| {
        let found = letters.iter().find(|(known, _)| *known == letter);
        found.map(|(_, of)| *of).ok_or_else(|| {
            let names: Vec<_> = letters.iter().map(|(known, _)| known.to_string()).collect();
            Error::unsupported(fields.path(&format!("{field}[{index}]")), letter.to_string(), names.join(" or "))
        })
    };
    text.chars().enumerate().map(known).collect()
}

/// The window that the file describes; [`None`] if there is none or it is switched off.
fn window(family: &ModelFamily, fields: &Fields<'_>) -> Result<Option<u32>> {
    let switched_on = !family.is_switched() || fields.flag("use_sliding_window")?;
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
