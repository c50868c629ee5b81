//! Caches that are saved once, and what is done with a file: it is loaded beside other content, and used.

use kvtide_core::Code;
use kvtide_core::model::LayerKind;
use kvtide_files::{
    CacheFile, Error, Identity, LoadOptions, Place, Result, Save, SequenceFile, Sink, Source, TensorFile, Watch,
    load_sequence, save_cache_bytes, save_sequence_bytes,
};
use kvtide_tensor::{
    DType, HostTensor, KvCache, KvCacheOptions, PagedKvCache, PromptOptions, RollbackCache, RollbackCacheOptions,
    Rotating, RotatingCacheOptions,
};

use crate::parts::Parts;
use crate::world::{Form, KEY, append, forms, full, shown};

/// The memory limit of a cache, in bytes.
const LIMIT: u64 = 4 << 20;

/// A cache that was saved.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Cache,
    Sequence,
    Growing,
    Rotating,
    Tentative,
}

/// A saved file, and the form of its cache.
pub struct Saved {
    pub kind: Kind,
    pub parts: Parts,
    form: Form,
}

/// Returns all files; they are made the same way each time.
pub fn saved() -> Vec<Saved> {
    let mut all = Vec::new();
    for form in few_forms() {
        let (mut cache, sequence) = prefilled(&form);
        let cached = save_cache_bytes(&mut cache, &Watch::default()).expect("a file");
        let ids: Vec<u32> = (0..23).collect();
        let save = Save::sequence(&mut cache, sequence, Some(&ids)).expect("a sequence");
        let one = save.to_sink(Sink::memory(), &Watch::default()).expect("a file").1;
        for (kind, bytes) in [(Kind::Cache, cached), (Kind::Sequence, one)] {
            let mut parts = Parts::read(&bytes);
            if let Some(own) = cache.namer().own_key() {
                // As if another process had made it.
                let namer = cache.namer().under(KEY);
                parts.replace(&hex(&own), &hex(&KEY));
                parts.replace(&hex(&cache.namer().key_check().0), &hex(&namer.key_check().0));
                let owners =
                    [cache.namer(), &namer].map(|namer| namer.owner(PromptOptions::default()).expect("a salt"));
                parts.replace(&hex(&owners[0].0), &hex(&owners[1].0));
            }
            all.push(Saved { kind, parts, form: form.clone() });
        }
    }
    let form = all[0].form.clone();
    let of = |kind, save: Save| {
        let bytes = save.to_sink(Sink::memory(), &Watch::default()).expect("a file").1;
        Saved { kind, parts: Parts::read(&bytes), form: form.clone() }
    };
    let options = KvCacheOptions { num_kv_heads: 2, head_dim: 3, max_seq_len: 64, ..KvCacheOptions::default() };
    let mut growing = KvCache::new(KvCacheOptions { initial_capacity: 4, ..options }).expect("a cache");
    growing.update(tensor(4), tensor(4)).expect("room");
    let options = RotatingCacheOptions { max_seq_len: 4, sinks: 1, ..RotatingCacheOptions::default() };
    let mut rotating = Rotating::<2>::new(options).expect("a cache");
    rotating.append(tensor(9), tensor(9)).expect("room");
    let mut tentative = RollbackCache::new(RollbackCacheOptions::default()).expect("a cache");
    tentative.append(tensor(4), tensor(4), None).expect("room");
    tentative.commit(3).expect("four tokens");
    tentative.append(tensor(3), tensor(3), Some(&[0, 0, 2])).expect("room");
    all.push(of(Kind::Growing, Save::kv_cache(&growing).expect("a save")));
    all.push(of(Kind::Rotating, Save::rotating(&rotating).expect("a save")));
    all.push(of(Kind::Tentative, Save::rollback_cache(&tentative).expect("a save")));
    all
}

