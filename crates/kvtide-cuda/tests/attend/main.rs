//! The attention kernels, on a GPU or on the CPU that stands in for one, compared with a naive loop in 64-bit floats.
#![cfg(any(feature = "cuda", feature = "emulate"))]

mod call;
mod launched;
mod numbers;
mod oracle;
mod page;
#[path = "../place/mod.rs"]
mod place;
mod rules;

use call::{Call, Keys};
use kvtide_cuda::RowFormat;
use numbers::off;
use proptest::prelude::*;

/// The allowed error of an output: half a step of the queries' type each for the weights, for the values of codes, and for
/// the output. Values are at most 1.
fn tolerance(call: &Call) -> f64 {
    let low_bit =
        call.formats.iter().any(|format| !matches!(format, RowFormat::F32 | RowFormat::F16 | RowFormat::Bf16));
    let steps = if low_bit { 3.5 } else { 2.5 };
    match call.query {
        RowFormat::F32 => 4e-6,
        RowFormat::F16 => steps * 2f64.powi(-12),
        _ => steps * 2f64.powi(-9),
    }
}

/// The allowed error of the logarithm of a sum, from the rounding of keys.
fn tolerance_of_sums(call: &Call) -> f64 {
    match (call.query, call.formats[0]) {
        (RowFormat::F32, _) | (_, RowFormat::F32 | RowFormat::F16 | RowFormat::Bf16) => 8e-6,
        (RowFormat::F16, _) => 2e-3,
        _ => 2e-2,
    }
}

fn agrees(call: &Call) -> Result<(), TestCaseError> {
    let (out, sums) = call.run();
    let (expected, expected_sums) = call.expected();
    let (off_by, sums_off_by) = (off(&out, &expected), off(&sums, &expected_sums));
    prop_assert!(off_by <= tolerance(call), "outputs are off by {off_by}");
    prop_assert!(sums_off_by <= tolerance_of_sums(call), "sums are off by {sums_off_by}");
    Ok(())
}

fn floats() -> impl Strategy<Value = RowFormat> {
    prop::sample::select(&[RowFormat::F32, RowFormat::F16, RowFormat::Bf16][..])
}

fn format() -> impl Strategy<Value = Option<RowFormat>> {
    prop::sample::select(&[None, Some(RowFormat::F8E4M3), Some(RowFormat::Q8), Some(RowFormat::Q4)][..])
}

