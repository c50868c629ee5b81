//! States: their groups and layout against a naive search, and descriptions that are errors.

use kvtide_core::model::{
    LayerDescription, LayerKind, ModelDescription, STATE_ALIGNMENT, STATE_BYTES_MAX, StateDType, StateTensor,
};
use kvtide_core::{Code, Error};
use proptest::prelude::*;

use crate::support;

const FULL: LayerDescription =
    LayerDescription { kind: LayerKind::Full, num_kv_heads: 2, head_dim: 8, value_head_dim: 8 };

fn state(layer: u32, name: &str, shape: &[u32], dtype: StateDType) -> StateTensor {
    StateTensor { layer, name: name.to_owned(), shape: shape.to_vec(), dtype }
}

fn conv(layer: u32) -> StateTensor {
    state(layer, "conv", &[3, 2], StateDType::F16)
}

/// The field, value and expectation that states are refused with.
fn refused(layers: Vec<LayerDescription>, states: Vec<StateTensor>) -> [String; 3] {
    let error = ModelDescription::new(layers).unwrap().with_states(states).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    match error {
        Error::InvalidModel { field, value, expected } => [field, value.to_string(), expected],
        other => panic!("{other}"),
    }
}

#[test]
fn states_form_one_group_behind_all_others() {
    let layers = vec![LayerDescription::state(), FULL, FULL, LayerDescription::empty()];
    let ssm = state(0, "ssm", &[2, 4, 8], StateDType::F32);
    let model = ModelDescription::new(layers).unwrap().with_states(vec![conv(2), conv(0), ssm.clone()]).unwrap();
    let groups: Vec<_> = model.groups().iter().map(|group| (group.kind, group.layers.clone())).collect();
    assert_eq!(groups, [(LayerKind::Full, vec![1, 2]), (LayerKind::State, vec![0, 2])]);
    let states = &model.groups()[1];
    assert_eq!((states.num_kv_heads, states.head_dim, states.value_head_dim), (0, 0, 0));
    assert_eq!(model.states(), [conv(0), ssm, conv(2)]);
    let layout = model.state_layout();
    assert_eq!((layout.offsets, layout.bytes, layout.slots.first()), (vec![0, 64, 320], 384, Some(&(0..384))));
    assert_eq!([0, 1, 2, 3].map(|layer| model.place(layer).is_some()), [false, true, true, false]);
    let kinds = [LayerKind::State, LayerKind::Full, LayerKind::Full, LayerKind::Empty];
    assert_eq!([0, 1, 2, 3].map(|layer| model.kind(layer)), kinds);
    model.check_states().unwrap();
}

#[test]
fn a_model_may_have_states_alone() {
    let model = ModelDescription::new(vec![LayerDescription::state(); 3]).unwrap();
    assert_eq!((model.groups().len(), model.state_layout().bytes), (0, 0));
    let error = model.check_states().unwrap_err();
    assert_eq!(error.to_string(), "layers[0].tensors.length is 0, expected at least 1 in a layer that keeps a state");
    let model = model.with_states((0..3).map(conv).collect()).unwrap();
    assert_eq!((model.groups().len(), model.groups()[0].layers.len()), (1, 3));
    model.check_states().unwrap();
    let nothing = ModelDescription::new(vec![LayerDescription::empty(); 2]).unwrap();
    assert!(nothing.check_states().unwrap_err().to_string().contains("at least one layer that keeps some"));
    assert!(ModelDescription::new(vec![]).is_err());
}

#[test]
fn later_states_replace_earlier_ones() {
    let model = ModelDescription::new(vec![FULL]).unwrap().with_states(vec![conv(0)]).unwrap();
    assert_eq!(model.groups().len(), 2);
    let without = model.with_states(vec![]).unwrap();
    assert_eq!((without.groups().len(), without.states().len()), (1, 0));
}