/// Forms that together use everything in the format; the last one has a key made at random.
fn few_forms() -> Vec<Form> {
    let named = |name: &str| forms().into_iter().find(|(own, _)| *own == name).expect("a form").1;
    let window = vec![full().with_kind(LayerKind::Sliding { window: 5, sinks: 2 })];
    let small = Form { layers: window, block_size: 2, ..named("sliding") };
    let mut few = vec![named("f32"), named("hybrid, q8"), named("q4 and floats"), small];
    few.push(Form { prefix_key: None, ..named("f16") });
    few.into_iter().map(|form| Form { blocks: 16, ..form }).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn prefilled(form: &Form) -> (PagedKvCache, u64) {
    let mut cache = form.cache();
    let sequence = cache.create_sequence().expect("a sequence");
    append(&mut cache, sequence, &(0..21).collect::<Vec<_>>(), true).expect("room");
    (cache, sequence)
}

fn tensor(rows: usize) -> HostTensor<'static> {
    static BYTES: [u8; 9 * 24] = [0x3f; 9 * 24];
    HostTensor::new("k", &BYTES[..rows * 24], DType::F32, &[1, 2, rows, 3]).expect("as many bytes")
}

/// Panics unless a refusal has a code that a file may cause.
fn check_code(error: &Error) {
    let is_coded = matches!(error.code(), Code::Corrupt | Code::Incompatible | Code::OutOfMemory | Code::OutOfBlocks);
    assert!(is_coded, "{error}");
}

/// Panics if a call on a loaded cache broke it. Calls may be refused.
fn is_sound<T>(done: kvtide_tensor::Result<T>) {
    if let Err(error) = done {
        assert!(!matches!(error.code(), Code::Internal | Code::Poisoned), "{error}");
    }
}

/// Loads a file as any kind, in all ways.
pub fn load_as(kind: Kind, of: &Saved, bytes: &[u8]) {
    let loaded = match kind {
        Kind::Cache => load_new(of, bytes).and_then(|()| load_beside(of, bytes, false)),
        Kind::Sequence => load_beside(of, bytes, true),
        Kind::Growing => load_growing(bytes),
        Kind::Rotating => load_rotating(bytes),
        Kind::Tentative => load_tentative(bytes),
    };
    if let Err(error) = loaded {
        check_code(&error);
    }
    if let Kind::Cache = kind
        && let Err(error) = load_unused(of, bytes)
    {
        check_code(&error);
    }
}

/// Loads a file of a cache into a new cache.
fn load_new(of: &Saved, bytes: &[u8]) -> Result<()> {
    let file = CacheFile::open(Source::bytes(bytes.to_vec()))?;
    let _ = (file.description(), file.blocks(), file.identity().digest());
    let options =
        LoadOptions { prefix_key: of.form.prefix_key, memory_limit_bytes: Some(LIMIT), ..LoadOptions::default() };
    let mut cache = file.load(options, &Watch::default())?;
    cache.check_invariants().expect("a sound cache");
    let tokens: Vec<u32> = (0..21).collect();
    let found = cache.find_prefix(&tokens, PromptOptions::default(), true);
    if let Ok(id) = found.and_then(|found| cache.create_sequence_from(found)) {
        use_sequence(&mut cache, id);
    }
    Ok(())
}

/// Loads a file into a cache that holds other content, which stays as it was.
fn load_beside(of: &Saved, bytes: &[u8], is_sequence: bool) -> Result<()> {
    let mut cache = of.form.cache();
    let other = cache.create_sequence().expect("a sequence");
    append(&mut cache, other, &[1, 2, 3, 4, 5], true).expect("room");
    let before = (cache.free_count(), shown(&mut cache, other), Identity::of(&cache));
    let source = || Source::bytes(bytes.to_vec());
    let loaded = match is_sequence {
        true => SequenceFile::open(source()).and_then(|file| {
            let _ = (file.length(), file.ids().map(<[u32]>::len));
            load_sequence(&mut cache, source(), PromptOptions::default(), &Watch::default()).map(Some)
        }),
        false => load_into(&mut cache, bytes).map(|()| None),
    };
    cache.check_invariants().expect("a sound cache");
    assert!(shown(&mut cache, other) == before.1, "another sequence has changed");
    if let Ok(Some(id)) = loaded {
        use_sequence(&mut cache, id);
        assert!(shown(&mut cache, other) == before.1, "another sequence has changed");
    }
    if loaded.is_err() {
        assert_eq!((cache.free_count(), cache.sequence_ids()), (before.0, vec![other]));
        assert_eq!(Identity::of(&cache), before.2, "a load that fails changes nothing");
    }
    loaded.map(drop)
}

