//! Calls that are large enough for several threads and non-temporal stores, and calls that run out of memory.

use kvtide_core::Code;
use kvtide_core::paged::PageFormat;
use kvtide_tensor::runtime::set_threads;
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions};

use crate::outcome::code;

const LAYERS: usize = 2;
const HEADS: usize = 4;
const DIM: usize = 64;
const TOKENS: usize = 8300;

fn cache(format: Option<PageFormat>) -> PagedKvCache {
    PagedKvCache::new(PagedKvCacheOptions {
        capacity: 600,
        num_layers: LAYERS as u32,
        num_kv_heads: HEADS as u32,
        head_dim: DIM as u32,
        key_format: format,
        value_format: format,
        ..Default::default()
    })
    .unwrap()
}

/// The value of an element; of V a negative one.
fn value(part: usize, layer: usize, head: usize, token: usize, place: usize) -> f32 {
    let value = (((layer * HEADS + head) * 9973 + token) * 31 + place) % 16_381;
    if part == 0 { value as f32 } else { -(value as f32) }
}

/// `[layers, heads, tokens, dim]`, from token `first` on.
fn tokens(part: usize, first: usize, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LAYERS * HEADS * count * DIM * 4);
    for (layer, head) in (0..LAYERS).flat_map(|layer| (0..HEADS).map(move |head| (layer, head))) {
        for token in first..first + count {
            bytes.extend((0..DIM).flat_map(|place| value(part, layer, head, token, place).to_ne_bytes()));
        }
    }
    bytes
}

fn append(cache: &mut PagedKvCache, sequence: u64, first: usize, count: usize) {
    let parts = [0, 1].map(|part| tokens(part, first, count));
    let [k, v] =
        [0, 1].map(|part| HostTensor::new("k", &parts[part], DType::F32, &[LAYERS, HEADS, count, DIM]).unwrap());
    cache.append(&[sequence], k, v, Some(&[0, count as u32])).unwrap();
}

#[test]
fn a_large_call_arrives_whole_on_any_number_of_threads() {
    for (threads, format) in
        [1, 2, 3].into_iter().flat_map(|threads| [(threads, None), (threads, Some(PageFormat::Q8))])
    {
        set_threads(threads).unwrap();
        let mut cache = cache(format);
        // Blocks that lie in no order.
        let [other, sequence] = [0; 2].map(|_| cache.create_sequence().unwrap());
        cache.ensure_capacity(other, 1000).unwrap();
        append(&mut cache, sequence, 0, 5);
        cache.drop_sequence(other).unwrap();
        append(&mut cache, sequence, 5, TOKENS - 5);
        for layer in 0..LAYERS {
            let gathered = cache.gather(sequence, layer as u32).unwrap();
            for (part, view) in [gathered.k, gathered.v].into_iter().enumerate() {
                let found = view.to_f32().unwrap();
                let mut place = 0;
                for (head, token) in (0..HEADS).flat_map(|head| (0..TOKENS).map(move |token| (head, token))) {
                    for at in 0..DIM {
                        let (expected, found) = (value(part, layer, head, token, at), found[place]);
                        let bound = if format.is_some() && token < TOKENS / 16 * 16 { 16_381. / 254. + 1. } else { 0. };
                        assert!(
                            (found - expected).abs() <= bound,
                            "{threads} threads: {part} {layer} {head} {token} {at}"
                        );
                        place += 1;
                    }
                }
            }
        }
        cache.check_invariants().unwrap();
    }
}

/// All that can be seen of a cache.
fn everything(cache: &mut PagedKvCache) -> String {
    cache.check_invariants().unwrap();
    let ids = cache.sequence_ids();
    let mut layers = |id: u64| {
        let of = |layer| cache.gather(id, layer).map(|kv| kv.k.to_f32().unwrap());
        (0..LAYERS as u32).map(of).collect::<Result<Vec<_>, _>>().unwrap()
    };
    let sequences: Vec<_> = ids.into_iter().map(|id| (id, layers(id))).collect();
    format!("{sequences:?} {} {} {:?}", cache.free_count(), cache.staged_count(), cache.stats())
}

#[test]
fn staging_that_does_not_fit_is_refused_and_changes_nothing() {
    let page = (2 * HEADS * 16 * DIM * 4) as u64;
    let slab = cache(Some(PageFormat::Q4)).stats().buffer_bytes;
    // Room for two staging pages, and once more for both while they move to three or four.
    for (room, fits) in [(0, 0), (1, 0), (2, 1), (5, 1), (6, 2), (9, 2)] {
        let mut cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: 600,
            num_layers: LAYERS as u32,
            num_kv_heads: HEADS as u32,
            head_dim: DIM as u32,
            key_format: Some(PageFormat::Q4),
            value_format: Some(PageFormat::Q4),
            memory_limit_bytes: Some(slab + room * page),
            ..Default::default()
        })
        .unwrap();
        let bytes = tokens(0, 0, 3);
        let rows = || HostTensor::new("k", &bytes, DType::F32, &[LAYERS, HEADS, 3, DIM]).unwrap();
        for done in 0..fits {
            let sequence = cache.create_sequence().unwrap();
            cache.append(&[sequence], rows(), rows(), Some(&[0, 3])).unwrap();
            assert_eq!(cache.staged_count() as usize, (done + 1) * LAYERS);
        }
        let sequence = cache.create_sequence().unwrap();
        let before = everything(&mut cache);
        let refused = code(cache.append(&[sequence], rows(), rows(), Some(&[0, 3])));
        assert_eq!(refused, Err(Code::OutOfMemory), "room for {room} pages");
        assert_eq!(everything(&mut cache), before);
        // Tokens that fill their pages need no staging, and freed staging pages are used again.
        append(&mut cache, sequence, 0, 16);
        for id in 0..fits as u64 {
            cache.drop_sequence(id).unwrap();
            let sequence = cache.create_sequence().unwrap();
            cache.append(&[sequence], rows(), rows(), Some(&[0, 3])).unwrap();
        }
    }
}
