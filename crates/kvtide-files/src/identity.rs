//! The model and the form of saved data: text in the metadata of a file, compared field by field.
//!
//! | field | contents |
//! | --- | --- |
//! | `namespace` | what the token ids mean: the model, its rope settings |
//! | `layers`, `attention` | the model's layers, from which a cache is created again |
//! | `states` | the tensors of a fixed size that layers keep for a sequence; missing if there are none |
//! | `groups` | the layers that share blocks: their window and sizes |
//! | `blockSize`, `dtype`, `keyFormat`, `valueFormat`, `hadamard`, `valueHadamard` | the form of the pages; without the last, V is not rotated |
//! | `layout`, `byteOrder` | the order of numbers and bytes in a page |
//! | `prefixKey` | the key under which block keys are made: a check of it, and the key itself if it was made at random |

use kvtide_core::model::{
    AttentionDescription, LayerDescription, LayerGroup, LayerKind, ModelDescription, StateTensor,
};
use kvtide_core::paged::{PageFormat, PageLayout};
use kvtide_tensor::{DType, PagedKvCache, PagedModelOptions, PoolRoom, PrefixNamer};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The version of the order of numbers in a page.
const LAYOUT: u32 = 1;

/// The model and the form of saved data.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    namespace: String,
    block_size: u32,
    dtype: String,
    key_format: String,
    value_format: String,
    hadamard: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    value_hadamard: bool,
    layout: u32,
    byte_order: String,
    groups: Vec<Group>,
    layers: Vec<Layer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    states: Vec<State>,
    attention: Attention,
    prefix_key: PrefixKey,
}

/// Layers that share blocks.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Group {
    layers: Vec<u32>,
    num_kv_heads: u32,
    head_dim: u32,
    value_head_dim: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sinks: Option<u32>,
    device: u32,
}

/// One layer of the model.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Layer {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sinks: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    with: Option<u32>,
    num_kv_heads: u32,
    head_dim: u32,
    value_head_dim: u32,
}

/// A tensor of a fixed size that a layer keeps for a sequence.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct State {
    layer: u32,
    name: String,
    shape: Vec<u32>,
    dtype: String,
}

/// The attention options of the model.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Attention {
    #[serde(skip_serializing_if = "Option::is_none")]
    num_query_heads: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scale: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    softcap: Option<f32>,
    sink_logits: bool,
}

/// The key under which block keys are made.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PrefixKey {
    check: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

fn group(of: &LayerGroup) -> Group {
    let (window, sinks) = match of.kind {
        LayerKind::Sliding { window, sinks } => (Some(window), Some(sinks)),
        _ => (None, None),
    };
    let LayerGroup { num_kv_heads, head_dim, value_head_dim, device, ref layers, .. } = *of;
    Group { layers: layers.clone(), num_kv_heads, head_dim, value_head_dim, window, sinks, device }
}

fn layer(of: &LayerDescription) -> Layer {
    let LayerDescription { kind, num_kv_heads, head_dim, value_head_dim } = *of;
    let (kind, [window, sinks, with]) = match kind {
        LayerKind::Full => ("full", [None; 3]),
        LayerKind::Sliding { window, sinks } => ("sliding", [Some(window), Some(sinks), None]),
        LayerKind::SharedWith(with) => ("shared", [None, None, Some(with)]),
        LayerKind::State => ("state", [None; 3]),
        LayerKind::Empty => ("empty", [None; 3]),
    };
    Layer { kind: kind.to_owned(), window, sinks, with, num_kv_heads, head_dim, value_head_dim }
}

fn state(of: &StateTensor) -> State {
    State { layer: of.layer, name: of.name.clone(), shape: of.shape.clone(), dtype: of.dtype.to_string() }
}

impl Identity {
    /// Returns the identity of a cache.
    #[must_use]
    pub fn of(cache: &PagedKvCache) -> Self {
        let model = cache.model();
        let [key_format, value_format] = cache.formats().map(|format| format.name().to_owned());
        let AttentionDescription { num_query_heads, scale, softcap, sink_logits } = *model.attention();
        let [hadamard, value_hadamard] = cache.rotated();
        let key = cache.namer().own_key().map(|key| hex(&key));
        Identity {
            namespace: cache.namer().namespace().to_owned(),
            block_size: cache.block_size(),
            dtype: cache.dtype().to_string(),
            key_format,
            value_format,
            hadamard,
            value_hadamard,
            layout: LAYOUT,
            byte_order: if cfg!(target_endian = "little") { "little" } else { "big" }.to_owned(),
            groups: model.groups().iter().map(group).collect(),
            layers: model.layers().iter().map(layer).collect(),
            states: model.states().iter().map(state).collect(),
            attention: Attention { num_query_heads, scale, softcap, sink_logits },
            prefix_key: PrefixKey { check: hex(&cache.namer().key_check().0), key },
        }
    }

