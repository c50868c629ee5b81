//! Pages of a cache with a window: attention with the cache's window gives the same as attention with that window over a
//! cache that keeps all tokens, for every block size; and it never silently skips dropped tokens.

use kvtide_core::Code;
use kvtide_core::paged::{StepTableRows, StepTables, Window};
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions, PagedStep, StepTokens};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::numbers::{Numbers, to_bytes};
use crate::support;

const WIDTH: usize = 128;

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    block_size: u32,
    window: u32,
    sinks: u32,
    /// For each of two sequences, how many tokens are cut off where the window allows it, and the tokens of the step behind that.
    steps: Vec<[[u32; 2]; 2]>,
}

fn case() -> impl Strategy<Value = Case> {
    let tokens = prop_oneof![3 => [0..3u32, 1..3u32], 1 => [0..12u32, 0..12u32]];
    let cut = || prop_oneof![3 => Just(0), 1 => 1..5u32];
    let step = ([cut(), cut()], tokens).prop_map(|(cuts, tokens)| [cuts, tokens]);
    let rest = (1..9u32, prop_oneof![Just(0), 0..5u32], prop::collection::vec(step, 1..10));
    (any::<u64>(), 1..6u32, rest).prop_map(|(seed, block_size, (window, sinks, steps))| Case {
        seed,
        block_size,
        window,
        sinks,
        steps,
    })
}

fn cache(block_size: u32, window: Option<Window>) -> PagedKvCache {
    let options = PagedKvCacheOptions {
        capacity: 80,
        block_size,
        num_layers: 1,
        num_kv_heads: 1,
        head_dim: 3,
        window,
        ..Default::default()
    };
    PagedKvCache::new(options).unwrap()
}

fn host<'a>(bytes: &'a [u8], shape: &[usize]) -> HostTensor<'a> {
    HostTensor::new("rows", bytes, DType::F32, shape).unwrap()
}

/// Begins a step in which all of its tokens are written, and its table.
fn step(
    cache: &mut PagedKvCache,
    offsets: &[u32],
    rows: &[u8],
    known: &mut StepTableRows,
    table: &mut [i32],
) -> (PagedStep, Vec<i32>) {
    let tokens = *offsets.last().unwrap() as usize;
    let of = StepTokens { sequences: &[0, 1], offsets: Some(offsets), parents: None };
    let mut step = cache.begin_step(of).unwrap();
    let mut lists = [vec![0; tokens], vec![0; tokens], vec![0; 2], vec![0; 3]];
    let [slot_mapping, positions, lengths, query_offsets] = &mut lists;
    let tables = StepTables { block_tables: table, slot_mapping, positions, lengths, query_offsets };
    cache.fill_tables(&step, std::slice::from_mut(known), vec![tables]).unwrap();
    cache.write_layer(&mut step, 0, host(rows, &[1, tokens, 3]), host(rows, &[1, tokens, 3])).unwrap();
    (step, lists[2].clone())
}

fn agrees(case: Case) -> Result<(), TestCaseError> {
    let window = Window::new(case.window, case.sinks).unwrap();
    let (mut sliding, mut whole) = (cache(case.block_size, Some(window)), cache(4, None));
    for cache in [&mut sliding, &mut whole] {
        (0..2).for_each(|id| assert_eq!(cache.create_sequence().unwrap(), id));
    }
    let (mut numbers, mut known) = (Numbers::new(case.seed), StepTableRows::new(WIDTH as u32).unwrap());
    let mut table = vec![77; 2 * WIDTH];
    let named = AttendOptions { window: Some(case.window), sinks: case.sinks, ..Default::default() };
    let mut is_cut = [false; 2];
    for [cuts, tokens] in case.steps {
        for id in 0..2 {
            let length = sliding.sequence_length(id).saturating_sub(cuts[id as usize]);
            if sliding.truncate(id, length).is_ok() {
                whole.truncate(id, length).unwrap();
                is_cut[id as usize] |= cuts[id as usize] > 0;
            }
            is_cut[id as usize] &= tokens[id as usize] == 0;
        }
        let [one, other] = tokens;
        let offsets = [0, one, one + other];
        let (tokens, of_queries) = ((one + other) as usize, offsets.map(|offset| offset as i32));
        let rows = to_bytes(DType::F32, &numbers.take(tokens * 3));
        let q = to_bytes(DType::F32, &numbers.take(tokens * 3));
        let (mut open, lengths) = step(&mut sliding, &offsets, &rows, &mut known, &mut table);
        whole
            .append(&[0, 1], host(&rows, &[1, 1, tokens, 3]), host(&rows, &[1, 1, tokens, 3]), Some(&offsets))
            .unwrap();
        let plain = AttendOptions { query_offsets: Some(&of_queries), ..Default::default() };
        let named = AttendOptions { query_offsets: Some(&of_queries), ..named.clone() };
        let q = host(&q, &[tokens, 1, 3]);
        let expected = attend(q.clone(), &whole.pages(0, &[0, 1]).unwrap(), &named).unwrap().out.to_f32().unwrap();
        let during = attend(q.clone(), &sliding.step_pages(&open, 0).unwrap(), &plain).unwrap().out.to_f32().unwrap();
        near(&during, &expected)?;
        let tables = sliding.pages_of_tables(0, &table, &lengths).unwrap();
        near(&attend(q, &tables, &plain).unwrap().out.to_f32().unwrap(), &expected)?;
        sliding.commit_step(&mut open, None).unwrap();
        last_tokens_agree(&mut sliding, &mut whole, is_cut, &named)?;
    }
    Ok(())
}

