//! The place of a layer in a model's groups: its own, or that of the layer whose keys and values it reads.

use kvtide_core::model::{LayerKind, LayerPlace, ModelDescription};

use crate::base::error::{Error, Result};

/// The group of a layer's keys and values, and the index there; fails if there is no such layer, and for a layer without
/// keys and values.
pub(super) fn place(model: &ModelDescription, layer: u32) -> Result<LayerPlace> {
    let layers = model.layers();
    let Some(of) = layers.get(layer as usize) else {
        return Err(Error::argument("layer", layer, format!("below {}", layers.len())));
    };
    model.place(layer).ok_or_else(|| {
        let kept = if of.kind == LayerKind::State { "keeps a state" } else { "keeps nothing" };
        Error::argument("layer", layer, format!("a layer with keys and values; layer {layer} {kept}"))
    })
}

/// Fails for a layer that stores no keys and values of its own.
pub(super) fn check_own(model: &ModelDescription, layer: u32) -> Result<()> {
    let Some(source) = shared(model, layer) else { return Ok(()) };
    let expected = format!("a layer with keys and values of its own; this one reads those of layer {source}");
    Err(Error::argument("layer", layer, expected))
}

/// The layer whose keys and values this layer reads, if it stores none.
pub(super) fn shared(model: &ModelDescription, layer: u32) -> Option<u32> {
    match model.layers()[layer as usize].kind {
        LayerKind::SharedWith(source) => Some(source),
        _ => None,
    }
}
