//! Files with right checksums and wrong numbers, made by a writer that knows the format.
//!
//! Each number of the header and of the lists is replaced by each number that could break a reader. A load is refused
//! with a code and changes nothing; or it succeeds, and every later call succeeds or is refused. Memory is bounded by
//! the content of the file and by the cache's memory limit.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvtide_core::Code;
use kvtide_core::model::LayerKind;
use kvtide_files::{
    CacheFile, LoadOptions, Place, Save, SequenceFile, Sink, Source, TensorFile, Watch, load_sequence,
    save_cache_bytes, save_sequence_bytes,
};
use kvtide_tensor::{
    DType, HostTensor, KvCache, KvCacheOptions, PagedKvCache, PromptOptions, RollbackCache, Rotating,
    RotatingCacheOptions,
};
use twox_hash::XxHash3_64;

use crate::counted::counted;
use crate::world::{Form, append, forms, full, shown};

/// The memory limit of a cache, in bytes.
const LIMIT: u64 = 4 << 20;

/// The memory allowed besides that, in bytes.
const BESIDE: usize = 2 << 20;

const NUMBERS: [&str; 20] = [
    "0",
    "1",
    "2",
    "3",
    "255",
    "65536",
    "536870912",
    "2147483646",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740991",
    "9007199254740992",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "0.5",
];

/// The parts of a file.
#[derive(Clone)]
pub struct Parts {
    pub header: String,
    /// The bytes after the header, without the seal.
    pub body: Vec<u8>,
    /// The offset of the lists in it.
    pub lists: usize,
}

impl Parts {
    pub fn new(bytes: &[u8]) -> Self {
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..end].to_vec()).unwrap();
        let body = bytes[end..bytes.len() - 8].to_vec();
        let json: serde_json::Value = serde_json::from_str(&header).unwrap();
        let tensors = json.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
        let is_list = |name: &str| !name.starts_with("pages.") && !["k", "v", "data"].contains(&name);
        let starts = tensors.filter(|(name, _)| is_list(name)).map(|(_, of)| of["data_offsets"][0].as_u64().unwrap());
        let lists = starts.min().unwrap() as usize;
        Parts { header, body, lists }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut header = self.header.clone().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let header = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
        let seal = XxHash3_64::oneshot(&[&header, &self.body[self.lists..]].concat());
        [&header, &self.body[..], &seal.to_le_bytes()].concat()
    }

    /// Returns each file with one number changed, and a description of the change.
    fn forged(&self) -> Vec<(String, Vec<u8>)> {
        let mut forged = Vec::new();
        for (start, end) in numbers(&self.header) {
            for number in NUMBERS {
                let header = [&self.header[..start], number, &self.header[end..]].concat();
                let what =
                    format!("{}[{}] {number}", &self.header[start.saturating_sub(40)..start], &self.header[start..end]);
                forged.push((what, Parts { header, ..self.clone() }.bytes()));
            }
        }
        for at in (self.lists..self.body.len().saturating_sub(3)).step_by(4) {
            for number in [0u32, 1, 2, 255, 1 << 16, 1 << 29, i32::MAX as u32, 1 << 31, u32::MAX] {
                let mut body = self.body.clone();
                body[at..at + 4].copy_from_slice(&number.to_le_bytes());
                forged.push((
                    format!("byte {} of the lists: {number}", at - self.lists),
                    Parts { body, ..self.clone() }.bytes(),
                ));
            }
        }
        forged
    }
}

/// Returns the ranges of numbers in a header, including those in the JSON texts of its metadata. Numbers in names and
/// keys are left out.
fn numbers(header: &str) -> Vec<(usize, usize)> {
    let (bytes, mut found, mut at) = (header.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let start = at;
        while at < bytes.len() && matches!(bytes[at], b'0'..=b'9' | b'-' | b'.') {
            at += 1;
        }
        let is_number = at > start && start > 0 && matches!(bytes[start - 1], b':' | b',' | b'[') && bytes[at] != b'"';
        if is_number && bytes[start..at].iter().any(u8::is_ascii_digit) {
            found.push((start, at));
        }
        at = at.max(start + 1);
    }
    found
}

/// True for an error that a file may cause.
fn is_coded(code: Code) -> bool {
    matches!(code, Code::Corrupt | Code::Incompatible | Code::OutOfMemory | Code::OutOfBlocks)
}

