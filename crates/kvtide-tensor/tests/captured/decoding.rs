//! What replays give is what the model gives step by step.

use kvtide_core::model::LayerKind;
use kvtide_tensor::{CaptureOptions, DType, Kernels, PagedKvCache, with_kernels};
use proptest::prelude::*;

use crate::buffers::Buffers;
use crate::toy::{Toy, VOCABULARY, content};

/// A model, the tokens of each sequence before, and how many steps.
#[derive(Clone, Debug)]
struct Case {
    toy: Toy,
    is_plain: bool,
    lengths: Vec<u32>,
    steps: u32,
    /// Steps that are reserved and never done.
    spare: u32,
}

fn tolerance(dtype: DType) -> f32 {
    if dtype == DType::F32 { 2e-5 } else { 0.06 }
}

fn close(a: &[f32], b: &[f32], by: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= by)
}

/// A cache with tokens in it, the token that each sequence goes on with, and a sequence that is none of the step's business.
fn prefilled(case: &Case) -> (PagedKvCache, Vec<u64>, Vec<u32>) {
    let longest = case.lengths.iter().max().unwrap_or(&0) + case.steps + case.spare + 2;
    let blocks = (longest.div_ceil(case.toy.block_size) + 2) * (case.lengths.len() as u32 + 1);
    let mut cache = case.toy.cache(case.is_plain, blocks);
    let sequences: Vec<u64> = case.lengths.iter().map(|_| cache.create_sequence().unwrap()).collect();
    let other = cache.create_sequence().unwrap();
    case.toy.step(&mut cache, &[other], &[5]).unwrap();
    let mut tokens: Vec<u32> = (0..sequences.len() as u32).map(|at| at * 7 % VOCABULARY).collect();
    for (at, &length) in case.lengths.iter().enumerate() {
        for step in 0..length {
            case.toy.step(&mut cache, &sequences[at..=at], &[(tokens[at] + 3 * step) % VOCABULARY]).unwrap();
        }
        tokens[at] = (tokens[at] + 11) % VOCABULARY;
    }
    (cache, sequences, tokens)
}

fn agrees(case: &Case) {
    let (mut cache, sequences, first) = prefilled(case);
    let (mut plain, _, mut tokens) = prefilled(case);
    let buffers = Buffers::new(&case.toy, &first);
    let by = tolerance(case.toy.dtype);
    let options = CaptureOptions { sequences: &sequences, steps: case.steps + case.spare };
    with_kernels(Kernels::Emulated, || {
        let mut step = cache.capture_step(options, |step| buffers.record(step)).unwrap();
        for done in 1..=case.steps {
            assert_eq!(step.done(), done);
            let (next, outputs) = case.toy.step(&mut plain, &sequences, &tokens).unwrap();
            assert!(close(&buffers.outputs(), &outputs, by), "outputs of step {done}");
            tokens = buffers.next.to_vec1().unwrap();
            // Two tokens may be nearly as likely in a type of two bytes: the plain model goes on with the captured one's.
            assert!(case.toy.dtype != DType::F32 || tokens == next, "tokens of step {done}");
            if done < case.steps {
                cache.replay_step(&mut step).unwrap();
            }
        }
        let before: Vec<u32> = sequences.iter().map(|&sequence| cache.sequence_length(sequence)).collect();
        assert_eq!(before, case.lengths, "lengths before the commit");
        cache.commit_captured(&mut step, None).unwrap();
    })
    .unwrap();
    cache.check_invariants().unwrap();
    for &sequence in &sequences {
        assert_eq!(cache.sequence_length(sequence), plain.sequence_length(sequence));
        for layer in 0..case.toy.kinds.len() as u32 {
            let [own, expected] = [&mut cache, &mut plain].map(|cache| content(cache, sequence, layer));
            assert!(close(&own, &expected, by), "layer {layer} of {sequence}");
        }
    }
    // And on, step by step.
    let own = case.toy.step(&mut cache, &sequences, &tokens).unwrap();
    let expected = case.toy.step(&mut plain, &sequences, &tokens).unwrap();
    assert!(close(&own.1, &expected.1, by));
}

fn kinds() -> impl Strategy<Value = Vec<LayerKind>> {
    let sliding = (3..40u32, 0..4u32).prop_map(|(window, sinks)| LayerKind::Sliding { window, sinks });
    prop_oneof![
        (1..3usize).prop_map(|layers| vec![LayerKind::Full; layers]),
        sliding.prop_map(|sliding| vec![LayerKind::Full, sliding, LayerKind::SharedWith(0)]),
        (3..40u32).prop_map(|window| vec![LayerKind::Sliding { window, sinks: 0 }]),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes =
        (1..3usize, 1..4usize, prop::sample::select(vec![6usize, 8, 16]), prop::sample::select(vec![1u32, 3, 4, 16]));
    let dtype = prop::sample::select(vec![DType::F32, DType::F32, DType::BF16]);
    let lengths = prop::collection::vec(0..30u32, 1..4);
    (kinds(), sizes, dtype, any::<bool>(), lengths, 2..12u32, 0..9u32).prop_map(
        |(kinds, (kv_heads, group, dim, block_size), dtype, is_plain, lengths, steps, spare)| {
            let toy = Toy { kinds, kv_heads, group, dim, dtype, block_size };
            Case { toy, is_plain, lengths, steps, spare }
        },
    )
}

fn count() -> u32 {
    std::env::var("KVTIDE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: count().div_ceil(5), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn replays_give_what_the_model_gives_step_by_step(case in cases()) {
        agrees(&case);
    }
}

/// So many keys are cut in shares, which takes memory for a call, and this is the one call of a step that does.
#[test]
fn one_layer_over_more_keys_than_one_share_takes() {
    let toy = Toy { kinds: vec![LayerKind::Full], kv_heads: 2, group: 2, dim: 8, dtype: DType::F32, block_size: 16 };
    agrees(&Case { toy, is_plain: true, lengths: vec![600], steps: 3, spare: 1 });
}

#[test]
fn a_hundred_and_twenty_steps_over_blocks_and_a_window() {
    for is_plain in [true, false] {
        let sliding = LayerKind::Sliding { window: 37, sinks: 3 };
        let kinds = if is_plain { vec![LayerKind::Full; 2] } else { vec![sliding, LayerKind::Full] };
        let toy = Toy { kinds, kv_heads: 2, group: 2, dim: 8, dtype: DType::F32, block_size: 16 };
        agrees(&Case { toy, is_plain, lengths: vec![0, 15, 61], steps: 120, spare: 0 });
    }
}
