//! Encoded batches decode to the same value, other publishers' forms are decoded, and invalid bytes are refused.

use kvtide_router::{Batch, BlockHash, Event, ExtraKeys, RemovedBlocks, StoredBlocks, decode, encode};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use crate::support::run;

fn hash() -> impl Strategy<Value = BlockHash> {
    prop_oneof![
        any::<u64>().prop_map(BlockHash::Number),
        vec(any::<u8>(), 0..40).prop_map(|bytes| BlockHash::Bytes(bytes.into())),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just("GPU".to_owned()), "[a-zü]{0,40}"]
}

fn event() -> impl Strategy<Value = Event> {
    let keys = vec(of(vec(text(), 0..3)), 0..3).prop_map(|keys| ExtraKeys::of_texts(&keys));
    let first = (vec(hash(), 0..5), of(hash()), vec(any::<u32>(), 0..40), any::<u32>(), of(any::<u64>()), of(text()));
    let second = (of(text()), of(text()), of(keys), of(any::<u32>()), of(text()), of(any::<u32>()));
    let stored = (first, second).prop_map(|(first, second)| {
        let (hashes, parent, tokens, block_size, lora_id, medium) = first;
        let (lora_name, cache_salt, extra_keys, group, spec_kind, sliding_window) = second;
        Event::Stored(StoredBlocks {
            hashes,
            parent,
            tokens,
            block_size,
            lora_id,
            medium,
            lora_name,
            cache_salt,
            extra_keys,
            group,
            spec_kind,
            sliding_window,
        })
    });
    let removed =
        (vec(hash(), 0..5), of(text()), of(any::<u32>()), of(text())).prop_map(|(hashes, medium, group, spec_kind)| {
            Event::Removed(RemovedBlocks { hashes, medium, group, spec_kind })
        });
    prop_oneof![4 => stored, 2 => removed, 1 => Just(Event::Cleared)]
}

fn batch() -> impl Strategy<Value = Batch> {
    (0.0..1e12f64, vec(event(), 0..6), of(any::<u32>())).prop_map(|(time, events, rank)| Batch { time, events, rank })
}

#[test]
fn what_is_written_is_read_again() {
    run("wire", 1000, batch(), |batch| {
        prop_assert_eq!(decode(&encode(&batch)).unwrap(), batch);
        Ok(())
    });
}

#[test]
fn damaged_and_random_bytes_are_refused_or_read_but_never_panic() {
    run(
        "damage",
        3000,
        (batch(), vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), any::<u16>()),
        |(batch, damage, cut)| {
            let mut bytes = encode(&batch);
            for length in 0..bytes.len().min(200) {
                prop_assert!(decode(&bytes[..length]).is_err(), "cut at {}", length);
            }
            for (place, byte) in damage {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            let _ = decode(&bytes);
            bytes.truncate(cut as usize % (bytes.len() + 1));
            let _ = decode(&bytes);
            Ok(())
        },
    );
    run("noise", 3000, vec(any::<u8>(), 0..300), |bytes| {
        let _ = decode(&bytes);
        Ok(())
    });
}

#[test]
fn lengths_that_nothing_follows_are_refused_at_once() {
    let huge = [0xdd, 0xff, 0xff, 0xff, 0xff];
    let start = [0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(decode(&huge).unwrap_err().code().as_str(), "CORRUPT");
    assert_eq!(decode(&[&start[..], &huge].concat()).unwrap_err().code().as_str(), "CORRUPT");
    let lists = [&start[..], b"\x91\x81\xacblock_hashes", &huge].concat();
    assert_eq!(decode(&lists).unwrap_err().code().as_str(), "CORRUPT");
    let maps = [&start[..], &[0x91, 0xdf, 0xff, 0xff, 0xff, 0xff]].concat();
    assert_eq!(decode(&maps).unwrap_err().code().as_str(), "CORRUPT");
    // Nested arrays, a million deep, in an unknown field.
    let deep = [&start[..], &[0x91, 0x81, 0xa1, b'x'], &vec![0x91; 1_000_000][..]].concat();
    assert!(decode(&deep).is_err());
}

/// Arrays and maps, written by hand, in each historical form.
#[test]
fn forms_of_other_publishers_are_read() {
    let stored = StoredBlocks {
        hashes: vec![BlockHash::Number(1), BlockHash::Number(u64::MAX)],
        tokens: vec![1, 2, 3, 4],
        block_size: 2,
        medium: Some("CPU".to_owned()),
        ..StoredBlocks::default()
    };
    // [1.5, [["BlockStored", [1, -1], nil, [1,2,3,4], 2, nil, "CPU", nil, nil, 0, "full_attention", nil, "unknown"]]]
    let mut arrays = vec![0x92, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x91, 0x9d, 0xab];
    arrays.extend(b"BlockStored");
    arrays.extend([0x92, 1, 0xff, 0xc0, 0x94, 1, 2, 3, 4, 2, 0xc0, 0xa3]);
    arrays.extend(b"CPU");
    arrays.extend([0xc0, 0xc0, 0, 0xae]);
    arrays.extend(b"full_attention");
    arrays.extend([0xc0, 0xa7]);
    arrays.extend(b"unknown");
    let grouped = StoredBlocks { group: Some(0), spec_kind: Some("full_attention".to_owned()), ..stored.clone() };
    let batch = Batch { time: 1.5, events: vec![Event::Stored(grouped)], rank: None };
    assert_eq!(decode(&arrays).unwrap(), batch);
    // {"ts": 1.5, "events": [{"type": "AllBlocksCleared"}, ["AllBlocksCleared"], {"type": "Later"}], "data_parallel_rank": 3, "new": nil}
    let mut maps = vec![0x84, 0xa2, b't', b's', 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0xa6];
    maps.extend(b"events");
    maps.extend([0x93, 0x81, 0xa4]);
    maps.extend(b"type\xb0AllBlocksCleared\x91\xb0AllBlocksCleared\x81\xa4type\xa5Later");
    maps.push(0xb2);
    maps.extend(b"data_parallel_rank");
    maps.extend([3, 0xa3, b'n', b'e', b'w', 0xc0]);
    let batch = Batch { time: 1.5, events: vec![Event::Cleared, Event::Cleared], rank: Some(3) };
    assert_eq!(decode(&maps).unwrap(), batch);
}
