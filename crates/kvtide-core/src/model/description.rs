//! A checked description of a model's layers.
//!
//! Invariants: there is at least one layer. Every size is at least 1, except that of values, which may be 0; layers without
//! keys and values have sizes of 0. A layer that shares names an earlier layer that has the same sizes and keeps tokens
//! itself. States are ordered by layer, and their names are unique in a layer.

use super::group::{LayerGroup, LayerPlace, groups, state_groups};
use super::layer::{AttentionDescription, LayerDescription, LayerKind};
use super::state::{StateLayout, StateTensor, check_states};
use crate::count::COUNT_MAX;
use crate::error::{Error, Result};

/// The largest number of layers of a model.
pub const LAYERS_MAX: u32 = 65_536;

/// The description of a model's layers, as a cache needs it.
///
/// ```
/// use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
///
/// let full = LayerDescription::full(8, 128);
/// let sliding = full.with_kind(LayerKind::Sliding { window: 512, sinks: 0 });
/// let model = ModelDescription::new(vec![sliding, sliding, full])?;
/// assert_eq!(model.groups().len(), 2);
/// assert_eq!(model.place(1).map(|place| (place.group, place.index)), Some((0, 1)));
///
/// let llama = r#"{ "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4 }"#;
/// assert_eq!(ModelDescription::from_config(llama)?.layers(), [LayerDescription::full(4, 16); 2]);
/// # Ok::<(), kvtide_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDescription {
    layers: Vec<LayerDescription>,
    attention: AttentionDescription,
    states: Vec<StateTensor>,
    /// The number of each layer's device.
    devices: Vec<u32>,
    groups: Vec<LayerGroup>,
    places: Vec<Option<LayerPlace>>,
}

impl ModelDescription {
    /// Returns a model with these layers, plain attention and no states. If some layers keep states, add their tensors with
    /// [`with_states`](Self::with_states): until then, no cache can be made of the model.
    pub fn new(layers: Vec<LayerDescription>) -> Result<Self> {
        check_count("layers", layers.len())?;
        for index in 0..layers.len() {
            check_layer(&layers, index)?;
        }
        let (devices, (groups, places)) = (vec![0; layers.len()], groups(&layers, |_| 0));
        Ok(ModelDescription {
            layers,
            attention: AttentionDescription::default(),
            states: Vec::new(),
            devices,
            groups,
            places,
        })
    }

    /// Returns the same layers with these states: tensors of a fixed size that layers keep for a sequence. They replace
    /// earlier ones. Each layer of kind [`LayerKind::State`] needs at least one; a layer with attention may have some too.
    ///
    /// ```
    /// use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription, StateDType, StateTensor};
    ///
    /// let layers = vec![LayerDescription::state(), LayerDescription::full(8, 64)];
    /// let conv = StateTensor { layer: 0, name: "conv".into(), shape: vec![1024, 2], dtype: StateDType::F16 };
    /// let model = ModelDescription::new(layers)?.with_states(vec![conv])?;
    /// assert_eq!(model.groups().last().unwrap().kind, LayerKind::State);
    /// assert_eq!((model.place(0), model.state_layout().bytes), (None, 4096));
    /// # Ok::<(), kvtide_core::Error>(())
    /// ```
    pub fn with_states(self, mut states: Vec<StateTensor>) -> Result<Self> {
        check_states(&self.layers, &states)?;
        states.sort_by_key(|state| state.layer);
        Ok(ModelDescription { states, ..self }.grouped())
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
    /// assert_eq!((model.groups().len(), model.place(3).map(|place| place.group)), (2, Some(1)));
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
        Ok(ModelDescription { devices: devices.to_vec(), ..self }.grouped())
    }

    /// Forms the groups again.
    fn grouped(self) -> Self {
        let device = |layer: usize| self.devices[layer];
        let (mut groups, places) = groups(&self.layers, device);
        groups.extend(state_groups(&self.states, device));
        ModelDescription { groups, places, ..self }
    }

    /// Returns an error if a layer of kind [`LayerKind::State`] has no state, or if no layer keeps anything: no cache can
    /// be made of such a model.
    pub fn check_states(&self) -> Result<()> {
        check_states(&self.layers, &self.states)?;
        if self.groups.is_empty() {
            return Err(Error::model(
                "layers",
                "without keys, values and states",
                "at least one layer that keeps some",
            ));
        }
        Ok(())
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

    /// The states of all layers, ordered by layer.
    #[must_use]
    pub fn states(&self) -> &[StateTensor] {
        &self.states
    }

    /// The bytes of all states of one sequence. O(states).
    #[must_use]
    pub fn state_layout(&self) -> StateLayout {
        let groups = self.groups.iter().filter(|group| group.kind == LayerKind::State);
        let order: Vec<u32> = groups.map(|group| group.device).collect();
        StateLayout::of(&self.states, &order, |layer| self.devices[layer as usize])
    }

    /// The place of an existing layer's keys and values; [`None`] if it has none, because it keeps a state or nothing. A
    /// layer that shares has the place of the other layer.
    #[must_use]
    pub fn place(&self, layer: u32) -> Option<LayerPlace> {
        self.places[layer as usize]
    }

    /// The kind of an existing layer. A layer that shares has the kind of the other layer.
    #[must_use]
    pub fn kind(&self, layer: u32) -> LayerKind {
        match self.layers[layer as usize].kind {
            LayerKind::SharedWith(source) => self.layers[source as usize].kind,
            own => own,
        }
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
        if !layer.kind.has_kv() && size > 0 {
            return Err(Error::model(of(field), size, "0 in a layer without keys and values"));
        }
        if layer.kind.has_kv() && !(least..=COUNT_MAX).contains(&size) {
            return Err(Error::model(of(field), size, format!("{least} to {COUNT_MAX}")));
        }
    }
    match layer.kind {
        LayerKind::Full | LayerKind::State | LayerKind::Empty => Ok(()),
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
    if !shown.kind.has_kv() {
        let expected = format!("a layer that keeps tokens itself: layer {source} has no keys and values");
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
    let mut with_kv = layers.iter().enumerate().filter(|(_, layer)| layer.kind.has_kv());
    if let Some(heads) = attention.num_query_heads
        && let Some((index, layer)) = with_kv.find(|(_, layer)| heads == 0 || heads % layer.num_kv_heads != 0)
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
