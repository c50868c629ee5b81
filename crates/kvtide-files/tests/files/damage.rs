//! A file that was cut, changed or forged is refused with a code, and takes no more memory than its content.

use kvtide_core::Code;
use kvtide_files::{
    CacheFile, LoadOptions, Save, SequenceFile, Sink, Source, Watch, load_sequence, save_cache_bytes,
    save_sequence_bytes,
};
use kvtide_tensor::PromptOptions;

use crate::counted::counted;
use crate::forged::Parts;
use crate::world::{Form, append, forms, found};

fn saved() -> [(&'static str, Vec<u8>); 2] {
    let mut cache = forms().swap_remove(4).1.cache();
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &[1, 2, 3, 4, 5, 6], true).unwrap();
    let watch = Watch::default();
    [
        ("sequence", save_sequence_bytes(&mut cache, sequence, &watch).unwrap()),
        ("cache", save_cache_bytes(&mut cache, &watch).unwrap()),
    ]
}

/// Loads a file into a cache that has content, checks that the cache is unchanged, and returns the code of the error.
fn refused(kind: &str, bytes: Vec<u8>) -> Option<Code> {
    let form = forms().swap_remove(4).1;
    let mut cache = form.cache();
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &[1, 2, 3, 4, 5], true).unwrap();
    let free = cache.free_count();
    let source = Source::bytes(bytes);
    let done = match kind {
        "sequence" => load_sequence(&mut cache, source, PromptOptions::default(), &Watch::default()).map(drop),
        _ => CacheFile::open(source).and_then(|file| {
            file.load(LoadOptions { prefix_key: form.prefix_key, ..LoadOptions::default() }, &Watch::default())?;
            let load = file.begin(&mut cache)?;
            file.read(&load, &Watch::default())?;
            file.end(&mut cache, &load).map(drop)
        }),
    };
    let code = done.err().map(|error| error.code());
    if code.is_some() {
        cache.check_invariants().unwrap();
        assert_eq!((cache.free_count(), cache.sequence_ids()), (free, vec![sequence]));
    }
    code
}

#[test]
fn a_file_that_is_cut_at_any_byte() {
    for (kind, bytes) in saved() {
        assert_eq!(refused(kind, bytes.clone()), None);
        for len in 0..bytes.len() {
            assert_eq!(refused(kind, bytes[..len].to_vec()), Some(Code::Corrupt), "{kind}, {len} of {}", bytes.len());
        }
        assert_eq!(refused(kind, [&bytes[..], &[0]].concat()), Some(Code::Corrupt), "{kind}, a byte more");
    }
}

#[test]
fn a_file_with_any_bit_turned() {
    for (kind, bytes) in saved() {
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let code = refused(kind, changed);
            // A changed text of the identity or the version may name another valid one.
            assert!(matches!(code, Some(Code::Corrupt | Code::Incompatible)), "{kind}, bit {bit}: {code:?}");
        }
    }
}