/// Loads a file of a cache into one without content; if that fails, the cache stays the same. Once the load has begun,
/// it has the key of the file.
fn load_unused(of: &Saved, bytes: &[u8]) -> Result<()> {
    let mut cache = of.form.cache();
    let before = (cache.free_count(), Identity::of(&cache));
    let file = CacheFile::open(Source::bytes(bytes.to_vec()))?;
    if let Err(error) = file.begin(&mut cache) {
        assert_eq!((cache.free_count(), Identity::of(&cache)), before, "a load that fails changes nothing");
        return Err(error);
    }
    let loaded = load_into(&mut cache, bytes);
    cache.check_invariants().expect("a sound cache");
    if loaded.is_err() {
        assert_eq!(cache.free_count(), before.0, "a load that fails changes nothing");
    }
    loaded
}

fn load_into(cache: &mut PagedKvCache, bytes: &[u8]) -> Result<()> {
    let file = CacheFile::open(Source::bytes(bytes.to_vec()))?;
    let load = file.begin(cache)?;
    file.read(&load, &Watch::default())?;
    file.end(cache, &load).map(drop)
}

fn use_sequence(cache: &mut PagedKvCache, id: u64) {
    let length = cache.sequence_length(id);
    for layer in 0..cache.model().layers().len() as u32 {
        is_sound(cache.gather(id, layer));
        is_sound(cache.read_kv(id, layer, length.saturating_sub(1)));
    }
    is_sound(append(cache, id, &[7, 8, 9, 10, 11], true));
    if let Ok(fork) = cache.fork(id) {
        is_sound(cache.truncate(fork, length.saturating_sub(3)));
        is_sound(append(cache, fork, &[1], true));
        save_sequence_bytes(cache, fork, &Watch::default()).expect("a file of a loaded sequence");
        cache.drop_sequence(fork).expect("a sequence");
    }
    is_sound(cache.resume(id, &(0..22).collect::<Vec<_>>()));
    is_sound(cache.truncate(id, 0));
    is_sound(append(cache, id, &[7, 8, 9], true));
    cache.check_invariants().expect("a sound cache");
    cache.drop_sequence(id).expect("a sequence");
    cache.check_invariants().expect("a sound cache");
}

fn place() -> Place {
    Place { memory_limit_bytes: Some(LIMIT), ..Place::default() }
}

fn load_growing(bytes: &[u8]) -> Result<()> {
    let file = TensorFile::kv_cache(Source::bytes(bytes.to_vec()), &Watch::default())?;
    let mut cache = file.to_kv_cache(place())?;
    cache.check_invariants().expect("a sound cache");
    is_sound(cache.update(tensor(2), tensor(2)));
    is_sound(cache.get_kv());
    let length = u64::from(cache.seq_len());
    is_sound(cache.truncate(length.min(1)));
    is_sound(cache.update(tensor(2), tensor(2)));
    cache.check_invariants().expect("a sound cache");
    Ok(())
}

fn load_rotating(bytes: &[u8]) -> Result<()> {
    let file = TensorFile::rotating(Source::bytes(bytes.to_vec()), 2, &Watch::default())?;
    let mut cache = file.to_rotating::<2>(place())?;
    cache.check_invariants().expect("a sound cache");
    for tokens in [1, 9, 1] {
        is_sound(cache.append(tensor(tokens), tensor(tokens)));
        is_sound(cache.retained());
    }
    is_sound(cache.snapshot().and_then(|snapshot| cache.restore(&snapshot)));
    is_sound(cache.set_len(cache.current_seq_len().saturating_sub(1)));
    is_sound(cache.append(tensor(1), tensor(1)));
    cache.check_invariants().expect("a sound cache");
    Ok(())
}

fn load_tentative(bytes: &[u8]) -> Result<()> {
    let file = TensorFile::rollback_cache(Source::bytes(bytes.to_vec()), &Watch::default())?;
    let mut cache = file.to_rollback_cache(place())?;
    cache.check_invariants().expect("a sound cache");
    let mark = cache.snapshot();
    is_sound(cache.append(tensor(3), tensor(3), Some(&[-1, 0, 0])));
    is_sound(cache.accept_path(&[0]));
    is_sound(cache.commit(cache.total_len().into()));
    is_sound(cache.current());
    is_sound(cache.rollback(&mark));
    is_sound(cache.append(tensor(3), tensor(3), None));
    cache.check_invariants().expect("a sound cache");
    Ok(())
}