/// Checks that a call on a loaded cache broke nothing, whatever its result.
fn is_sound<T: Debug>(done: kvtide_tensor::Result<T>) {
    if let Err(error) = done {
        assert!(!matches!(error.code(), Code::Internal | Code::Poisoned), "{error}");
    }
}

fn each(name: &str, file: &[u8], mut load: impl FnMut(Vec<u8>) -> kvtide_files::Result<()>) {
    let parts = Parts::new(file);
    assert_eq!(load(parts.bytes()).map_err(|error| error.to_string()), Ok(()), "{name}, as it was");
    let (mut refused, mut loaded) = (0, 0);
    for (what, bytes) in parts.forged() {
        let (done, most) = counted(|| catch_unwind(AssertUnwindSafe(|| load(bytes))));
        match done.unwrap_or_else(|_| panic!("{name}: {what}")) {
            Ok(()) => loaded += 1,
            Err(error) if is_coded(error.code()) => refused += 1,
            Err(error) => panic!("{name}: {what}: {error}"),
        }
        assert!(most < LIMIT as usize + BESIDE, "{name}: {what}: {most} bytes");
    }
    assert!(refused > 100 && loaded > 0, "{name}: {refused} refused, {loaded} loaded");
}

/// Returns a form with a window, and one with low-bit pages, which together use everything in the format.
fn kinds() -> Vec<(&'static str, Form)> {
    let named = |name: &'static str| (name, forms().into_iter().find(|(own, _)| *own == name).unwrap().1);
    let window = vec![full().with_kind(LayerKind::Sliding { window: 5, sinks: 2 })];
    let (_, sliding) = named("sliding");
    let small = Form { layers: window, block_size: 2, ..sliding };
    vec![named("f32"), named("hybrid, q8"), ("window", small)]
}

fn prefilled(form: &Form) -> (PagedKvCache, u64) {
    let mut cache = form.cache();
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &(0..21).collect::<Vec<_>>(), true).unwrap();
    (cache, sequence)
}

#[test]
fn sequences() {
    for (name, form) in kinds() {
        let (mut cache, sequence) = prefilled(&form);
        let ids: Vec<u32> = (0..23).collect();
        let save = Save::sequence(&mut cache, sequence, Some(&ids)).unwrap();
        let file = save.to_sink(Sink::memory(), &Watch::default()).unwrap().1;
        let mut into = form.cache();
        let other = into.create_sequence().unwrap();
        append(&mut into, other, &[1, 2, 3, 4, 5], true).unwrap();
        let before = shown(&mut into, other);
        let free = into.free_count();
        each(name, &file, |bytes| {
            let loaded = load_sequence(&mut into, Source::bytes(bytes), PromptOptions::default(), &Watch::default());
            if let Ok(id) = loaded {
                use_sequence(&mut into, id);
            }
            into.check_invariants().unwrap();
            assert_eq!((into.free_count(), into.sequence_ids()), (free, vec![other]));
            into.forget_prefixes().unwrap();
            assert_eq!(shown(&mut into, other), before);
            loaded.map(drop)
        });
    }
}

fn use_sequence(cache: &mut PagedKvCache, id: u64) {
    let length = cache.sequence_length(id);
    for layer in 0..cache.model().layers().len() as u32 {
        is_sound(cache.gather(id, layer));
        is_sound(cache.read_kv(id, layer, length.saturating_sub(1)));
    }
    is_sound(append(cache, id, &[7, 8, 9, 10, 11], true));
    let fork = cache.fork(id).unwrap();
    is_sound(cache.truncate(fork, length.saturating_sub(3)));
    is_sound(append(cache, fork, &[1], true));
    let saved = save_sequence_bytes(cache, fork, &Watch::default());
    saved.unwrap();
    is_sound(cache.resume(id, &(0..22).collect::<Vec<_>>()));
    is_sound(cache.gather(id, 0));
    is_sound(cache.truncate(id, 0));
    is_sound(append(cache, id, &[7, 8, 9], true));
    cache.check_invariants().unwrap();
    [id, fork].iter().for_each(|&id| cache.drop_sequence(id).unwrap());
}