#[test]
fn a_file_of_another_version_with_right_checksums() {
    for (kind, bytes) in saved() {
        let mut parts = Parts::new(&bytes);
        assert_eq!(refused(kind, parts.bytes()), None, "{kind}");
        let newer = parts.header.replacen(r#""version":"1""#, r#""version":"2""#, 1);
        assert_ne!(newer, parts.header);
        parts.header = newer;
        assert_eq!(refused(kind, parts.bytes()), Some(Code::Incompatible), "{kind}");
    }
}

#[test]
fn tensors_that_overlap_leave_a_hole_or_claim_more() {
    let tensor = |dtype: &str, shape: &str, offsets: [usize; 2]| {
        format!(r#"{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{},{}]}}"#, offsets[0], offsets[1])
    };
    for (kind, bytes) in saved() {
        let parts = Parts::new(&bytes);
        let end = parts.body.len();
        let seal = |at: usize| format!(r#""seal":{}"#, tensor("U64", "1", [at, at + 8]));
        let forged = |tensors: String, added: usize| {
            assert!(parts.header.contains(&seal(end)));
            let header = parts.header.replacen(&seal(end), &tensors, 1);
            let body = [&parts.body[..], &vec![0; added]].concat();
            refused(kind, Parts { header, body, ..parts.clone() }.bytes())
        };
        let with = |tensor: String| forged(format!(r#""more":{tensor},{}"#, seal(end)), 0);
        assert_eq!(with(tensor("U8", "0", [end, end])), None, "{kind}");
        assert_eq!(with(tensor("U8", "4", [end - 4, end])), Some(Code::Corrupt), "{kind}, a tensor over another one");
        assert_eq!(forged(seal(end + 8), 8), Some(Code::Corrupt), "{kind}, a hole");
        for shape in ["1", "1099511627776", "9223372036854775808,2"] {
            assert_eq!(with(tensor("U8", shape, [end, end])), Some(Code::Corrupt), "{kind}, {shape} without bytes");
        }
    }
}

#[test]
fn fewer_ids_than_tokens() {
    let mut cache = forms().swap_remove(0).1.cache();
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &[1, 2, 3, 4, 5, 6], true).unwrap();
    for (count, code) in [(5, Some(Code::Corrupt)), (6, None), (7, None)] {
        let save = Save::sequence(&mut cache, sequence, Some(&[1, 2, 3, 4, 5, 6, 7][..count])).unwrap();
        let bytes = save.to_sink(Sink::memory(), &Watch::default()).unwrap().1;
        let opened = SequenceFile::open(Source::bytes(bytes)).map(drop);
        assert_eq!(opened.err().map(|error| error.code()), code, "{count} ids");
    }
}

#[test]
fn a_damaged_page_evicts_nothing() {
    let form = Form { blocks: 4, ..forms().swap_remove(0).1 };
    let mut cache = form.cache();
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &[1, 2, 3, 4, 5, 6], true).unwrap();
    let mut bytes = save_sequence_bytes(&mut cache, sequence, &Watch::default()).unwrap();
    let page = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[page] ^= 1;
    let (mut cache, prompt) = (form.cache(), (10..27).collect::<Vec<_>>());
    let other = cache.create_sequence().unwrap();
    append(&mut cache, other, &prompt[..16], true).unwrap();
    cache.drop_sequence(other).unwrap();
    let load = load_sequence(&mut cache, Source::bytes(bytes), PromptOptions::default(), &Watch::default());
    assert_eq!(load.unwrap_err().code(), Code::Corrupt);
    assert_eq!(found(&mut cache, &prompt, b""), 16);
}

#[test]
fn a_header_that_lies_about_sizes() {
    let headers = [
        format!(r#"{{"pages.0":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#, u64::MAX),
        format!(r#"{{"pages.0":{{"dtype":"F32","shape":[{},4],"data_offsets":[0,16]}}}}"#, u64::MAX / 2),
        r#"{"pages.0":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}}"#.to_owned(),
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#
            .to_owned(),
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}}"#
            .to_owned(),
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#
            .to_owned(),
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#.to_owned(),
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"more":1}}"#.to_owned(),
        r#"{"a":{"dtype":"I128","shape":[4],"data_offsets":[0,4]}}"#.to_owned(),
        r#"{"__metadata__":{"format":"kvtide","format":"kvtide"}}"#.to_owned(),
        r#"{"__metadata__":{"format":1}}"#.to_owned(),
        "[".repeat(100_000),
        "{".to_owned() + &"\"a\":{".repeat(10_000),
        "null".to_owned(),
        String::new(),
    ];
    for header in headers {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 64]].concat();
        let (opened, most) = counted(|| CacheFile::open(Source::bytes(bytes)));
        assert_eq!(opened.unwrap_err().code(), Code::Corrupt, "{header:.80}");
        assert!(most < 4 << 20, "{header:.80}");
    }
    for len in [1 << 20 | 1, u64::MAX, u64::MAX / 2] {
        let bytes = [&len.to_le_bytes()[..], &[b' '; 4096]].concat();
        assert_eq!(CacheFile::open(Source::bytes(bytes)).unwrap_err().code(), Code::Corrupt);
    }
}

#[test]
fn lists_that_lie_about_the_sequence() {
    // A file with right checksums and wrong content, made by a program that knows the format.
    let (_, bytes) = saved().into_iter().next().unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(bytes[8..header].to_vec()).unwrap();
    let lies = [
        (r#"\"length\":6"#, r#"\"length\":9"#),
        (r#"\"length\":6"#, r#"\"length\":0"#),
        (r#"\"cleared\":0"#, r#"\"cleared\":1"#),
        (r#"\"known\":6"#, r#"\"known\":7"#),
        (r#"\"keyed\":1"#, r#"\"keyed\":2"#),
        (r#"\"nameless\":0"#, r#"\"nameless\":9"#),
        (r#"\"blockSize\":4"#, r#"\"blockSize\":0"#),
        (r#"\"groups\":[{\"layers\":[0,1]"#, r#"\"groups\":[{\"layers\":[   ]"#),
    ];
    for (truth, lie) in lies {
        assert!(text.contains(truth), "{truth}: {text}");
        let changed = text.replacen(truth, lie, 1);
        let mut forged = [&bytes[..8], changed.as_bytes(), &bytes[header..]].concat();
        let end = forged.len() - 8;
        let pages = pages_end(&changed);
        let sealed = [&forged[..header], &forged[header + pages..end]].concat();
        let seal = twox_hash::XxHash3_64::oneshot(&sealed).to_le_bytes();
        forged[end..].copy_from_slice(&seal);
        let code = refused("sequence", forged);
        assert_eq!(code, Some(Code::Corrupt), "{lie}");
    }
}

/// Returns the offset at which the pages end, after the header.
fn pages_end(header: &str) -> usize {
    let pages = &header[header.find("\"pages.0\"").unwrap()..];
    let offsets = &pages[pages.find("\"data_offsets\":[0,").unwrap() + 18..];
    offsets[..offsets.find(']').unwrap()].parse().unwrap()
}
