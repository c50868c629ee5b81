//! Writes the first inputs of the targets whose formats a fuzzer would hardly find alone: `seeds <folder of the corpora>`.

use std::fs;
use std::path::Path;

use kvtide_files::{Save, Sink, Watch};
use kvtide_router::{Batch, BlockHash, Event, RemovedBlocks, StoredBlocks, encode};
use kvtide_tensor::{DType, HostTensor, KvCache, KvCacheOptions};
use kvtide_tiers::compress;

#[path = "../../crates/kvtide-onnx/tests/support/build.rs"]
#[allow(dead_code, reason = "the tests of graphs use the rest")]
mod build;

use build::{Attr, Decoder, HEADS};

fn main() {
    let root = std::env::args().nth(1).expect("a folder");
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = Path::new(&root).join(target);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(name), bytes).expect("a file");
    };
    for (name, bytes) in graphs() {
        write("onnx", name, &[&[1], &bytes[..]].concat());
    }
    write("events", "events", &encode(&batch()));
    for (at, (kind, text)) in GRAMMARS.iter().enumerate() {
        write("grammars", &format!("text-{at}"), &[&[*kind], text.as_bytes()].concat());
    }
    for (name, bytes) in entries() {
        write("entries", name, &bytes);
    }
    for (at, bytes) in files().into_iter().enumerate() {
        write("files", &format!("file-{at}"), &bytes);
    }
    for (at, bytes) in replies().into_iter().enumerate() {
        write("redis", &format!("replies-{at}"), &bytes);
    }
    for at in 0..8u8 {
        let mixed = |place: u8| place.wrapping_mul(at.wrapping_mul(2).wrapping_add(37)).wrapping_add(place >> 3);
        write("tables", &format!("calls-{at}"), &(0..160).map(mixed).collect::<Vec<u8>>());
    }
    write("peers", "subscribe", b"\x80\x00\x01\x01\x01\x01a\x00\x01b\x04\x08\x04PING\0\x05a");
    write("peers", "long", b"\x81\x02\0\0\0\0\0\0\0\x03abc\x04\x0b\x09SUBSCRIBEx");
    write("peers", "greeting", &[&[2, 0xff][..], &[0; 8], &[0x7f, 3, 0], b"NULL", &[0; 48]].concat());
}

fn entries() -> [(&'static str, Vec<u8>); 6] {
    let compressed = compress(&[7; 300], 4).expect("memory");
    [
        ("entry", [&[2, 1][..], &[9; 32], &[3; 90]].concat()),
        ("opened", [&[3, 3][..], &compressed].concat()),
        ("sealed", [&[4, 7][..], &compressed].concat()),
        ("closed", [&[5, 7, 1, 0, 9, 4][..], b"a value, a value"].concat()),
        ("key", b"\x06.3.0123456789abcdef".to_vec()),
        ("zeros", b"\x06.03.0123456789abcdef".to_vec()),
    ]
}

/// Each file, with no change and with some, and one as it is.
fn files() -> Vec<Vec<u8>> {
    let mut cache =
        KvCache::new(KvCacheOptions { head_dim: 1, max_seq_len: 8, ..KvCacheOptions::default() }).expect("a cache");
    let row = || HostTensor::new("k", &[0; 4], DType::F32, &[1, 1, 1, 1]).expect("a number");
    cache.update(row(), row()).expect("room");
    let save = Save::kv_cache(&cache).expect("a save");
    let raw = save.to_sink(Sink::memory(), &Watch::default()).expect("a file").1;
    let changes = (0..13).flat_map(|at| [vec![at, 0], vec![at, 0, 7, 200, 9, 1, 3, at * 11, 40, 2, 5, 90, at]]);
    changes.chain([[&[13], &raw[..]].concat()]).collect()
}

/// Replies of a right server, of a Cluster, and of one that answers something else.
fn replies() -> Vec<Vec<u8>> {
    let reply = |bytes: &[u8]| [&[bytes.len() as u8 | 0x80], bytes].concat();
    let right = || {
        let values = reply(b"$5\r\nvalue\r\n$-1\r\n$0\r\n\r\n");
        [values, reply(b":1\r\n:0\r\n:1\r\n"), reply(b"+OK\r\n+OK\r\n$-1\r\n"), reply(b":1\r\n:1\r\n:0\r\n")].concat()
    };
    let wrong =
        [reply(b"-MOVED 1 a:1\r\n-ASK 1 a:1\r\n-CLUSTERDOWN\r\n"), reply(b"-NOAUTH\r\n"), reply(b"*1\r\n:1\r\n")];
    let all = |kind: u8, replies: &[u8]| [&[kind], replies].concat();
    vec![
        all(1, &right()),
        all(3, &right()),
        all(9, &right()),
        all(1, &wrong.concat()),
        all(3, &wrong.concat()),
        all(0, &[reply(b"+OK\r\n"), right()].concat()),
        all(7, &[&[1; 12][..], &right()].concat()),
    ]
}

fn graphs() -> [(&'static str, Vec<u8>); 2] {
    ["MultiHeadAttention", "GroupQueryAttention"].map(|operator| {
        let decoder = Decoder::new(HEADS, true);
        let graph = decoder.layers(|decoder, layer, [query, key, value]| {
            let [pasts, presents] = decoder.pasts(layer);
            let output = decoder.graph.fresh("attended");
            let inputs = [query, key, value, "", "", "", &pasts[0], &pasts[1]];
            let attributes = [Attr::Int("num_heads", HEADS), Attr::Int("unidirectional", 1)];
            let outputs = [output.as_str(), &presents[0], &presents[1]];
            decoder.graph.node_to(&format!("com.microsoft.{operator}"), &inputs, &outputs, &attributes);
            output
        });
        (operator, graph.model(18))
    })
}

fn batch() -> Batch {
    let hashes = |from: u64| (from..from + 3).map(BlockHash::Number).collect::<Vec<_>>();
    let stored =
        StoredBlocks { hashes: hashes(1), tokens: (0..12).collect(), block_size: 4, ..StoredBlocks::default() };
    let removed = RemovedBlocks { hashes: hashes(2), ..RemovedBlocks::default() };
    Batch { time: 1.5, events: vec![Event::Stored(stored), Event::Removed(removed), Event::Cleared], rank: Some(1) }
}

/// The first byte, and the text.
const GRAMMARS: [(u8, &str); 6] = [
    (
        0,
        r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1,"\u0120a":2},"merges":["a b"]},"decoder":{"type":"ByteLevel"},
        "added_tokens":[{"id":3,"content":"<s>","special":true}]}"#,
    ),
    (4, r#"{"model":{"type":"Unigram","vocab":[["<unk>",0.0],["\u2581a",-1.0],["<0x41>",-2.0]]}}"#),
    (
        1,
        r#"{"type":"object","properties":{"a":{"type":"integer","minimum":3},"b":{"enum":["x",null]}},"required":["a"]}"#,
    ),
    (
        1,
        r##"{"anyOf":[{"type":"string","pattern":"^a+$"},{"$ref":"#/$defs/n"}],"$defs":{"n":{"type":"array","maxItems":2}}}"##,
    ),
    (2, r"(a|b)*c{2,3}[^x]\d+"),
    (3, "start: a+ \"x\" | b\na: /[a-z]/\nb: a \"y\"\n"),
];
