//! How the memory of a pool is split between the groups.

use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_tensor::{PagedKvCache, PagedModelOptions, PoolRoom};

fn sliding(window: u32, sinks: u32) -> LayerKind {
    LayerKind::Sliding { window, sinks }
}

/// Blocks of each group, of 4 tokens.
fn blocks(layers: &[LayerDescription], bytes: u64, max_sequences: u32) -> Vec<u32> {
    blocks_for(layers, bytes, max_sequences, 0)
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
    assert_eq!(blocks(&[small, large], 4 * BLOCK - 1, 3), [0, 0]);
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
    assert_eq!(blocks(&[full], 0, 0), [0]);
    let model = ModelDescription::new(vec![full, full.with_kind(sliding(i32::MAX as u32, 0))]).unwrap();
    for max_sequences in [1, u32::MAX] {
        let room = PoolRoom::Memory { bytes: u64::MAX, max_sequences, max_prefill_tokens: max_sequences };
        let made = PagedModelOptions { block_size: 1, ..PagedModelOptions::new(model.clone(), room) };
        let made = PagedKvCache::of_model(made);
        assert_eq!(made.map(|_| ()).map_err(|error| error.code()), Err(kvtide_core::Code::OutOfMemory));
    }
}
