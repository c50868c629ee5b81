//! Compares descriptions with a search through their layers; contradictory descriptions are errors.

use kvtide_core::model::{AttentionDescription, LAYERS_MAX, LayerDescription, LayerKind, ModelDescription};
use kvtide_core::{COUNT_MAX, Code, Detail, Error};
use proptest::prelude::*;

use crate::support;

const FULL: LayerDescription =
    LayerDescription { kind: LayerKind::Full, num_kv_heads: 2, head_dim: 8, value_head_dim: 8 };

fn sliding(window: u32, sinks: u32) -> LayerDescription {
    FULL.with_kind(LayerKind::Sliding { window, sinks })
}

fn shared(source: u32) -> LayerDescription {
    FULL.with_kind(LayerKind::SharedWith(source))
}

/// The field that a description of these layers is refused for.
fn refused(layers: Vec<LayerDescription>) -> (String, String) {
    let error = ModelDescription::new(layers).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    match error {
        Error::InvalidModel { field, value, .. } => (field, value.to_string()),
        other => panic!("{other}"),
    }
}

fn named(field: &str, value: &str) -> (String, String) {
    (field.to_owned(), value.to_owned())
}

/// The group of a layer's keys and values, and the index there.
fn place(model: &ModelDescription, layer: u32) -> (u32, u32) {
    let place = model.place(layer).unwrap();
    (place.group, place.index)
}

#[test]
fn layers_that_contradict_themselves_are_refused_by_name() {
    assert_eq!(refused(vec![]), named("layers", "0"));
    assert_eq!(refused(vec![FULL; LAYERS_MAX as usize + 1]), named("layers", "65537"));
    assert_eq!(refused(vec![FULL, LayerDescription { num_kv_heads: 0, ..FULL }]), named("layers[1].numKvHeads", "0"));
    assert_eq!(refused(vec![LayerDescription { head_dim: 0, ..FULL }]), named("layers[0].headDim", "0"));
    let huge = COUNT_MAX + 1;
    assert_eq!(
        refused(vec![LayerDescription { value_head_dim: huge, ..FULL }]),
        named("layers[0].valueHeadDim", "2147483648")
    );
    assert_eq!(refused(vec![FULL, sliding(0, 4)]), named("layers[1].window", "0"));
    assert_eq!(refused(vec![sliding(COUNT_MAX, 1)]), named("layers[0].window", "2147483647"));
    assert_eq!(refused(vec![sliding(u32::MAX, u32::MAX)]), named("layers[0].window", "4294967295"));
}

#[test]
fn a_layer_shares_with_an_earlier_one_that_keeps_tokens() {
    assert_eq!(refused(vec![shared(0)]), named("layers[0].sharedWith", "0"));
    assert_eq!(refused(vec![FULL, shared(1)]), named("layers[1].sharedWith", "1"));
    assert_eq!(refused(vec![FULL, shared(2), FULL]), named("layers[1].sharedWith", "2"));
    assert_eq!(refused(vec![FULL, shared(0), shared(1)]), named("layers[2].sharedWith", "1"));
    let other = LayerDescription { head_dim: 16, ..shared(0) };
    assert_eq!(refused(vec![FULL, other]), named("layers[1].headDim", "16"));
    assert!(ModelDescription::new(vec![FULL, shared(0), shared(0)]).is_ok());
}

#[test]
fn attention_that_cannot_be_is_refused_by_name() {
    let model = ModelDescription::new(vec![FULL]).unwrap();
    let plain = AttentionDescription::default();
    for (attention, field) in [
        (AttentionDescription { num_query_heads: Some(3), ..plain }, "numQueryHeads"),
        (AttentionDescription { num_query_heads: Some(0), ..plain }, "numQueryHeads"),
        (AttentionDescription { scale: Some(f32::NAN), ..plain }, "scale"),
        (AttentionDescription { softcap: Some(0.), ..plain }, "softcap"),
    ] {
        let error = model.clone().with_attention(attention).unwrap_err();
        assert!(matches!(&error, Error::InvalidModel { field: found, .. } if found == field), "{error}");
    }
    let attention = AttentionDescription { num_query_heads: Some(4), scale: Some(0.5), ..plain };
    assert_eq!(model.with_attention(attention).unwrap().attention(), &attention);
}

#[test]
fn an_error_has_its_fields_as_data() {
    let error = ModelDescription::new(vec![sliding(0, 0)]).unwrap_err();
    let names: Vec<_> = error.details().iter().map(|detail: &Detail| detail.name).collect();
    assert_eq!(names, ["argument", "value", "expected"]);
    assert_eq!(error.to_string(), "layers[0].window is 0, expected at least 1, the query's own position");
}

