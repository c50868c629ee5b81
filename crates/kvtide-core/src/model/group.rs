//! Groups of layers that share block tables, and the place of each layer in them.

use std::collections::HashMap;

use super::layer::{LayerDescription, LayerKind};
use super::state::StateTensor;

/// Layers that share block tables: they keep the same tokens in the same sizes on the same device. A block of the group
/// holds a run of tokens in all of its layers.
///
/// ```text
/// layers   0 sliding   1 sliding   2 full   3 sliding   4 as 2   5 state
/// groups   A 0         A 1         B 0      A 2         B 0      C         in the order of their first layers
/// ```
///
/// The layers with a state form one more group on each device, behind all others. A layer with attention and a state is in
/// two groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// The kind of each layer: full, sliding, or [`LayerKind::State`] for layers that keep a state, some of which may have
    /// attention as well.
    pub kind: LayerKind,
    /// Heads of keys and values; 0 in a group of states, as the two sizes below.
    pub num_kv_heads: u32,
    /// Elements of one head's key.
    pub head_dim: u32,
    /// Elements of one head's value.
    pub value_head_dim: u32,
    /// The number of the device of these layers; 0 if all layers are on one device.
    pub device: u32,
    /// The layers that keep keys and values themselves, or a state, ascending: the layer at index `i` is the group's layer
    /// `i`.
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

/// Returns the groups of checked layers, and each layer's place in them if it has keys and values. `device` returns the
/// number of a layer's device. O(layers).
pub(super) fn groups(
    layers: &[LayerDescription],
    device: impl Fn(usize) -> u32,
) -> (Vec<LayerGroup>, Vec<Option<LayerPlace>>) {
    let (mut groups, mut known) = (Vec::<LayerGroup>::new(), HashMap::new());
    let mut places = Vec::<Option<LayerPlace>>::with_capacity(layers.len());
    for (number, &layer) in layers.iter().enumerate() {
        match layer.kind {
            LayerKind::SharedWith(source) => {
                places.push(places[source as usize]);
                continue;
            }
            LayerKind::State | LayerKind::Empty => {
                places.push(None);
                continue;
            }
            LayerKind::Full | LayerKind::Sliding { .. } => {}
        }
        let device = device(number);
        let group = *known.entry((layer, device)).or_insert_with(|| {
            let LayerDescription { kind, num_kv_heads, head_dim, value_head_dim } = layer;
            groups.push(LayerGroup { kind, num_kv_heads, head_dim, value_head_dim, device, layers: Vec::new() });
            groups.len() - 1
        });
        places.push(Some(LayerPlace { group: group as u32, index: groups[group].layers.len() as u32 }));
        groups[group].layers.push(number as u32);
    }
    (groups, places)
}

/// Returns the groups of states: one for each device, in the order of their first layers. The states are ordered by layer.
/// O(states · devices).
pub(super) fn state_groups(states: &[StateTensor], device: impl Fn(usize) -> u32) -> Vec<LayerGroup> {
    let mut groups = Vec::<LayerGroup>::new();
    for state in states {
        let device = device(state.layer as usize);
        let group = match groups.iter_mut().find(|group| group.device == device) {
            Some(group) => group,
            None => {
                let LayerDescription { kind, num_kv_heads, head_dim, value_head_dim } = LayerDescription::state();
                groups.push(LayerGroup { kind, num_kv_heads, head_dim, value_head_dim, device, layers: Vec::new() });
                groups.last_mut().expect("a group was just pushed")
            }
        };
        if group.layers.last() != Some(&state.layer) {
            group.layers.push(state.layer);
        }
    }
    groups
}
