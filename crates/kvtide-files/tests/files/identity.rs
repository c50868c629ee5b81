//! Data of another model, another form or another tenant is refused, and the error names the field.

use kvtide_core::Code;
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription, StateDType, StateTensor};
use kvtide_core::paged::PageFormat;
use kvtide_files::{CacheFile, Source, Watch, load_sequence, save_cache_bytes, save_sequence_bytes};
use kvtide_tensor::{DType, PagedKvCache, PagedModelOptions, PoolRoom, PromptOptions};

use crate::forged::Parts;
use crate::world::{Form, KEY, append, forms, full};

fn field(error: &kvtide_files::Error) -> String {
    assert_eq!(error.code(), Code::Incompatible, "{error}");
    error.details()[0].value.to_string()
}

#[test]
fn each_field_is_named() {
    let form = forms().swap_remove(0).1;
    let mut cache = form.cache();
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &[1, 2, 3, 4, 5], true).unwrap();
    let bytes = save_sequence_bytes(&mut cache, sequence, &Watch::default()).unwrap();
    let whole = save_cache_bytes(&mut cache, &Watch::default()).unwrap();
    let sliding = full().with_kind(LayerKind::Sliding { window: 6, sinks: 0 });
    let others = [
        ("blockSize", Form { block_size: 8, ..form.clone() }),
        ("dtype", Form { dtype: DType::F16, formats: [PageFormat::F16; 2], ..form.clone() }),
        ("keyFormat", Form { formats: [PageFormat::Q8, PageFormat::F32], ..form.clone() }),
        ("valueFormat", Form { formats: [PageFormat::F32, PageFormat::Q8], ..form.clone() }),
        ("groups[0].layers", Form { layers: vec![full(); 3], ..form.clone() }),
        ("groups[0].headDim", Form { layers: vec![LayerDescription::full(2, 16); 2], ..form.clone() }),
        ("groups[0].numKvHeads", Form { layers: vec![LayerDescription::full(4, 8); 2], ..form.clone() }),
        ("groups[0].window", Form { layers: vec![sliding; 2], ..form.clone() }),
        ("groups.length", Form { layers: vec![full(), sliding], ..form.clone() }),
    ];
    for (name, other) in others {
        let mut other = other.cache();
        let options = PromptOptions::default();
        let refusal = load_sequence(&mut other, Source::bytes(bytes.clone()), options, &Watch::default()).unwrap_err();
        assert_eq!(field(&refusal), name);
        let refusal = CacheFile::open(Source::bytes(whole.clone())).unwrap().begin(&mut other).unwrap_err();
        assert_eq!(field(&refusal), name);
        assert_eq!((other.sequence_ids().len(), other.free_count()), (0, other.total_count()));
    }
    let options = PromptOptions { salt: b"another tenant", ..PromptOptions::default() };
    let refusal = load_sequence(&mut cache, Source::bytes(bytes.clone()), options, &Watch::default()).unwrap_err();
    assert_eq!(field(&refusal), "salt");
    let mut keyed = Form { prefix_key: Some([1; 32]), ..form }.cache();
    let refusal = CacheFile::open(Source::bytes(whole.clone())).unwrap().begin(&mut keyed).unwrap_err();
    assert_eq!(field(&refusal), "prefixKey");
    // A file of one kind is not accepted as the other kind.
    assert_eq!(field(&CacheFile::open(Source::bytes(bytes.clone())).unwrap_err()), "kind");
    let options = PromptOptions::default();
    assert_eq!(
        field(&load_sequence(&mut keyed, Source::bytes(whole), options, &Watch::default()).unwrap_err()),
        "kind"
    );
    // Under another key than the chosen one, the owner cannot be verified.
    let refusal = load_sequence(&mut keyed, Source::bytes(bytes), options, &Watch::default()).unwrap_err();
    assert_eq!(field(&refusal), "prefixKey");
    // A key that was made at random is saved with the sequence: a cache with another key can load it, and prompts find
    // it.
    let mut cache = Form { prefix_key: None, ..forms().swap_remove(0).1 }.cache();
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &[1, 2, 3, 4, 5], true).unwrap();
    let bytes = save_sequence_bytes(&mut cache, sequence, &Watch::default()).unwrap();
    let salted = PromptOptions { salt: b"another tenant", ..PromptOptions::default() };
    let refusal = load_sequence(&mut keyed, Source::bytes(bytes.clone()), salted, &Watch::default()).unwrap_err();
    assert_eq!(field(&refusal), "salt");
    let loaded = load_sequence(&mut keyed, Source::bytes(bytes), options, &Watch::default()).unwrap();
    assert_eq!(keyed.sequence_length(loaded), 5);
    assert_eq!(keyed.find_prefix(&[1, 2, 3, 4, 5, 6], options, false).unwrap().length(), 4);
}

