//! Each field of an identity, changed alone: a file is refused, and the form of blocks in stores is another one, so that
//! a lookup misses. A field that is left out of a comparison shows here, and so does a new field.

use std::collections::BTreeSet;

use kvtide_core::Code;
use kvtide_core::model::{
    AttentionDescription, LayerDescription, LayerKind, ModelDescription, StateDType, StateTensor,
};
use kvtide_core::paged::PageFormat;
use kvtide_files::{CacheFile, Identity, Source, Watch, save_cache_bytes};
use kvtide_tensor::{PagedKvCache, PagedModelOptions, PoolRoom};
use serde_json::Value;

use crate::forged::Parts;
use crate::world::{KEY, full};

/// Returns a cache whose identity has all fields.
fn cache(prefix_key: Option<[u8; 32]>) -> PagedKvCache {
    let sliding = full().with_kind(LayerKind::Sliding { window: 6, sinks: 2 });
    let layers = vec![sliding, full(), full().with_kind(LayerKind::SharedWith(1)), LayerDescription::state()];
    let tensor = StateTensor { layer: 3, name: "ssm".to_owned(), shape: vec![3], dtype: StateDType::F32 };
    let attention = AttentionDescription {
        num_query_heads: Some(4),
        scale: Some(0.5),
        softcap: Some(30.),
        ..AttentionDescription::default()
    };
    let model = ModelDescription::new(layers).unwrap().with_attention(attention).unwrap();
    let model = model.with_states(vec![tensor]).unwrap();
    let room = PoolRoom::Blocks(vec![4; model.groups().len()]);
    let namespace = "a model".to_owned();
    PagedKvCache::of_model(PagedModelOptions {
        prefix_key,
        namespace,
        value_format: Some(PageFormat::Q8),
        value_hadamard: true,
        ..PagedModelOptions::new(model, room)
    })
    .unwrap()
}

/// Returns the pointers to all values in a JSON text, with the names of their fields.
fn values(of: &Value, pointer: &str, name: &str) -> Vec<(String, String)> {
    match of {
        Value::Object(fields) => {
            let dot = if name.is_empty() { "" } else { "." };
            let inside = |(field, value)| values(value, &format!("{pointer}/{field}"), &format!("{name}{dot}{field}"));
            fields.iter().flat_map(inside).collect()
        }
        Value::Array(items) => {
            let inside = |(at, value)| values(value, &format!("{pointer}/{at}"), name);
            items.iter().enumerate().flat_map(inside).collect()
        }
        _ => vec![(pointer.to_owned(), name.to_owned())],
    }
}

fn change(value: &mut Value) {
    *value = match &*value {
        Value::Bool(is_so) => Value::Bool(!is_so),
        Value::Number(number) => match number.as_u64() {
            Some(number) => (number + 1).into(),
            None => (number.as_f64().unwrap() + 1.).into(),
        },
        // Another one that exists, so that it is compared and not just unknown.
        Value::String(text) if text == "f32" => "f16".into(),
        Value::String(text) if text == "q8" => "q4".into(),
        Value::String(text) => format!("{text}0").into(),
        other => panic!("{other} is no single value"),
    };
}

/// Returns the identity with each value changed alone, and the name of its field.
fn changed(identity: &Value) -> Vec<(String, Value)> {
    let values = values(identity, "", "").into_iter();
    let changed = values.map(|(pointer, name)| {
        let mut other = identity.clone();
        change(other.pointer_mut(&pointer).unwrap());
        (name, other)
    });
    changed.collect()
}

/// Fields that give the bytes of blocks no other meaning: how attention reads them, where they are, and the key that a
/// cache without a chosen one takes over.
const FREE: [&str; 6] = [
    "attention.numQueryHeads",
    "attention.scale",
    "attention.softcap",
    "attention.sinkLogits",
    "groups.device",
    "prefixKey.key",
];

#[test]
fn the_form_of_blocks_depends_on_each_field() {
    let own = Identity::of(&cache(None));
    let identity = serde_json::to_value(&own).unwrap();
    let mut seen = BTreeSet::new();
    for (name, other) in changed(&identity) {
        let other: Identity = serde_json::from_value(other).unwrap();
        assert_eq!(own.digest() == other.digest(), FREE.contains(&&*name), "{name}");
        seen.insert(name);
    }
    let all = "attention.numQueryHeads attention.scale attention.sinkLogits attention.softcap blockSize byteOrder \
               dtype groups.device groups.headDim groups.layers groups.numKvHeads groups.sinks groups.valueHeadDim \
               groups.window hadamard keyFormat layers.headDim layers.kind layers.numKvHeads layers.sinks \
               layers.valueHeadDim layers.window layers.with layout namespace prefixKey.check prefixKey.key \
               states.dtype states.layer states.name states.shape valueFormat valueHadamard";
    assert_eq!(seen.into_iter().collect::<Vec<_>>().join(" "), all, "a field is new, or gone");
}

#[test]
fn a_file_is_refused_for_each_field() {
    let parts = Parts::new(&save_cache_bytes(&mut cache(Some(KEY)), &Watch::default()).unwrap());
    let header: Value = serde_json::from_str(&parts.header).unwrap();
    // Only this text changes: tensors stay in the order of their bytes.
    let own = header["__metadata__"]["identity"].to_string();
    let with = |identity: &Value| {
        let mut forged = parts.clone();
        forged.header = parts.header.replace(&own, &Value::from(identity.to_string()).to_string());
        Source::bytes(forged.bytes())
    };
    let load = |source: Source| {
        let (file, mut cache) = (CacheFile::open(source)?, cache(Some(KEY)));
        file.begin(&mut cache).map(drop)
    };
    let identity = serde_json::to_value(Identity::of(&cache(Some(KEY)))).unwrap();
    load(with(&identity)).unwrap();
    for (name, other) in changed(&identity) {
        let done = load(with(&other));
        if FREE.contains(&&*name) {
            continue;
        }
        let code = done.expect_err(&name).code();
        assert!(matches!(code, Code::Corrupt | Code::Incompatible), "{name}: {code:?}");
    }
}