#[test]
fn a_value_need_not_be_there() {
    let latent = LayerDescription { num_kv_heads: 1, head_dim: 576, value_head_dim: 0, ..FULL };
    let model = ModelDescription::new(vec![latent]).unwrap();
    assert_eq!(model.groups()[0].value_head_dim, 0);
}

#[test]
fn a_shared_layer_stands_where_its_source_does() {
    let model = ModelDescription::new(vec![sliding(4, 0), FULL, sliding(4, 0), shared(2), shared(1)]).unwrap();
    let places: Vec<_> = (0..5).map(|layer| place(&model, layer)).collect();
    assert_eq!(places, [(0, 0), (1, 0), (0, 1), (0, 1), (1, 0)]);
    assert_eq!(model.kind(3), LayerKind::Sliding { window: 4, sinks: 0 });
    assert_eq!(model.groups().iter().map(|group| group.layers.clone()).collect::<Vec<_>>(), [vec![0, 2], vec![1]]);
}

/// Layers of few different sizes, so that many are alike; one that shares takes over its source's sizes.
fn layers() -> impl Strategy<Value = Vec<LayerDescription>> {
    let layer = (0u32..8, 1u32..3, 1u32..3, 0u32..2, any::<prop::sample::Index>());
    proptest::collection::vec(layer, 1..24).prop_map(|drawn| {
        let mut layers = Vec::<LayerDescription>::new();
        for (kind, num_kv_heads, head_dim, value_head_dim, source) in drawn {
            let own: Vec<_> =
                (0..layers.len()).filter(|&at| !matches!(layers[at].kind, LayerKind::SharedWith(_))).collect();
            let kind = match kind {
                0..=2 => LayerKind::Full,
                3..=5 => LayerKind::Sliding { window: kind, sinks: head_dim - 1 },
                _ if own.is_empty() => LayerKind::Full,
                _ => {
                    let source = own[source.index(own.len())];
                    layers.push(layers[source].with_kind(LayerKind::SharedWith(source as u32)));
                    continue;
                }
            };
            layers.push(LayerDescription { kind, num_kv_heads, head_dim, value_head_dim });
        }
        layers
    })
}

#[test]
fn groups_are_what_a_search_through_the_layers_finds() {
    support::run("groups", 2_000, layers(), |layers| {
        let model = ModelDescription::new(layers.clone()).unwrap();
        let owner = |layer: usize| match layers[layer].kind {
            LayerKind::SharedWith(source) => source as usize,
            _ => layer,
        };
        for layer in 0..layers.len() {
            let (place, own) = (model.place(layer as u32).unwrap(), owner(layer));
            let alike: Vec<_> = (0..layers.len()).filter(|&other| layers[other] == layers[own]).collect();
            let group = &model.groups()[place.group as usize];
            prop_assert_eq!(group.layers.iter().map(|&layer| layer as usize).collect::<Vec<_>>(), alike.clone());
            prop_assert_eq!(alike[place.index as usize], own);
            prop_assert_eq!((group.kind, group.num_kv_heads), (layers[own].kind, layers[own].num_kv_heads));
            prop_assert_eq!((group.head_dim, group.value_head_dim), (layers[own].head_dim, layers[own].value_head_dim));
            prop_assert_eq!(model.kind(layer as u32), layers[own].kind);
        }
        let firsts: Vec<_> = model.groups().iter().map(|group| group.layers[0]).collect();
        prop_assert!(firsts.is_sorted(), "{:?}", firsts);
        Ok(())
    });
}

#[test]
fn layers_on_several_devices_stand_apart() {
    let layers = vec![FULL, sliding(4, 0), FULL, shared(1), FULL];
    let model = ModelDescription::new(layers).unwrap();
    let split = model.clone().split(&[0, 0, 1, 0, 0]).unwrap();
    let groups: Vec<_> = split.groups().iter().map(|group| (group.device, group.layers.clone())).collect();
    assert_eq!(groups, [(0, vec![0, 4]), (0, vec![1]), (1, vec![2])]);
    assert_eq!((split.place(3), place(&split, 4).1), (split.place(1), 1));
    assert_eq!(split.clone().split(&[7; 5]).unwrap().groups().len(), 2);
    assert_eq!(split.layers(), model.layers());
    for devices in [&[0; 4][..], &[0; 6], &[]] {
        let error = model.clone().split(devices).unwrap_err();
        assert!(error.to_string().contains("expected 5, one for each layer"), "{error}");
    }
    let error = model.split(&[0, 1, 0, 0, 0]).unwrap_err();
    assert_eq!(error.to_string(), "device[3] is 0, expected the device of layer 1, whose tokens it shares");
}
