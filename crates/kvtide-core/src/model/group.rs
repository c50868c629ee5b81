//! Layers that share block tables: those that keep the same tokens of the same size on the same device.
//!
//! ```text
//! layers   0 sliding   1 sliding   2 full   3 sliding   4 as 2
//! groups   A 0         A 1         B 0      A 2         B 0
//! ```
//!
//! A block of a group holds a run of tokens of all its layers. Groups stand in the order of their first layers; a layer that
//! reads another's keys and values stands where that one does, and takes no room.

use std::collections::HashMap;

use super::layer::{LayerDescription, LayerKind};

/// Layers of one kind and one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// What each of them keeps: never another layer's.
    pub kind: LayerKind,
    /// Heads of keys and values.
    pub num_kv_heads: u32,
    /// Elements of one head's key.
    pub head_dim: u32,
    /// Elements of one head's value.
    pub value_head_dim: u32,
    /// The device on which they lie, by number; 0 where all of them are on one.
    pub device: u32,
    /// The layers with keys and values of their own, ascending: the layer at index `i` is the group's layer `i`.
    pub layers: Vec<u32>,
}

/// Where a layer's keys and values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    /// The group.
    pub group: u32,
    /// The layer within the group.
    pub index: u32,
}

/// The groups of checked layers, and each layer's place in them; `device` gives the number of the device of each.
pub(super) fn groups(layers: &[LayerDescription], device: impl Fn(usize) -> u32) -> (Vec<LayerGroup>, Vec<LayerPlace>) {
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