/// Returns the file of a sequence whose window has passed this many more blocks than it had; all numbers agree.
fn with_past(file: &[u8], size: u32, blocks: u32) -> Vec<u8> {
    let mut parts = Parts::new(file);
    let json: serde_json::Value = serde_json::from_str(&parts.header).unwrap();
    let content: serde_json::Value = serde_json::from_str(json["__metadata__"]["content"].as_str().unwrap()).unwrap();
    let [length, cleared] =
        [&content["length"], &content["groups"][0]["cleared"]].map(|of| of.as_u64().unwrap() as u32);
    for (name, before, after) in [("length", length, length + blocks * size), ("cleared", cleared, cleared + blocks)] {
        let [before, after] = [before, after].map(|number| format!("\\\"{name}\\\":{number}"));
        assert!(parts.header.contains(&before));
        parts.header = parts.header.replace(&before, &after);
    }
    let [start, end] = [0, 1].map(|at| json["places.0"]["data_offsets"][at].as_u64().unwrap() as usize);
    for place in parts.body[start..end].chunks_exact_mut(4) {
        let there = u32::from_le_bytes(place.try_into().unwrap());
        let moved = if there < cleared { there } else { there + blocks };
        place.copy_from_slice(&moved.to_le_bytes());
    }
    parts.bytes()
}

#[test]
fn a_window_with_a_past_that_no_file_has() {
    let (_, form) = kinds().pop().unwrap();
    let (mut cache, sequence) = prefilled(&form);
    let file = save_sequence_bytes(&mut cache, sequence, &Watch::default()).unwrap();
    let before = shown(&mut cache, sequence);
    for blocks in [0, 1, 63, 64, 65, 4095, 4096, 1 << 18, 1 << 20, 1 << 28, (1 << 30) - 11, (1 << 30) - 1] {
        let bytes = with_past(&file, form.block_size, blocks);
        let mut into = form.cache();
        let load = || load_sequence(&mut into, Source::bytes(bytes), PromptOptions::default(), &Watch::default());
        let (loaded, most) = counted(load);
        assert!(most < BESIDE, "{blocks} blocks: {most} bytes");
        let length = 21 + u64::from(blocks) * u64::from(form.block_size);
        match loaded {
            Ok(id) => {
                assert_eq!((u64::from(into.sequence_length(id)), shown(&mut into, id).2), (length, before.2.clone()));
                let ((), most) = counted(|| use_sequence(&mut into, id));
                assert!(most < BESIDE, "{blocks} blocks: {most} bytes");
            }
            Err(refusal) => assert!(refusal.code() == Code::Corrupt && length > i32::MAX as u64, "{blocks}: {refusal}"),
        }
        into.check_invariants().unwrap();
        assert_eq!(into.free_count(), into.total_count());
    }
}

#[test]
fn caches() {
    for (name, form) in kinds() {
        let (mut cache, _) = prefilled(&form);
        let file = save_cache_bytes(&mut cache, &Watch::default()).unwrap();
        let mut into = form.cache();
        each(name, &file, |bytes| {
            let file = CacheFile::open(Source::bytes(bytes))?;
            let memory_limit_bytes = Some(LIMIT);
            let options = LoadOptions { prefix_key: form.prefix_key, memory_limit_bytes, ..LoadOptions::default() };
            let mut cache = file.load(options, &Watch::default())?;
            let tokens: Vec<u32> = (0..21).collect();
            let found = cache.find_prefix(&tokens, PromptOptions::default(), true).unwrap();
            let id = cache.create_sequence_from(found).unwrap();
            use_sequence(&mut cache, id);
            cache.check_invariants().unwrap();
            // And into a cache that is in use.
            let load = file.begin(&mut into)?;
            file.read(&load, &Watch::default())?;
            file.end(&mut into, &load)?;
            drop(load);
            into.check_invariants().unwrap();
            into.forget_prefixes().unwrap();
            Ok(())
        });
        assert_eq!(into.free_count(), into.total_count());
    }
}

/// Returns this many tokens, `[1, 2, rows, 3]`.
fn tensor(rows: usize) -> HostTensor<'static> {
    static BYTES: [u8; 9 * 24] = [0x3f; 9 * 24];
    HostTensor::new("k", &BYTES[..rows * 24], DType::F32, &[1, 2, rows, 3]).unwrap()
}

fn place() -> Place {
    Place { memory_limit_bytes: Some(LIMIT), ..Place::default() }
}

fn saved(save: Save) -> Vec<u8> {
    save.to_sink(Sink::memory(), &Watch::default()).unwrap().1
}

