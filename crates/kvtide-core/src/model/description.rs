//! A checked description of a model's layers.
//!
//! Invariants: there is at least one layer. Every size is at least 1, except that of values, which may be 0. A layer
//! that shares names an earlier layer that has the same sizes and keeps tokens itself.

use std::collections::HashMap;

use super::layer::{AttentionDescription, LayerDescription, LayerKind};
use crate::count::COUNT_MAX;
use crate::error::{Error, Result};

/// The largest number of layers of a model.
pub const LAYERS_MAX: u32 = 65_536;

/// Layers that share block tables: they keep the same tokens in the same sizes on the same device. A block of the group
/// holds a run of tokens in all of its layers.
///
/// ```text
/// layers   0 sliding   1 sliding   2 full   3 sliding   4 as 2
/// groups   A 0         A 1         B 0      A 2         B 0        in the order of their first layers
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// The kind of each layer; never [`LayerKind::SharedWith`].
    pub kind: LayerKind,
    /// Heads of keys and values.
    pub num_kv_heads: u32,
    /// Elements of one head's key.
    pub head_dim: u32,
    /// Elements of one head's value.
    pub value_head_dim: u32,
    /// The number of the device of these layers; 0 if all layers are on one device.
    pub device: u32,
    /// The layers that keep keys and values themselves, ascending: the layer at index `i` is the group's layer `i`.
    pub layers: Vec<u32>,
}

/// The place of a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    /// The group.
    pub group: u32,
    /// The layer within the group.
    pub index: u32,
}

/// The description of a model's layers, as a cache needs it.
///
/// ```
/// use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
///
/// let full = LayerDescription::full(8, 128);
/// let sliding = full.with_kind(LayerKind::Sliding { window: 512, sinks: 0 });
/// let model = ModelDescription::new(vec![sliding, sliding, full])?;
/// assert_eq!(model.groups().len(), 2);
/// assert_eq!((model.place(1).group, model.place(1).index), (0, 1));
///
/// let llama = r#"{ "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4 }"#;
/// assert_eq!(ModelDescription::from_config(llama)?.layers(), [LayerDescription::full(4, 16); 2]);
/// # Ok::<(), kvtide_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDescription {
    layers: Vec<LayerDescription>,
    attention: AttentionDescription,
    groups: Vec<LayerGroup>,
    places: Vec<LayerPlace>,
}

impl ModelDescription {
    /// Returns a model with these layers and plain attention.
    pub fn new(layers: Vec<LayerDescription>) -> Result<Self> {
        check_count("layers", layers.len())?;
        for index in 0..layers.len() {
            check_layer(&layers, index)?;
        }
        let (groups, places) = groups(&layers, |_| 0);
        Ok(ModelDescription { layers, attention: AttentionDescription::default(), groups, places })
    }

    /// Returns the same layers with this attention.
    pub fn with_attention(self, attention: AttentionDescription) -> Result<Self> {
        check_attention(&self.layers, &attention)?;
        Ok(ModelDescription { attention, ..self })
    }

    /// Distributes the layers over several devices: `devices` has the number of the device of each layer. A layer that
    /// shares must be on the device of the layer it shares with.
    ///
    /// ```
    /// # use kvtide_core::model::{LayerDescription, ModelDescription};
    /// let model = ModelDescription::new(vec![LayerDescription::full(8, 128); 4])?.split(&[0, 0, 1, 1])?;
    /// assert_eq!((model.groups().len(), model.place(3).group), (2, 1));
    /// # Ok::<(), kvtide_core::Error>(())
    /// ```
    pub fn split(self, devices: &[u32]) -> Result<Self> {
        if devices.len() != self.layers.len() {
            let expected = format!("{}, one for each layer", self.layers.len());
            return Err(Error::argument("device.length", devices.len(), expected));
        }
        for (index, layer) in self.layers.iter().enumerate() {
            if let LayerKind::SharedWith(source) = layer.kind
                && devices[index] != devices[source as usize]
            {
                let expected = format!("the device of layer {source}, whose tokens it shares");
                return Err(Error::model(format!("device[{index}]"), devices[index], expected));
            }
        }
        let (groups, places) = groups(&self.layers, |layer| devices[layer]);
        Ok(ModelDescription { groups, places, ..self })
    }

    /// The layers, in order.
    #[must_use]
    pub fn layers(&self) -> &[LayerDescription] {
        &self.layers
    }

    /// The attention of all layers.
    #[must_use]
    pub fn attention(&self) -> &AttentionDescription {
        &self.attention
    }

    /// The groups of layers that share block tables.
    #[must_use]
    pub fn groups(&self) -> &[LayerGroup] {
        &self.groups
    }

    /// The place of an existing layer's keys and values. A layer that shares has the place of the other layer.
    #[must_use]
    pub fn place(&self, layer: u32) -> LayerPlace {
        self.places[layer as usize]
    }