fn calls() -> impl Strategy<Value = Call> {
    let dim = || prop::sample::select(&[5usize, 16, 40, 64, 80, 96, 128, 192, 256, 300, 512][..]);
    let sequences = prop::collection::vec((0..5usize, prop_oneof![0..70usize, 200..700usize]), 1..4);
    let many = prop::collection::vec((20..90usize, prop_oneof![0..70usize, 100..300usize]), 1..3);
    let sequences = prop_oneof![3 => sequences, 1 => many];
    let shape = (sequences, 1..3usize, prop::sample::select(&[1usize, 3, 4, 8][..]), [dim(), dim()], any::<bool>());
    let keys = prop_oneof![
        (0..200usize).prop_map(|second| Keys::Rows { second }),
        (prop::sample::select(&[1usize, 3, 16, 32][..]), [format(), format()], any::<[bool; 2]>(), 0..3usize).prop_map(
            |(block_size, formats, is_rotated, staged)| Keys::Pages { block_size, formats, is_rotated, staged }
        ),
    ];
    // Some caps are far above the scores, and change nothing.
    let caps = prop_oneof![4 => (1..20u32).prop_map(|halves| halves as f32 / 2.0), 1 => Just(1e6), 1 => Just(1e30)];
    let rules = (any::<bool>(), prop::option::of(1..300i64), 0..5i64, prop::option::of(caps), any::<[bool; 2]>());
    let seldom = || prop::bool::weighted(0.3);
    let gap = prop_oneof![Just([0, 0]), (0..90usize, 1..200usize).prop_map(|(from, by)| [from, by])];
    let standing = (seldom(), seldom(), seldom(), gap, prop::option::weighted(0.4, 0..16u32));
    (any::<u64>(), shape, floats(), keys, rules, any::<bool>(), standing).prop_map(
        |(seed, shape, query, keys, rules, device_tables, standing)| {
            let (sequences, kv_heads, group, dims, is_ragged) = shape;
            let (is_causal, window, sinks, cap, [logits, slopes]) = rules;
            let mut call = Call { seed, sequences, kv_heads, group, dims, is_ragged, query, keys, ..Call::default() };
            (call.is_causal, call.window, call.sinks, call.has_logits) = (is_causal, window, sinks, logits);
            (call.has_slopes, call.softcap) = (slopes, cap);
            call.has_device_tables = device_tables;
            (call.has_trees, call.has_positions, call.has_starts, call.gap, call.mask) = standing;
            call.settled()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: place::cases().div_ceil(4), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_call_is_what_its_definition_says(call in calls()) {
        agrees(&call)?;
    }
}

/// A call of each kernel, large enough for whole tiles, edges and several shares of the keys.
#[test]
fn each_kernel_sees_whole_tiles_edges_and_shares() {
    for query in [RowFormat::F32, RowFormat::F16, RowFormat::Bf16] {
        for dim in [64, 96, 128, 256, 512] {
            for queries in [1, 33] {
                let call = Call {
                    seed: dim as u64,
                    sequences: vec![(queries, 700), (queries, 530)],
                    kv_heads: 1,
                    group: 4,
                    dims: [dim; 2],
                    query,
                    is_causal: true,
                    window: Some(400),
                    sinks: 3,
                    keys: Keys::Pages { block_size: 16, formats: [None; 2], is_rotated: [false; 2], staged: 0 },
                    ..Call::default()
                };
                agrees(&call.settled()).unwrap();
            }
        }
    }
}

/// Low-bit pages of each format, with float pages among them, for each row length: in whole groups of codes, and in parts of one.
#[test]
fn pages_of_each_format_are_widened() {
    let [f8, q8, q4] = [RowFormat::F8E4M3, RowFormat::Q8, RowFormat::Q4].map(Some);
    for query in [RowFormat::F16, RowFormat::Bf16] {
        for formats in [[f8, f8], [q8, q8], [q4, q4], [q8, q4], [q4, q8]] {
            for (dim, staged) in [(40, 1), (64, 0), (80, 1), (96, 2), (128, 1), (256, 1)] {
                for queries in [1, 33] {
                    let call = Call {
                        seed: dim as u64,
                        sequences: vec![(queries, 170), (queries, 64)],
                        group: 4,
                        dims: [dim; 2],
                        query,
                        keys: Keys::Pages {
                            block_size: 16,
                            formats,
                            is_rotated: [dim == 96, matches!(dim, 64 | 96 | 128)],
                            staged,
                        },
                        ..Call::default()
                    };
                    agrees(&call.settled())
                        .unwrap_or_else(|error| panic!("{query:?} {formats:?} {dim} {queries}: {error}"));
                }
            }
        }
    }
}

/// Few rows over many keys are cut in more shares than a warp has lanes, and in few; rows whose pieces of four end within them.
#[test]
fn many_shares_are_put_together() {
    for (keys, dims) in [(9000, [8, 130]), (9000, [16, 7]), (1100, [40, 300]), (1400, [16, 16])] {
        for query in [RowFormat::F32, RowFormat::Bf16] {
            let call = Call {
                seed: keys as u64,
                sequences: vec![(1, keys)],
                kv_heads: 1,
                group: 3,
                dims,
                query,
                keys: Keys::Pages { block_size: 16, formats: [None; 2], is_rotated: [false; 2], staged: 0 },
                ..Call::default()
            };
            agrees(&call.settled()).unwrap();
        }
    }
}

/// An output may begin at any element, where it is a part of a tensor: no piece of it is written as if it lay at a multiple of its size.
#[test]
fn shares_are_put_together_wherever_the_output_begins() {
    for query in [RowFormat::F32, RowFormat::F16, RowFormat::Bf16] {
        for out_skew in 1..4 {
            let call = Call {
                seed: 5,
                sequences: vec![(1, 1400)],
                kv_heads: 1,
                group: 3,
                dims: [16; 2],
                query,
                out_skew,
                keys: Keys::Pages { block_size: 16, formats: [None; 2], is_rotated: [false; 2], staged: 0 },
                ..Call::default()
            };
            agrees(&call.settled()).unwrap();
        }
    }
}

/// One sequence is cut in many shares, its neighbours in none, as a list of tokens and as a batch; some have many rows, some no key.
#[test]
fn each_sequence_is_cut_as_its_length_asks() {
    let sequences = vec![(1, 40), (1, 6000), (1, 0), (40, 300), (1, 2600), (2, 17)];
    for (is_ragged, sequences) in [(true, sequences), (false, vec![(2, 3000), (2, 9), (2, 700)])] {
        for (query, window) in [(RowFormat::F32, None), (RowFormat::F16, None), (RowFormat::Bf16, Some(900))] {
            let call = Call {
                seed: 3,
                sequences: sequences.clone(),
                kv_heads: 2,
                group: 2,
                dims: [16, 24],
                query,
                is_ragged,
                is_causal: true,
                window,
                keys: Keys::Pages { block_size: 16, formats: [None; 2], is_rotated: [false; 2], staged: 0 },
                ..Call::default()
            };
            agrees(&call.settled()).unwrap();
        }
    }
}

/// Trees of every size up to more than a word of bits, whose queries begin before them, with them, or within.
#[test]
fn nodes_of_drafts_see_their_ancestors_and_what_came_before() {
    let formats = [RowFormat::F32, RowFormat::F16, RowFormat::Bf16];
    let rules = [(None, None), (Some(20), None), (None, Some(3)), (Some(40), Some(10))];
    for (seed, (query, (window, mask))) in (0..16).zip(formats.into_iter().cycle().zip(rules.into_iter().cycle())) {
        let queries = 1 + seed as usize * 5;
        let call = Call {
            seed,
            sequences: vec![(queries, 150), (queries, 90)],
            group: 2,
            query,
            window,
            sinks: 2,
            has_trees: true,
            mask,
            keys: Keys::Pages { block_size: 16, formats: [None; 2], is_rotated: [false; 2], staged: 0 },
            ..Call::default()
        };
        agrees(&call.settled()).unwrap();
    }
}

/// Positions between the nodes of a draft were dropped, beside a window or padding: nodes count from the end of all keys.
#[test]
fn nodes_of_a_divided_draft_stand_behind_the_last_key() {
    for (seed, query) in (0..24).zip([RowFormat::F32, RowFormat::F16, RowFormat::Bf16].into_iter().cycle()) {
        let call = Call {
            seed,
            sequences: vec![(71, 221), (52, 66)],
            group: 3,
            query,
            is_causal: false,
            window: (seed % 2 == 0).then_some(21),
            has_trees: true,
            has_starts: true,
            gap: [43, 139],
            ..Call::default()
        };
        agrees(&call.settled()).unwrap();
    }
}

/// In a list of all queries, each sequence has its own; keys have a gap, and some are padding.
#[test]
fn queries_stand_where_a_call_says() {
    for query in [RowFormat::F32, RowFormat::F16, RowFormat::Bf16] {
        for (window, has_starts) in [(None, false), (Some(30), false), (None, true)] {
            let call = Call {
                seed: 5,
                sequences: vec![(3, 100), (1, 70), (7, 120)],
                group: 2,
                query,
                window,
                has_positions: true,
                has_starts,
                gap: [40, 25],
                ..Call::default()
            };
            agrees(&call.settled()).unwrap();
        }
    }
}

#[test]
fn a_value_that_is_no_number_spoils_those_who_see_it() {
    for (query, group) in
        [RowFormat::F32, RowFormat::F16, RowFormat::Bf16].into_iter().flat_map(|of| [(of, 1), (of, 8)])
    {
        let clean = Call { sequences: vec![(10, 150)], group, query, ..Call::default() }.settled();
        // The first four queries stand before it.
        let spoilt = Call { bad_value: Some(144), ..clean.clone() };
        let (before, after) = (clean.run().0, spoilt.run().0);
        let seen = 4 * group * 64;
        assert_eq!(before[..seen], after[..seen], "{query:?}");
        assert!(after[seen..].iter().all(|value| value.is_nan()), "{query:?}");
    }
}

#[test]
#[should_panic(expected = "blocks of the slab")]
fn a_table_that_points_outside_is_never_launched() {
    let call = Call {
        sequences: vec![(1, 40)],
        keys: Keys::Pages { block_size: 16, formats: [None; 2], is_rotated: [false; 2], staged: 0 },
        is_ragged: true,
        has_wrong_block: true,
        ..Call::default()
    };
    call.settled().run();
}
