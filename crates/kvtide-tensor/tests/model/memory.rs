//! The division of memory between the groups of a pool.

use kvtide_core::DetailValue;
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription, StateDType, StateTensor};
use kvtide_core::paged::PageFormat;
use kvtide_tensor::{DType, PagedKvCache, PagedModelOptions, PoolRoom};

fn sliding(window: u32, sinks: u32) -> LayerKind {
    LayerKind::Sliding { window, sinks }
}

/// Blocks of each group, of 4 tokens.
fn blocks(layers: &[LayerDescription], bytes: u64, max_sequences: u32) -> Vec<u32> {
    blocks_for(layers, bytes, max_sequences, 0)
}

/// The model of these layers. Each layer that keeps a state has one of `elements` 32-bit elements.
fn model(layers: &[LayerDescription], elements: u32) -> ModelDescription {
    let keeping = (0..).zip(layers).filter(|(_, of)| of.kind == LayerKind::State);
    let state =
        |(layer, _)| StateTensor { layer, name: "ssm".to_owned(), shape: vec![elements], dtype: StateDType::F32 };
    ModelDescription::new(layers.to_vec()).unwrap().with_states(keeping.map(state).collect()).unwrap()
}

/// The bytes that a refusal asks for at least.
fn least(layers: &[LayerDescription], bytes: u64, max_sequences: u32) -> u64 {
    let model = model(layers, 64);
    let has_states = !model.states().is_empty();
    let room = PoolRoom::Memory { bytes, max_sequences, max_prefill_tokens: 0 };
    let options = PagedModelOptions { block_size: 4, ..PagedModelOptions::new(model, room) };
    let error = PagedKvCache::of_model(options).unwrap_err();
    let [argument, value, expected] = &error.details()[..] else { panic!("{error}") };
    assert_eq!((&argument.value, &value.value), (&"memoryBytes".into(), &bytes.into()), "{error}");
    let DetailValue::Text(expected) = &expected.value else { panic!("{error}") };
    let least = expected.strip_prefix("at least ").and_then(|rest| rest.split(',').next()).unwrap();
    let reason = expected.split_once(", ").unwrap().1;
    let slots = if has_states { " and two slots of states" } else { "" };
    assert_eq!(reason, format!("for a block of 4 tokens in each group of layers{slots}"));
    least.parse().unwrap()
}

fn blocks_for(layers: &[LayerDescription], bytes: u64, max_sequences: u32, max_prefill_tokens: u32) -> Vec<u32> {
    let model = model(layers, 64);
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

/// The bytes of a slot with two states of 64 elements.
const SLOT: u64 = 512;

#[test]
fn states_have_slots_for_all_sequences_and_a_share_for_checkpoints() {
    let (full, state) = (LayerDescription::full(1, 4), LayerDescription::state());
    let layers = [state, full, state];
    // Two slots for each of 3 sequences, and two for checkpoints of each.
    assert_eq!(blocks(&layers, 12 * SLOT + 12 * SLOT, 3), [12 * SLOT as u32 / BLOCK as u32, 12]);
    // An eighth of the bytes for checkpoints, if that is more.
    assert_eq!(blocks(&layers, 128 * SLOT, 3), [4 * (128 - 22), 6 + 16]);
    // At most half of the bytes.
    assert_eq!(blocks(&layers, 10 * SLOT, 3), [4 * 5, 5]);
    // A sequence may be one at least.
    assert_eq!(blocks(&layers, 128 * SLOT, 0), [4 * (128 - 18), 2 + 16]);
}

#[test]
fn states_beside_windows_alone_get_what_the_windows_leave() {
    let (full, state) = (LayerDescription::full(1, 4), LayerDescription::state());
    assert_eq!(blocks(&[state; 2], 9 * SLOT + 3, 3), [9]);
    let slides = full.with_kind(sliding(8, 3));
    // Five blocks for the window of each of 3 sequences.
    assert_eq!(blocks(&[state, slides, state], 15 * BLOCK + 20 * SLOT, 3), [15, 20]);
    // Half of the bytes for the windows.
    assert_eq!(blocks(&[state, slides, state], 4 * SLOT, 3), [8, 2]);
    // Half of the rest, if there are layers that keep everything too.
    assert_eq!(blocks(&[state, slides, state, full], 64 * SLOT, 3), [15, 4 * (64 - 14) - 15, 14]);
    assert_eq!(blocks(&[state, slides, state, full], 8 * SLOT, 3), [8, 8, 4]);
}

#[test]
fn a_slot_is_a_page_of_rows_of_64_bytes() {
    let (full, state) = (LayerDescription::full(1, 64), LayerDescription::state());
    for (elements, block_size, rows) in
        [(1, 1, 16), (16, 1, 16), (17, 1, 32), (16, 4, 16), (65, 4, 32), (3000, 16, 192)]
    {
        let room = PoolRoom::Blocks(vec![1, 3]);
        let options = PagedModelOptions { block_size, ..PagedModelOptions::new(model(&[full, state], elements), room) };
        let half = PagedModelOptions {
            dtype: DType::F16,
            key_format: Some(PageFormat::Q8),
            value_format: Some(PageFormat::Q8),
            hadamard: true,
            value_hadamard: true,
            ..options.clone()
        };
        for made in [options, half] {
            let cache = PagedKvCache::of_model(made).unwrap();
            let layout = cache.layouts().last().unwrap();
            let shape = layout.shape();
            assert_eq!((shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.value_head_dim), (1, 1, rows, 0));
            assert_eq!(layout.block_bytes() as u64, u64::from(block_size * rows * 4), "{elements} in {block_size}");
        }
    }
}

#[test]
fn no_size_ends_the_process() {
    let full = LayerDescription::full(1, 4);
    let state = StateTensor { layer: 0, name: "ssm".to_owned(), shape: vec![1 << 30], dtype: StateDType::F32 };
    let slides = full.with_kind(sliding(i32::MAX as u32, 0));
    let model = ModelDescription::new(vec![LayerDescription::state(), full, slides]).unwrap();
    let model = model.with_states(vec![state]).unwrap();
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
    let state = LayerDescription::state();
    // The blocks that fit into two slots and as many bytes more.
    assert_eq!(least(&[small, state, state], 0, 1), 4 * SLOT);
    assert_eq!(least(&[state, state], 2 * SLOT - 1, 7), 2 * SLOT);
    let models: [&[LayerDescription]; 10] = [
        &[state, state],
        &[state, small],
        &[slides(8, 3), state],
        &[state, slides(8, 0), small, large, state, slides(100, 1)],
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