    /// The kind of an existing layer. A layer that shares has the kind of the other layer.
    #[must_use]
    pub fn kind(&self, layer: u32) -> LayerKind {
        self.groups[self.place(layer).group as usize].kind
    }
}

/// Returns an error if there is no layer, or if there are more than [`LAYERS_MAX`].
pub(super) fn check_count(field: &str, layers: usize) -> Result<()> {
    if (1..=LAYERS_MAX as usize).contains(&layers) {
        return Ok(());
    }
    Err(Error::model(field, layers, format!("1 to {LAYERS_MAX}")))
}

fn check_layer(layers: &[LayerDescription], index: usize) -> Result<()> {
    let layer = &layers[index];
    let of = |field: &str| format!("layers[{index}].{field}");
    for (field, size, least) in [
        ("numKvHeads", layer.num_kv_heads, 1),
        ("headDim", layer.head_dim, 1),
        ("valueHeadDim", layer.value_head_dim, 0),
    ] {
        if !(least..=COUNT_MAX).contains(&size) {
            return Err(Error::model(of(field), size, format!("{least} to {COUNT_MAX}")));
        }
    }
    match layer.kind {
        LayerKind::Full => Ok(()),
        LayerKind::Sliding { window: 0, .. } => {
            Err(Error::model(of("window"), 0, "at least 1, the query's own position"))
        }
        LayerKind::Sliding { window, sinks } => match window.checked_add(sinks) {
            Some(retained) if retained <= COUNT_MAX => Ok(()),
            _ => {
                Err(Error::model(of("window"), window, format!("at most {COUNT_MAX} together with its {sinks} sinks")))
            }
        },
        LayerKind::SharedWith(source) => check_shared(layers, index, source),
    }
}

fn check_shared(layers: &[LayerDescription], index: usize, source: u32) -> Result<()> {
    let of = |field: &str| format!("layers[{index}].{field}");
    if source as usize >= index {
        let expected =
            if index == 0 { "nothing: the first layer has no earlier layer to share with" } else { "an earlier layer" };
        return Err(Error::model(of("sharedWith"), source, expected));
    }
    let (layer, shown) = (&layers[index], &layers[source as usize]);
    if let LayerKind::SharedWith(owner) = shown.kind {
        let expected = format!("a layer that keeps tokens itself: layer {source} shares those of layer {owner}");
        return Err(Error::model(of("sharedWith"), source, expected));
    }
    for (field, size, wanted) in [
        ("numKvHeads", layer.num_kv_heads, shown.num_kv_heads),
        ("headDim", layer.head_dim, shown.head_dim),
        ("valueHeadDim", layer.value_head_dim, shown.value_head_dim),
    ] {
        if size != wanted {
            return Err(Error::model(
                of(field),
                size,
                format!("{wanted}, as in layer {source}, whose tokens it shares"),
            ));
        }
    }
    Ok(())
}

fn check_attention(layers: &[LayerDescription], attention: &AttentionDescription) -> Result<()> {
    if let Some(heads) = attention.num_query_heads
        && let Some((index, layer)) =
            layers.iter().enumerate().find(|(_, layer)| heads == 0 || heads % layer.num_kv_heads != 0)
    {
        let expected = format!("a multiple of the {} KV heads of layers[{index}]", layer.num_kv_heads);
        return Err(Error::model("numQueryHeads", heads, expected));
    }
    for (field, number) in [("scale", attention.scale), ("softcap", attention.softcap)] {
        if let Some(number) = number
            && !(number.is_finite() && number > 0.)
        {
            return Err(Error::model(field, f64::from(number), "a finite number over 0"));
        }
    }
    Ok(())
}

/// The groups of checked layers, and each layer's place in them. `device` returns the number of a layer's device.
fn groups(layers: &[LayerDescription], device: impl Fn(usize) -> u32) -> (Vec<LayerGroup>, Vec<LayerPlace>) {
    let (mut groups, mut known) = (Vec::<LayerGroup>::new(), HashMap::new());
    let mut places = Vec::<LayerPlace>::with_capacity(layers.len());
    for (number, &layer) in layers.iter().enumerate() {
        if let LayerKind::SharedWith(source) = layer.kind {
            places.push(places[source as usize]);
            continue;
        }
        let device = device(number);
        let group = *known.entry((layer, device)).or_insert_with(|| {
            let LayerDescription { kind, num_kv_heads, head_dim, value_head_dim } = layer;
            groups.push(LayerGroup { kind, num_kv_heads, head_dim, value_head_dim, device, layers: Vec::new() });
            groups.len() - 1
        });
        places.push(LayerPlace { group: group as u32, index: groups[group].layers.len() as u32 });
        groups[group].layers.push(number as u32);
    }
    (groups, places)
}
