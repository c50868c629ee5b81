//! The division of memory between the groups of a pool.

use kvtide_core::DetailValue;
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_tensor::{PagedKvCache, PagedModelOptions, PoolRoom};

fn sliding(window: u32, sinks: u32) -> LayerKind {
    LayerKind::Sliding { window, sinks }
}

/// Blocks of each group, of 4 tokens.
fn blocks(layers: &[LayerDescription], bytes: u64, max_sequences: u32) -> Vec<u32> {
    blocks_for(layers, bytes, max_sequences, 0)
}

/// The bytes that a refusal asks for at least.
fn least(layers: &[LayerDescription], bytes: u64, max_sequences: u32) -> u64 {
    let model = ModelDescription::new(layers.to_vec()).unwrap();
    let room = PoolRoom::Memory { bytes, max_sequences, max_prefill_tokens: 0 };
    let options = PagedModelOptions { block_size: 4, ..PagedModelOptions::new(model, room) };
    let error = PagedKvCache::of_model(options).unwrap_err();
    let [argument, value, expected] = &error.details()[..] else { panic!("{error}") };
    assert_eq!((&argument.value, &value.value), (&"memoryBytes".into(), &bytes.into()), "{error}");
    let DetailValue::Text(expected) = &expected.value else { panic!("{error}") };
    let least = expected.strip_prefix("at least ").and_then(|rest| rest.split(',').next()).unwrap();
    assert!(expected.ends_with(", for a block of 4 tokens in each group of layers"), "{expected}");
    least.parse().unwrap()
}

fn blocks_for(layers: &[LayerDescription], bytes: u64, max_sequences: u32, max_prefill_tokens: u32) -> Vec<u32> {
    let model = ModelDescription::new(layers.to_vec()).unwrap();
    let room = PoolRoom::Memory { bytes, max_sequences, max_prefill_tokens };
    let options = PagedModelOptions { block_size: 4, ..PagedModelOptions::new(model, room) };
    let mut cache = PagedKvCache::of_model(options).unwrap();
    let totals = cache.pools().unwrap().into_iter().map(|of| of.total).collect();
    assert!(cache.stats().buffer_bytes <= bytes, "{} bytes of {bytes}", cache.stats().buffer_bytes);
    totals
}

// A block of 4 tokens of one head of 4 is 128 bytes a layer, K and V.
const BLOCK: u64 = 128;

#[test]
fn groups_that_keep_everything_hold_the_same_number_of_tokens() {
    let small = LayerDescription::full(1, 4);
    assert_eq!(blocks(&[small; 2], 20 * BLOCK, 3), [10]);
    let large = LayerDescription::full(1, 12);
    assert_eq!(blocks(&[small, large, small], 50 * BLOCK, 3), [10, 10]);
    assert_eq!(blocks(&[small, large], 4 * BLOCK, 3), [1, 1]);
}

#[test]
fn groups_that_slide_get_their_windows_and_the_rest_is_for_the_others() {
    let full = LayerDescription::full(1, 4);
    // 8 tokens are 2 blocks, 3 sinks are 1, and 2 more: 5 for each of 3 sequences.
    assert_eq!(blocks(&[full.with_kind(sliding(8, 3)), full], 40 * BLOCK, 3), [15, 25]);
    // At most half of the bytes.
    assert_eq!(blocks(&[full.with_kind(sliding(8, 3)), full], 20 * BLOCK, 3), [10, 10]);
    // Unless all slide.
    assert_eq!(blocks(&[full.with_kind(sliding(8, 3))], 14 * BLOCK, 3), [14]);
    assert_eq!(blocks(&[full.with_kind(sliding(8, 3)), full.with_kind(sliding(4, 0))], 60 * BLOCK, 3), [15, 9]);
}

#[test]
fn groups_that_slide_have_room_for_what_one_call_appends() {
    let full = LayerDescription::full(1, 4);
    // 4 blocks for the window, and 5 for 17 tokens.
    assert_eq!(blocks_for(&[full.with_kind(sliding(8, 0)), full], 40 * BLOCK, 1, 17), [9, 31]);
    assert_eq!(blocks_for(&[full.with_kind(sliding(8, 0)), full], 16 * BLOCK, 1, 17), [8, 8]);
    assert_eq!(blocks_for(&[full], 16 * BLOCK, 1, 17), [16]);
}

#[test]
fn no_size_ends_the_process() {
    let full = LayerDescription::full(1, 4);
    let model = ModelDescription::new(vec![full, full.with_kind(sliding(i32::MAX as u32, 0))]).unwrap();
    for max_sequences in [1, u32::MAX] {
        let room = PoolRoom::Memory { bytes: u64::MAX, max_sequences, max_prefill_tokens: max_sequences };
        let made = PagedModelOptions { block_size: 1, ..PagedModelOptions::new(model.clone(), room) };
        let made = PagedKvCache::of_model(made);
        assert_eq!(made.map(|_| ()).map_err(|error| error.code()), Err(kvtide_core::Code::OutOfMemory));
    }
}

#[test]
fn memory_in_which_a_group_has_no_block_is_refused_with_the_least_that_will_do() {
    let (small, large) = (LayerDescription::full(1, 4), LayerDescription::full(1, 12));
    let slides = |window, sinks| small.with_kind(sliding(window, sinks));
    assert_eq!(least(&[small], 0, 1), BLOCK);
    assert_eq!(least(&[small, large], 4 * BLOCK - 1, 3), 4 * BLOCK);
    let models: [&[LayerDescription]; 6] = [
        &[small],
        &[small, large],
        &[slides(8, 3)],
        &[slides(8, 3), small],
        &[slides(8, 3), slides(400, 0)],
        &[slides(8, 0), small, large, slides(100, 1)],
    ];
    for layers in models {
        for sequences in [1, 3, 1000, u32::MAX] {
            let enough = least(layers, 1, sequences);
            assert!(blocks(layers, enough, sequences).iter().all(|&of| of > 0), "{layers:?}");
            assert_eq!(least(layers, enough - 1, sequences), enough, "{layers:?}");
        }
    }
}
