//! Attention with random shapes and rules.

use kvtide_tensor::DType;
use kvtide_tensor::runtime::Kernels;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::case::Case;
use crate::support;

/// Differences that are let pass, of the output and of the log-sum-exp. Scores and sums are 32-bit floats: a few units in the
/// last place of each, and one rounding to the dtype at the end.
fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F32 => (2e-6, 4e-6),
        DType::F16 => (6e-4, 4e-6),
        _ => (5e-3, 4e-6),
    }
}

fn agrees(case: Case) -> Result<(), TestCaseError> {
    // Scores that are so many times as large as with the usual scale are as many times as far off.
    let larger = 1.0 + case.scale.map_or(0.0, |scale| f64::from(scale.abs()) * (case.dim as f64).sqrt() / 8.0);
    // Where one number is most of a mean, its rounding is not evened out by others.
    let larger = if case.extreme { 2.0 * larger } else { larger };
    // A cap rounds each score a few times more, which counts if the cap leaves scores large. Scores that reach it differ by
    // units in its last place; without extreme numbers, none reaches a large cap.
    let large_cap = case.softcap.filter(|cap| *cap > 100.0);
    let larger = if large_cap.is_some() { 2.0 * larger } else { larger };
    let at_cap = large_cap.filter(|_| case.extreme).map_or(0.0, |cap| 2.0 * f64::from(cap * f32::EPSILON));
    let (out, lse) = tolerance(case.dtype);
    let (out, lse) = (out * larger + at_cap, lse * larger);
    let expected = case.expected();
    for kernels in Kernels::supported() {
        for threads in [1, 2] {
            let off = case.run(&expected, kernels, threads);
            prop_assert!(off.out <= out && off.lse <= lse, "{kernels} on {threads} threads is off by {off:?}");
        }
    }
    Ok(())
}

fn shapes() -> impl Strategy<Value = Case> {
    let dims = prop::sample::select(&[1usize, 2, 7, 8, 15, 16, 20, 31, 32, 33, 64, 80, 96, 128, 192][..]);
    let dtypes = prop::sample::select(&[DType::F32, DType::F32, DType::F16, DType::BF16][..]);
    let sequence = (
        prop_oneof![15 => 0..6usize, 1 => 6..40usize],
        prop_oneof![4 => Just(0usize), 4 => 1..5usize, 4 => 1..40usize, 4 => 100..300usize, 1 => 2000..2600usize],
    );
    let batch = prop_oneof![
        (1..3usize, sequence.clone()).prop_map(|(batch, sequence)| (false, vec![sequence; batch])),
        prop::collection::vec(sequence, 1..4).prop_map(|sequences| (true, sequences)),
    ];
    let heads = (prop_oneof![3 => 1..3usize, 1 => 3..9usize], prop_oneof![Just(1usize), Just(4), 1..6usize, Just(20)]);
    let paged = prop::option::of(prop::sample::select(&[1u32, 4, 16, 32][..]));
    (any::<u64>(), batch, heads, dims.clone(), dims, dtypes, any::<bool>(), paged).prop_map(
        |(seed, (ragged, sequences), (kv_heads, group), dim, value_dim, dtype, bshd, paged)| Case {
            seed,
            sequences,
            ragged,
            paged: paged.filter(|_| ragged),
            bshd: bshd && !ragged,
            kv_heads,
            group,
            dim,
            value_dim,
            dtype,
            causal: true,
            window: None,
            sinks: 0,
            sink_logits: false,
            slopes: false,
            softcap: None,
            scale: None,
            mask: None,
            starts: None,
            positions: None,
            tree: None,
            trees: None,
            extreme: false,
        },
    )
}

fn with_rules() -> impl Strategy<Value = Case> {
    let some = |weight| prop::option::weighted(weight, any::<u32>());
    let rules = (any::<bool>(), some(0.5), some(0.3), some(0.3), some(0.3), some(0.3), some(0.3), some(0.2));
    (shapes(), rules, any::<[bool; 2]>()).prop_map(
        |(case, (causal, window, sinks, mask, starts, positions, tree, scale), [sink_logits, slopes])| {
            let keys = case.sequences.iter().map(|of| of.1).max().unwrap_or(0) as u32;
            let queries: usize = case.sequences.iter().map(|of| of.0).sum();
            let alike = case.sequences.iter().all(|of| *of == case.sequences[0]);
            let tree = tree.filter(|_| case.sequences.iter().all(|of| of.0 == case.sequences[0].0 && of.0 <= of.1));
            let parent = |seed: u32, node: usize| (seed.rotate_right(node as u32) as usize % (node + 1)) as i32 - 1;
            Case {
                causal,
                window: window.map(|window| window % (keys + 2) + 1),
                sinks: if starts.is_some() { 0 } else { sinks.map_or(0, |sinks| sinks % (keys + 2)) },
                sink_logits,
                slopes,
                softcap: scale.map(|scale| match scale % 40 {
                    // Caps that change nothing.
                    38 => 1e6,
                    39 => 1e30,
                    low => low as f32 / 4.0 + 0.5,
                }),
                scale: scale.map(|scale| (scale % 7) as f32 / 3.0),
                mask: mask.filter(|_| alike).map(|bits| std::array::from_fn(|axis| bits >> axis & 1 == 1)),
                starts: starts.map(|start| {
                    (0..case.sequences.len() as u32).map(|row| (start.rotate_left(row) % (keys + 2)) as i32).collect()
                }),
                positions: positions.filter(|_| tree.is_none()).map(|seed| {
                    (0..queries as u32).map(|query| (seed.rotate_left(query * 5) % (keys + 9)) as i32).collect()
                }),
                tree: tree.map(|seed| (0..case.sequences[0].0).map(|node| parent(seed, node)).collect()),
                ..case
            }
        },
    )
}

/// Calls where each sequence has a tree of its own, longer than its queries or shorter.
fn with_trees() -> impl Strategy<Value = Case> {
    (with_rules(), any::<u32>()).prop_map(|(case, seed)| {
        let parent = |seed: u32, node: usize| ((seed.rotate_left(node as u32)) as usize % (node + 1)) as i32 - 1;
        let tree = |(index, of): (usize, &(usize, usize))| {
            let seed = seed.rotate_left(7 * index as u32);
            (0..seed as usize % (of.1.min(of.0 + 9) + 1)).map(|node| parent(seed, node)).collect()
        };
        let trees = case.sequences.iter().enumerate().map(tree).collect();
        Case { tree: None, trees: Some(trees), ..case }
    })
}

#[test]
fn trees_of_each_sequence_against_the_oracle() {
    support::run("attention with a tree for each sequence", 800, with_trees(), agrees);
}

#[test]
fn extreme_numbers_against_the_oracle() {
    let calls = (with_rules(), any::<bool>()).prop_map(|(case, rules)| match rules {
        true => Case { extreme: true, ..case },
        // Of products alone.
        false => Case { extreme: true, softcap: None, scale: None, mask: None, ..case },
    });
    support::run("attention with extreme numbers", 1_500, calls, agrees);
}

#[test]
fn shapes_against_the_oracle() {
    support::run("attention", 400, shapes(), agrees);
}

#[test]
fn rules_against_the_oracle() {
    support::run("attention with rules", 800, with_rules(), agrees);
}