#[test]
fn impossible_states_are_refused_by_name() {
    let layers = || vec![LayerDescription::state(), FULL, FULL.with_kind(LayerKind::SharedWith(1))];
    let with = |of: StateTensor| refused(layers(), vec![conv(0), of]);
    let [field, value, _] = with(conv(3));
    assert_eq!((&*field, &*value), ("states[1].layer", "3"));
    let [field, value, expected] = with(conv(0));
    assert_eq!((&*field, &*value), ("layers[0].tensors[1].name", "conv"));
    assert!(expected.starts_with("another name"), "{expected}");
    let [field, _, expected] = with(state(1, "", &[1], StateDType::F32));
    assert_eq!((&*field, &*expected), ("layers[1].tensors[0].name", "1 to 255 bytes"));
    assert_eq!(with(state(1, &"é".repeat(128), &[1], StateDType::F32))[1], "text of 256 bytes");
    assert_eq!(with(state(1, "a", &[2, 0], StateDType::F32))[0], "layers[1].tensors[0].shape[1]");
    assert_eq!(with(state(1, "a", &[1 << 31], StateDType::F32))[..2], ["layers[1].tensors[0].shape[0]", "2147483648"]);
    assert_eq!(with(state(1, "a", &[], StateDType::F32))[0], "layers[1].tensors[0].shape.length");
    assert_eq!(with(state(1, "a", &[1; 9], StateDType::F32))[..2], ["layers[1].tensors[0].shape.length", "9"]);
    let [field, value, expected] = with(state(1, "a", &[1 << 30, 1 << 30, 1 << 30], StateDType::BF16));
    assert_eq!((&*field, &*value), ("layers[1].tensors[0].shape", "[1073741824, 1073741824, 1073741824]"));
    assert_eq!(expected, format!("at most {STATE_BYTES_MAX} bytes of bf16"));
    let [field, _, expected] = with(state(2, "a", &[1], StateDType::F32));
    assert_eq!(
        (&*field, &*expected),
        ("layers[2].tensors[0]", "none in a layer that shares the keys and values of layer 1")
    );
    let empty = refused(vec![LayerDescription::empty(), FULL], vec![conv(0)]);
    assert_eq!((&*empty[0], &*empty[2]), ("layers[0].tensors[0]", "none in a layer that keeps nothing"));
    let bare = refused(vec![LayerDescription::state(), LayerDescription::state()], vec![conv(0)]);
    assert_eq!((&*bare[0], &*bare[1]), ("layers[1].tensors.length", "0"));
    let most = (STATE_BYTES_MAX / 4) as u32;
    assert!(
        ModelDescription::new(layers()).unwrap().with_states(vec![state(0, "a", &[most], StateDType::F32)]).is_ok()
    );
    let [field, value, _] = refused(layers(), vec![state(0, "a", &[most], StateDType::F32), conv(1)]);
    assert_eq!((&*field, value), ("states", format!("{} bytes for a sequence", STATE_BYTES_MAX + 64)));
}

#[test]
fn layers_without_keys_and_values_have_no_sizes_and_are_not_shared() {
    let refused = |layers| ModelDescription::new(layers).unwrap_err().to_string();
    let sized = FULL.with_kind(LayerKind::State);
    assert_eq!(refused(vec![sized]), "layers[0].numKvHeads is 2, expected 0 in a layer without keys and values");
    let sized = LayerDescription { head_dim: 8, ..LayerDescription::empty() };
    assert_eq!(refused(vec![sized]), "layers[0].headDim is 8, expected 0 in a layer without keys and values");
    for kept in [LayerDescription::state(), LayerDescription::empty()] {
        let message = refused(vec![kept, FULL.with_kind(LayerKind::SharedWith(0))]);
        assert_eq!(
            message,
            "layers[1].sharedWith is 0, expected a layer that keeps tokens itself: layer 0 has no keys and values"
        );
    }
    let attention = kvtide_core::model::AttentionDescription { num_query_heads: Some(4), ..Default::default() };
    ModelDescription::new(vec![LayerDescription::state(), FULL]).unwrap().with_attention(attention).unwrap();
}