    /// Parses the identity in a file; returns it with the layouts of its pages.
    pub(crate) fn parse(text: &str) -> Result<(Self, Vec<PageLayout>)> {
        let identity: Identity = serde_json::from_str(text)
            .map_err(|error| Error::corrupt("the identity", format!("other text: {error}"), "an identity"))?;
        let is_empty = |of: &Group| of.layers.is_empty();
        if identity.block_size == 0 || identity.groups.is_empty() || identity.groups.iter().any(is_empty) {
            return Err(Error::corrupt("the identity", "without tokens or layers", "some of each"));
        }
        let layouts = identity.check_made()?;
        Ok((identity, layouts))
    }

    /// Returns the layouts of each group's pages. Refuses an identity that no cache can have: impossible pages, or
    /// groups that do not fit the layers. Creates a cache without blocks, which takes no memory, to check the rest.
    /// O(layers).
    fn check_made(&self) -> Result<Vec<PageLayout>> {
        let (model, [key_format, value_format]) = (self.model()?, self.formats()?.map(Some));
        bytes(&self.prefix_key.check, "prefixKey")?;
        self.own_key()?;
        let made = PagedModelOptions {
            block_size: self.block_size,
            dtype: self.dtype()?,
            key_format,
            value_format,
            hadamard: self.hadamard,
            value_hadamard: self.value_hadamard,
            namespace: self.namespace.clone(),
            ..PagedModelOptions::new(model.clone(), PoolRoom::Blocks(vec![0; model.groups().len()]))
        };
        // The cache has no blocks, so only impossible sizes take too much memory here.
        let refused = |error| Error::corrupt("the identity", error, "the identity of a valid cache");
        let layouts = PagedKvCache::of_model(made).map_err(refused)?.layouts().collect();
        let mut devices = vec![0; self.layers.len()];
        for (of, &layer) in self.groups.iter().flat_map(|of| of.layers.iter().map(move |layer| (of, layer))) {
            let device = devices.get_mut(layer as usize);
            *device.ok_or_else(|| Error::corrupt("groups", format!("layer {layer}"), "layers that there are"))? =
                of.device;
        }
        for (layer, of) in self.layers.iter().enumerate() {
            // The description was checked, so this is an earlier layer.
            devices[layer] = of.with.map_or(devices[layer], |with| devices[with as usize]);
        }
        let model = model.split(&devices).map_err(|error| Error::of_content(error.into()))?;
        if !model.groups().iter().map(group).eq(self.groups.iter().cloned()) {
            let found = format!("{} groups of other layers", self.groups.len());
            return Err(Error::corrupt("groups", found, format!("the {} groups of its layers", model.groups().len())));
        }
        Ok(layouts)
    }

    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("an identity is JSON")
    }

    /// Refuses data of another model or form, and names the field that differs.
    pub(crate) fn check(&self, cache: &PagedKvCache) -> Result<()> {
        let own = Identity::of(cache);
        let differs = |field: &str, found: String, expected: String| match found == expected {
            true => Ok(()),
            false => Err(Error::incompatible(field, found, expected)),
        };
        differs("byteOrder", self.byte_order.clone(), own.byte_order)?;
        differs("layout", self.layout.to_string(), LAYOUT.to_string())?;
        differs("namespace", self.namespace.clone(), own.namespace)?;
        differs("blockSize", self.block_size.to_string(), own.block_size.to_string())?;
        differs("dtype", self.dtype.clone(), own.dtype)?;
        differs("keyFormat", self.key_format.clone(), own.key_format)?;
        differs("valueFormat", self.value_format.clone(), own.value_format)?;
        differs("hadamard", self.hadamard.to_string(), own.hadamard.to_string())?;
        differs("valueHadamard", self.value_hadamard.to_string(), own.value_hadamard.to_string())?;
        differs("groups.length", self.groups.len().to_string(), own.groups.len().to_string())?;
        for (at, (saved, own)) in self.groups.iter().zip(&own.groups).enumerate() {
            let sizes = |of: &Group| {
                [
                    ("layers", format!("{:?}", of.layers)),
                    ("numKvHeads", of.num_kv_heads.to_string()),
                    ("headDim", of.head_dim.to_string()),
                    ("valueHeadDim", of.value_head_dim.to_string()),
                    ("window", of.window.map_or("none".to_owned(), |window| window.to_string())),
                    ("sinks", of.sinks.map_or("none".to_owned(), |sinks| sinks.to_string())),
                ]
            };
            for ((name, found), (_, expected)) in sizes(saved).into_iter().zip(sizes(own)) {
                differs(&format!("groups[{at}].{name}"), found, expected)?;
            }
        }
        let states = |of: &[State]| serde_json::to_string(of).expect("states are JSON");
        differs("states", states(&self.states), states(&own.states))
    }

    /// Refuses block keys that were made under another key than a namer's.
    pub(crate) fn check_key(&self, namer: &PrefixNamer) -> Result<()> {
        match self.prefix_key.check == hex(&namer.key_check().0) {
            true => Ok(()),
            false => Err(Error::incompatible("prefixKey", "another key", "the key of the cache")),
        }
    }

    /// Returns the key under which block keys are made, if it was made at random.
    pub(crate) fn own_key(&self) -> Result<Option<[u8; 32]>> {
        self.prefix_key.key.as_deref().map(|text| bytes(text, "prefixKey")).transpose()
    }

    /// Returns the model's description.
    pub(crate) fn model(&self) -> Result<ModelDescription> {
        let layers = self.layers.iter().map(|of| {
            let kind = match (&*of.kind, of.window, of.sinks, of.with) {
                ("full", None, None, None) => LayerKind::Full,
                ("sliding", Some(window), Some(sinks), None) => LayerKind::Sliding { window, sinks },
                ("shared", None, None, Some(with)) => LayerKind::SharedWith(with),
                ("state", None, None, None) => LayerKind::State,
                ("empty", None, None, None) => LayerKind::Empty,
                _ => return Err(Error::corrupt("a layer", &of.kind, "a kind of layer, with its fields")),
            };
            let Layer { num_kv_heads, head_dim, value_head_dim, .. } = *of;
            Ok(LayerDescription { kind, num_kv_heads, head_dim, value_head_dim })
        });
        let Attention { num_query_heads, scale, softcap, sink_logits } = self.attention;
        let attention = AttentionDescription { num_query_heads, scale, softcap, sink_logits };
        let states = self.states.iter().map(|State { layer, name, shape, dtype }| {
            let dtype = dtype.parse().map_err(|names: String| Error::corrupt("a state's dtype", dtype, names))?;
            Ok(StateTensor { layer: *layer, name: name.clone(), shape: shape.clone(), dtype })
        });
        let (layers, states) = (layers.collect::<Result<_>>()?, states.collect::<Result<Vec<_>>>()?);
        let model =
            ModelDescription::new(layers).and_then(|model| model.with_attention(attention)?.with_states(states));
        model.map_err(|error| Error::of_content(error.into()))
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    pub(crate) fn dtype(&self) -> Result<DType> {
        self.dtype.parse().map_err(|names| Error::corrupt("dtype", &self.dtype, names))
    }

    pub(crate) fn formats(&self) -> Result<[PageFormat; 2]> {
        let read = |text: &str| text.parse().map_err(|names: String| Error::corrupt("a page format", text, names));
        Ok([read(&self.key_format)?, read(&self.value_format)?])
    }

    /// Returns the form of a block in a store: 32 bytes that stand for everything that gives its bytes their meaning,
    /// which is the fields that `Identity::check` compares, the layers, and the key under which block keys are made.
    /// A block serves only caches of its own form.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut own = self.clone();
        own.attention = Attention { num_query_heads: None, scale: None, softcap: None, sink_logits: false };
        own.groups.iter_mut().for_each(|group| group.device = 0);
        own.prefix_key.key = None;
        *blake3::hash(own.text().as_bytes()).as_bytes()
    }

    /// Returns the number of groups of layers.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the number of layers in the pages of a group; those of states have one.
    pub(crate) fn layers_of(&self, group: usize) -> u64 {
        let group = &self.groups[group];
        if group.num_kv_heads == 0 { 1 } else { group.layers.len() as u64 }
    }

    /// Returns true for K, and for V, if it is rotated before it is quantised.
    pub(crate) fn rotated(&self) -> [bool; 2] {
        [self.hadamard, self.value_hadamard]
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Returns bytes as hexadecimal text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses 32 bytes from hexadecimal text.
pub(crate) fn bytes(text: &str, what: &str) -> Result<[u8; 32]> {
    let refused = || Error::corrupt(what, text, "32 bytes in hex");
    if text.len() != 64 || !text.is_ascii() {
        return Err(refused());
    }
    let mut bytes = [0; 32];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| refused())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| refused())?;
    }
    Ok(bytes)
}
