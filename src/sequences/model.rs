//! Descriptions of models, and their groups of layers. The TypeScript layer has filled in the defaults.

use kvtide_core::Error;
use kvtide_core::model::{
    AttentionDescription, LayerDescription, LayerKind, ModelDescription, StateDType, StateTensor,
};
use kvtide_tensor::DType;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{count, optional};
use crate::border::handle::guard;
use crate::border::refusal::Outcome;

/// A tensor of a fixed size that a layer keeps for a sequence.
#[napi(object, object_to_js = false)]
pub struct NativeState {
    pub name: String,
    pub shape: Vec<f64>,
    pub dtype: String,
}

/// One layer of a model, described by hand.
#[napi(object, object_to_js = false)]
pub struct NativeModelLayer {
    /// 0: full attention, 1: sliding window, 2: shares the K and V of another layer, 3: a state instead of K and V,
    /// 4: nothing.
    pub kind: f64,
    pub window: f64,
    pub sinks: f64,
    pub shared_with: f64,
    pub num_kv_heads: f64,
    pub head_dim: f64,
    pub value_head_dim: f64,
    pub tensors: Vec<NativeState>,
}

/// A model: the text of a configuration file, or a list of layers.
#[napi(object, object_to_js = false)]
pub struct NativeModel {
    #[napi(ts_type = "string | undefined")]
    pub config: Option<String>,
    pub layers: Vec<NativeModelLayer>,
    #[napi(ts_type = "number | undefined")]
    pub num_query_heads: Option<f64>,
    #[napi(ts_type = "number | undefined")]
    pub scale: Option<f64>,
    #[napi(ts_type = "number | undefined")]
    pub softcap: Option<f64>,
    pub sink_logits: bool,
}

/// A state, and its place in the slot of its group.
#[napi(object, object_from_js = false)]
pub struct NativeStatePlace {
    pub layer: u32,
    pub name: String,
    pub shape: Vec<u32>,
    pub dtype: String,
    pub offset: f64,
    pub bytes: f64,
}

/// Layers that share block tables.
#[napi(object, object_from_js = false)]
pub struct NativeGroup {
    #[napi(ts_type = "number | undefined")]
    pub window: Option<f64>,
    #[napi(ts_type = "number | undefined")]
    pub sinks: Option<f64>,
    pub layers: Vec<u32>,
    pub num_kv_heads: f64,
    pub head_dim: f64,
    pub value_head_dim: f64,
    pub device: f64,
    /// The states of a group of states.
    #[napi(ts_type = "NativeStatePlace[] | undefined")]
    pub tensors: Option<Vec<NativeStatePlace>>,
    /// The bytes of a slot of a group of states.
    #[napi(ts_type = "number | undefined")]
    pub bytes: Option<f64>,
}

/// The groups of a model, of which no cache is made.
#[napi]
pub fn model_groups(env: &Env, model: NativeModel, dtype: String) -> Result<Vec<NativeGroup>> {
    guard(env, || {
        let model = model.read(dtype.parse()?)?;
        model.check_states()?;
        Ok(NativeGroup::of(&model))
    })
}

impl NativeModel {
    /// Reads a description for a cache with this element type.
    pub(crate) fn read(self, dtype: DType) -> Outcome<ModelDescription> {
        if let Some(config) = &self.config {
            let convolution = match dtype {
                // A cache of bytes has no activations.
                DType::F32 | DType::U8 => StateDType::F32,
                DType::F16 => StateDType::F16,
                DType::BF16 => StateDType::BF16,
            };
            return Ok(ModelDescription::from_config_in(config, convolution)?);
        }
        let layers = self.layers.iter().map(NativeModelLayer::read).collect::<Outcome<_>>()?;
        let attention = AttentionDescription {
            num_query_heads: optional("numQueryHeads", self.num_query_heads, count)?,
            scale: self.scale.map(|scale| scale as f32),
            softcap: self.softcap.map(|softcap| softcap as f32),
            sink_logits: self.sink_logits,
        };
        let tensors =
            (0..).zip(&self.layers).flat_map(|(layer, of)| of.tensors.iter().map(move |state| (layer, state)));
        let states = tensors.map(|(layer, state)| state.read(layer)).collect::<Outcome<_>>()?;
        Ok(ModelDescription::new(layers)?.with_attention(attention)?.with_states(states)?)
    }
}

impl NativeModelLayer {
    fn read(&self) -> Outcome<LayerDescription> {
        let kind = match self.kind {
            1.0 => LayerKind::Sliding { window: count("window", self.window)?, sinks: count("sinks", self.sinks)? },
            2.0 => LayerKind::SharedWith(count("with", self.shared_with)?),
            3.0 => LayerKind::State,
            4.0 => LayerKind::Empty,
            _ => LayerKind::Full,
        };
        Ok(LayerDescription {
            kind,
            num_kv_heads: count("numKvHeads", self.num_kv_heads)?,
            head_dim: count("headDim", self.head_dim)?,
            value_head_dim: count("valueHeadDim", self.value_head_dim)?,
        })
    }
}

impl NativeState {
    fn read(&self, layer: u32) -> Outcome<StateTensor> {
        let dtype = self.dtype.parse();
        Ok(StateTensor {
            layer,
            name: self.name.clone(),
            shape: self.shape.iter().map(|&size| count("shape", size)).collect::<Outcome<_>>()?,
            dtype: dtype.map_err(|names| Error::argument("dtype", &*self.dtype, format!("one of {names}")))?,
        })
    }
}

impl NativeGroup {
    /// The groups of a model.
    pub(crate) fn of(model: &ModelDescription) -> Vec<Self> {
        let layout = model.state_layout();
        let mut slots = layout.slots.iter();
        let groups = model.groups().iter().map(|group| {
            let (window, sinks) = match group.kind {
                LayerKind::Sliding { window, sinks } => (Some(window.into()), Some(sinks.into())),
                _ => (None, None),
            };
            let slot = if group.kind == LayerKind::State { slots.next() } else { None };
            let tensors = slot.map(|slot| {
                let states = model.states().iter().zip(&layout.offsets);
                let own = states.filter(|(_, offset)| slot.contains(offset));
                own.map(|(state, offset)| NativeStatePlace::of(state, offset - slot.start)).collect()
            });
            NativeGroup {
                window,
                sinks,
                layers: group.layers.clone(),
                num_kv_heads: group.num_kv_heads.into(),
                head_dim: group.head_dim.into(),
                value_head_dim: group.value_head_dim.into(),
                device: group.device.into(),
                tensors,
                bytes: slot.map(|slot| (slot.end - slot.start) as f64),
            }
        });
        groups.collect()
    }
}

impl NativeStatePlace {
    fn of(state: &StateTensor, offset: u64) -> Self {
        NativeStatePlace {
            layer: state.layer,
            name: state.name.clone(),
            shape: state.shape.clone(),
            dtype: state.dtype.to_string(),
            offset: offset as f64,
            bytes: state.bytes() as f64,
        }
    }
}