#[test]
fn rotated_rows_are_other_rows() {
    let form = Form { formats: [PageFormat::Q8; 2], ..forms().swap_remove(0).1 };
    let plain = save_cache_bytes(&mut form.cache(), &Watch::default()).unwrap();
    for (rotated, name) in [([true, false], "hadamard"), ([false, true], "valueHadamard")] {
        let mut rotated = Form { rotated, ..form.clone() }.cache();
        let refusal = CacheFile::open(Source::bytes(plain.clone())).unwrap().begin(&mut rotated).unwrap_err();
        assert_eq!(field(&refusal), name);
    }
}

#[test]
fn each_field_that_a_form_has_not_is_named() {
    let sliding = |sinks| full().with_kind(LayerKind::Sliding { window: 6, sinks });
    let form = Form { layers: vec![sliding(2); 2], ..forms().swap_remove(0).1 };
    let whole = save_cache_bytes(&mut form.cache(), &Watch::default()).unwrap();
    let refused = |bytes: &[u8], form: &Form| {
        let file = CacheFile::open(Source::bytes(bytes.to_vec())).unwrap();
        field(&file.begin(&mut form.cache()).unwrap_err())
    };
    let narrow = LayerDescription { value_head_dim: 4, ..sliding(2) };
    assert_eq!(refused(&whole, &Form { layers: vec![narrow; 2], ..form.clone() }), "groups[0].valueHeadDim");
    assert_eq!(refused(&whole, &Form { layers: vec![sliding(3); 2], ..form.clone() }), "groups[0].sinks");
    // Fields that this version or this machine writes in one way alone.
    let order = if cfg!(target_endian = "little") { ["little", "big"] } else { ["big", "little"] };
    for (name, [before, after]) in [
        ("byteOrder", order.map(|order| format!(r#"\"byteOrder\":\"{order}\""#))),
        ("layout", [1, 2].map(|layout| format!(r#"\"layout\":{layout}"#))),
        ("namespace", ["a model", "amodel "].map(|text| format!(r#"\"namespace\":\"{text}\""#))),
    ] {
        let mut parts = Parts::new(&whole);
        assert!(parts.header.contains(&before), "{name}");
        parts.header = parts.header.replace(&before, &after);
        assert_eq!(refused(&parts.bytes(), &form), name);
    }
}

#[test]
fn other_states_are_named() {
    let cache = |shape: u32| {
        let tensor = StateTensor { layer: 1, name: "ssm".to_owned(), shape: vec![shape], dtype: StateDType::F32 };
        let layers = vec![full(), LayerDescription::state()];
        let model = ModelDescription::new(layers).unwrap().with_states(vec![tensor]).unwrap();
        let room = PoolRoom::Blocks(vec![3; model.groups().len()]);
        PagedKvCache::of_model(PagedModelOptions { prefix_key: Some(KEY), ..PagedModelOptions::new(model, room) })
            .unwrap()
    };
    let bytes = save_cache_bytes(&mut cache(3), &Watch::default()).unwrap();
    let file = CacheFile::open(Source::bytes(bytes)).unwrap();
    assert_eq!(field(&file.begin(&mut cache(4)).unwrap_err()), "states");
    file.begin(&mut cache(3)).unwrap();
}

#[test]
fn a_key_that_is_not_that_of_its_check_is_refused_and_not_taken_over() {
    let form = Form { prefix_key: None, ..forms().swap_remove(0).1 };
    let bytes = save_cache_bytes(&mut form.cache(), &Watch::default()).unwrap();
    let mut cache = form.cache();
    let before = cache.keys(&[1, 2, 3, 4], PromptOptions::default()).unwrap();
    let own = hex(&cache.namer().own_key().unwrap());
    let mut parts = Parts::new(&bytes);
    assert!(parts.header.contains(&own));
    parts.header = parts.header.replace(&own, &hex(&KEY));
    let refusal = CacheFile::open(Source::bytes(parts.bytes())).unwrap().begin(&mut cache).unwrap_err();
    assert_eq!(field(&refusal), "prefixKey");
    assert_eq!(cache.keys(&[1, 2, 3, 4], PromptOptions::default()).unwrap(), before);
    // With its check, the key is that of another process: a cache without content takes it over.
    let check = hex(&cache.namer().key_check().0);
    assert!(parts.header.contains(&check));
    parts.header = parts.header.replace(&check, &hex(&cache.namer().under(KEY).key_check().0));
    CacheFile::open(Source::bytes(parts.bytes())).unwrap().begin(&mut cache).unwrap();
    assert_eq!(cache.namer().own_key(), Some(KEY));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