#[test]
fn states_on_several_devices_form_a_slot_each() {
    let layers = vec![LayerDescription::state(), FULL, LayerDescription::state(), LayerDescription::state()];
    let model = ModelDescription::new(layers).unwrap().with_states(vec![conv(3), conv(2), conv(0)]).unwrap();
    let split = model.clone().split(&[1, 0, 0, 1]).unwrap();
    let groups: Vec<_> = split.groups().iter().map(|group| (group.device, group.kind, group.layers.clone())).collect();
    assert_eq!(
        groups,
        [(0, LayerKind::Full, vec![1]), (1, LayerKind::State, vec![0, 3]), (0, LayerKind::State, vec![2])]
    );
    let layout = split.state_layout();
    assert_eq!((layout.offsets, layout.slots, layout.bytes), (vec![0, 128, 64], vec![0..128, 128..192], 192));
    // Other states stay on the devices of their layers.
    let again = split.with_states(vec![conv(0), conv(2), conv(3)]).unwrap();
    assert_eq!(again.state_layout().slots.len(), 2);
    assert_eq!(again.split(&[0; 4]).unwrap(), model);
}

/// Layers with a state, attention, both or nothing, the tensors of each, and the device of each.
fn described() -> impl Strategy<Value = (Vec<LayerDescription>, Vec<StateTensor>, Vec<u32>)> {
    let tensor = (proptest::collection::vec(1u32..9, 1..4), 0usize..3);
    let layer = (0u32..4, proptest::collection::vec(tensor, 1..4), 0u32..3);
    proptest::collection::vec(layer, 1..16).prop_map(|drawn| {
        let (mut layers, mut states, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (kind, tensors, device)) in (0..).zip(drawn) {
            layers.push(match kind {
                0 => LayerDescription::empty(),
                1 => LayerDescription::state(),
                _ => FULL,
            });
            let named = (0..)
                .zip(tensors)
                .map(|(at, (shape, dtype)): (u32, _)| state(index, &format!("s{at}"), &shape, StateDType::ALL[dtype]));
            if matches!(kind, 1 | 2) {
                states.extend(named);
            }
            devices.push(device);
        }
        (layers, states, devices)
    })
}

#[test]
fn groups_and_offsets_are_what_a_walk_through_the_states_finds() {
    let shuffled = described().prop_flat_map(|(layers, states, devices)| {
        (Just(layers), Just(states.clone()).prop_shuffle(), Just(states), Just(devices))
    });
    support::run("states", 2_000, shuffled, |(layers, shuffled, states, devices)| {
        let model = ModelDescription::new(layers.clone()).unwrap();
        let model = model.with_states(shuffled).unwrap().split(&devices).unwrap();
        let layout = model.state_layout();
        let groups: Vec<_> = model.groups().iter().filter(|of| of.kind == LayerKind::State).collect();
        prop_assert!(model.groups().iter().rev().take(groups.len()).all(|of| of.kind == LayerKind::State));
        let mut at = 0;
        for (group, slot) in groups.iter().zip(&layout.slots) {
            prop_assert_eq!(slot.start, at);
            let mut named = Vec::new();
            for (state, &offset) in model.states().iter().zip(&layout.offsets) {
                if devices[state.layer as usize] != group.device {
                    continue;
                }
                prop_assert_eq!(offset, at);
                let elements: u64 = state.shape.iter().map(|&size| u64::from(size)).product();
                at += (elements * state.dtype.bytes()).div_ceil(STATE_ALIGNMENT) * STATE_ALIGNMENT;
                named.push(state.layer);
            }
            named.dedup();
            prop_assert_eq!(&group.layers, &named);
            prop_assert_eq!(slot.end, at);
        }
        prop_assert_eq!((layout.bytes, layout.slots.len()), (at, groups.len()));
        prop_assert_eq!(layout.offsets.len(), states.len());
        let mut layers: Vec<_> = model.states().iter().map(|of| of.layer).collect();
        prop_assert!(layers.is_sorted());
        layers.dedup();
        let mut grouped: Vec<_> = groups.iter().flat_map(|of| of.layers.clone()).collect();
        grouped.sort_unstable();
        prop_assert_eq!(grouped, layers);
        Ok(())
    });
}