/// Attention for the last token of each sequence, when all is committed; where some were cut off, only that of the next one is
/// there for sure.
fn last_tokens_agree(
    sliding: &mut PagedKvCache,
    whole: &mut PagedKvCache,
    is_cut: [bool; 2],
    named: &AttendOptions<'_>,
) -> Result<(), TestCaseError> {
    let ids: Vec<u64> = (0..2).filter(|&id| sliding.sequence_length(id) > 0 && !is_cut[id as usize]).collect();
    let q = to_bytes(DType::F32, &[0.5, -1., 2., 1., 0., 3.][..3 * ids.len()]);
    let q = || host(&q, &[ids.len(), 1, 3]);
    let named = AttendOptions { query_offsets: None, ..named.clone() };
    let expected = attend(q(), &whole.pages(0, &ids).unwrap(), &named).unwrap().out.to_f32().unwrap();
    let given = attend(q(), &sliding.pages(0, &ids).unwrap(), &AttendOptions::default()).unwrap().out.to_f32().unwrap();
    near(&given, &expected)
}

fn near(given: &[f32], expected: &[f32]) -> Result<(), TestCaseError> {
    prop_assert_eq!(given.len(), expected.len());
    let far = given.iter().zip(expected).any(|(one, other)| (one - other).abs() > 1e-4 * (1. + other.abs()));
    prop_assert!(!far, "{:?}, expected {:?}", given, expected);
    Ok(())
}

#[test]
fn the_window_of_a_cache_is_that_of_attention_whatever_the_size_of_blocks() {
    for kernels in Kernels::supported() {
        with_kernels(kernels, || support::run("windows", 200, case(), agrees)).unwrap();
    }
}

#[test]
fn a_query_whose_window_is_gone_is_refused_and_names_what_is_left() {
    let mut cache = cache(1, Some(Window::new(3, 1).unwrap()));
    cache.create_sequence().unwrap();
    let rows = vec![0; 8 * 3 * 4];
    cache.append(&[0], host(&rows, &[1, 1, 8, 3]), host(&rows, &[1, 1, 8, 3]), Some(&[0, 8])).unwrap();
    let pages = cache.pages(0, &[0]).unwrap();
    let attended = |tokens: usize, options: &AttendOptions<'_>| {
        let offsets = [0, tokens as i32];
        let options = AttendOptions { query_offsets: Some(&offsets), ..options.clone() };
        attend(host(&rows[..tokens * 12], &[tokens, 1, 3]), &pages, &options).map(drop)
    };
    let plain = AttendOptions::default();
    attended(1, &plain).unwrap();
    let refused = attended(2, &plain).unwrap_err();
    let expected =
        "window is 3, expected at most 2 for the query at 6 of sequence 0: tokens before 5 have left the cache";
    assert_eq!((refused.code(), refused.to_string().as_str()), (Code::InvalidArgument, expected));
    let narrower = AttendOptions { window: Some(2), ..plain.clone() };
    attended(2, &narrower).unwrap();
    attended(1, &AttendOptions { sinks: 1, ..narrower.clone() }).unwrap();
    for wrong in [
        AttendOptions { window: Some(4), ..plain.clone() },
        AttendOptions { sinks: 2, ..narrower },
        AttendOptions { positions: Some(&[4]), causal: false, ..plain.clone() },
    ] {
        assert_eq!(attended(1, &wrong).unwrap_err().code(), Code::InvalidArgument, "{wrong:?}");
    }
    attended(1, &AttendOptions { positions: Some(&[0]), ..plain }).unwrap();
}

/// A window of the token itself, cut where the block before the cut has gone: the sequence has no block, or its sinks alone.
#[test]
fn a_sequence_without_a_block_for_its_last_token_has_no_part_in_a_step_of_others() {
    for sinks in [0, 1, 2] {
        let mut cache = cache(2, Some(Window::new(1, sinks).unwrap()));
        for id in 0..2 {
            assert_eq!(cache.create_sequence().unwrap(), id);
            let rows = vec![0; 7 * 3 * 4];
            cache.append(&[id], host(&rows, &[1, 1, 7, 3]), host(&rows, &[1, 1, 7, 3]), Some(&[0, 7])).unwrap();
        }
        cache.truncate(0, 6).unwrap();
        assert_eq!(cache.retained_length(0), if sinks > 0 { 2 } else { 0 });
        let (mut known, mut table) = (StepTableRows::new(WIDTH as u32).unwrap(), vec![77; 2 * WIDTH]);
        let rows = to_bytes(DType::F32, &[1., 2., 3.]);
        let (mut open, lengths) = step(&mut cache, &[0, 0, 1], &rows, &mut known, &mut table);
        let options =
            AttendOptions { query_offsets: Some(&[0, 0, 1]), sinks: 0, window: Some(1), ..Default::default() };
        let q = || host(&rows, &[1, 1, 3]);
        let expected = attend(q(), &cache.step_pages(&open, 0).unwrap(), &options).unwrap().out.to_f32().unwrap();
        assert_eq!(expected, [1., 2., 3.]);
        let tables = cache.pages_of_tables(0, &table, &lengths).unwrap();
        assert_eq!(attend(q(), &tables, &options).unwrap().out.to_f32().unwrap(), expected);
        // A query of its own would see what is gone, by its table and by its name.
        let seen = AttendOptions { query_offsets: Some(&[0, 1, 1]), ..options.clone() };
        assert_eq!(attend(q(), &tables, &seen).map(drop).unwrap_err().code(), Code::InvalidBlock);
        drop(tables);
        cache.undo_step(&mut open).unwrap();
        let pages = cache.pages(0, &[0, 1]).unwrap();
        assert_eq!(attend(q(), &pages, &seen).map(drop).unwrap_err().code(), Code::InvalidArgument);
    }
}