#[test]
fn growing_caches() {
    let options = KvCacheOptions { num_kv_heads: 2, head_dim: 3, max_seq_len: 64, ..KvCacheOptions::default() };
    let mut cache = KvCache::new(KvCacheOptions { initial_capacity: 4, ..options }).unwrap();
    for name in ["empty", "with tokens"] {
        each(name, &saved(Save::kv_cache(&cache).unwrap()), |bytes| {
            let mut cache = TensorFile::kv_cache(Source::bytes(bytes), &Watch::default())?.to_kv_cache(place())?;
            is_sound(cache.update(tensor(2), tensor(2)));
            is_sound(cache.get_kv());
            let len = cache.seq_len().into();
            is_sound(cache.truncate(u64::min(len, 1)));
            is_sound(cache.update(tensor(2), tensor(2)));
            cache.check_invariants().unwrap();
            Ok(())
        });
        cache.update(tensor(4), tensor(4)).unwrap();
    }
}

#[test]
fn sizes_that_nothing_can_have_are_corrupt() {
    let (_, form) = kinds().swap_remove(0);
    let (mut cache, sequence) = prefilled(&form);
    let files = [
        ("cache", save_cache_bytes(&mut cache, &Watch::default()).unwrap()),
        ("sequence", save_sequence_bytes(&mut cache, sequence, &Watch::default()).unwrap()),
    ];
    for (field, before) in [("headDim", 8), ("numKvHeads", 2), ("blockSize", 4)] {
        for (kind, file) in &files {
            let mut parts = Parts::new(file);
            let [before, after] = [before, i32::MAX].map(|size| format!("\\\"{field}\\\":{size}"));
            assert!(parts.header.contains(&before));
            parts.header = parts.header.replace(&before, &after);
            let source = || Source::bytes(parts.bytes());
            let opened = match *kind {
                "cache" => CacheFile::open(source()).map(drop),
                _ => SequenceFile::open(source()).map(drop),
            };
            assert_eq!(opened.unwrap_err().code(), Code::Corrupt, "{field}");
        }
    }
    let mut cache = KvCache::new(KvCacheOptions { num_kv_heads: 2, head_dim: 3, ..KvCacheOptions::default() }).unwrap();
    cache.update(tensor(4), tensor(4)).unwrap();
    let mut parts = Parts::new(&saved(Save::kv_cache(&cache).unwrap()));
    parts.header = parts.header.replace("\\\"headDim\\\":3", "\\\"headDim\\\":2147483647");
    let file = TensorFile::kv_cache(Source::bytes(parts.bytes()), &Watch::default()).unwrap();
    assert_eq!(file.to_kv_cache(place()).unwrap_err().code(), Code::Corrupt);
}

#[test]
fn rotating_caches() {
    let options = RotatingCacheOptions { max_seq_len: 4, sinks: 1, ..RotatingCacheOptions::default() };
    let mut cache = Rotating::<2>::new(options).unwrap();
    for name in ["empty", "past its window"] {
        each(name, &saved(Save::rotating(&cache).unwrap()), |bytes| {
            let mut cache =
                TensorFile::rotating(Source::bytes(bytes), 2, &Watch::default())?.to_rotating::<2>(place())?;
            for tokens in [1, 1, 9, 1] {
                is_sound(cache.append(tensor(tokens), tensor(tokens)));
                is_sound(cache.retained());
            }
            let len = cache.current_seq_len();
            is_sound(cache.snapshot().and_then(|snapshot| cache.restore(&snapshot)));
            is_sound(cache.set_len(len.saturating_sub(1)));
            is_sound(cache.append(tensor(1), tensor(1)));
            cache.check_invariants().unwrap();
            Ok(())
        });
        cache.append(tensor(9), tensor(9)).unwrap();
    }
}

#[test]
fn tentative_tokens() {
    let mut cache = RollbackCache::new(Default::default()).unwrap();
    cache.append(tensor(4), tensor(4), None).unwrap();
    cache.commit(3).unwrap();
    cache.append(tensor(3), tensor(3), Some(&[0, 0, 2])).unwrap();
    cache.commit(5).unwrap();
    each("a tree", &saved(Save::rollback_cache(&cache).unwrap()), |bytes| {
        let file = TensorFile::rollback_cache(Source::bytes(bytes), &Watch::default())?;
        let mut cache = file.to_rollback_cache(place())?;
        let mark = cache.snapshot();
        is_sound(cache.append(tensor(3), tensor(3), Some(&[-1, 0, 0])));
        is_sound(cache.accept_path(&[0]));
        is_sound(cache.commit(cache.total_len().into()));
        is_sound(cache.current());
        is_sound(cache.rollback(&mark));
        is_sound(cache.append(tensor(3), tensor(3), None));
        cache.check_invariants().unwrap();
        Ok(())
    });
}
