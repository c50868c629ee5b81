//! The tokens that can be drawn, their probabilities, and reported log-probabilities.

use kvtide_sample::{Error, Options, Peak, Row, Sampler, Workspace};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::naive::naive;
use crate::support::run;

/// A cut that falls this near to a token is not compared: the oracle rounds too.
const NEAR: f64 = 1e-9;

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -20.0f32..20.0,
        4 => (-12i32..12).prop_map(|step| step as f32 / 2.0),
        1 => Just(f32::NEG_INFINITY),
        1 => prop_oneof![Just(f32::MAX), Just(f32::MIN), Just(0.0), Just(-0.0), -1e30f32..1e30],
    ]
}

fn options(vocabulary: u32) -> impl Strategy<Value = Options> {
    let temperature = prop_oneof![1 => Just(0.0f32), 1 => Just(1.0), 4 => 0.05f32..4.0, 1 => Just(f32::MIN_POSITIVE), 1 => Just(f32::MAX)];
    let top_k = proptest::option::of(prop_oneof![1..6u32, 1..=vocabulary + 3]);
    let top_p = prop_oneof![2 => Just(1.0f32), 3 => 0.001f32..1.0];
    let min_p = prop_oneof![2 => Just(0.0f32), 2 => 0.0f32..1.0, 1 => 1e-12f32..1e-6];
    let repetition = prop_oneof![Just(1.0f32), 0.1f32..4.0];
    let (presence, frequency) = (prop_oneof![Just(0.0f32), -2.0f32..2.0], prop_oneof![Just(0.0f32), -2.0f32..2.0]);
    let amount = prop_oneof![4 => -9.0f32..9.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(f32::MAX)];
    let bias = proptest::collection::btree_map(0..vocabulary, amount, 0..4);
    let cuts = (temperature, top_k, top_p, min_p);
    (cuts, repetition, presence, frequency, bias, any::<u64>(), proptest::option::of(0u32..9)).prop_map(
        |((temperature, top_k, top_p, min_p), repetition, presence, frequency, bias, seed, logprobs)| Options {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty: repetition,
            presence_penalty: presence,
            frequency_penalty: frequency,
            bias: bias.into_iter().collect(),
            seed,
            logprobs,
        },
    )
}

#[derive(Clone, Debug)]
struct Case {
    logits: Vec<f32>,
    options: Options,
    prompt: Vec<u32>,
    generated: Vec<u32>,
    allowed: Option<Vec<bool>>,
}

fn case() -> impl Strategy<Value = Case> {
    let logits = prop_oneof![3 => vec(logit(), 1..60), 1 => vec(logit(), 200..900), 1 => vec(Just(1.5f32), 1..900)];
    logits.prop_flat_map(|logits| {
        let count = logits.len() as u32;
        let tokens = || vec(0..count + 2, 0..8);
        let allowed = proptest::option::of(vec(prop::bool::weighted(0.7), logits.len()));
        (Just(logits), options(count), tokens(), tokens(), allowed).prop_map(
            |(logits, options, prompt, generated, allowed)| Case { logits, options, prompt, generated, allowed },
        )
    })
}

/// Bits behind the vocabulary are set, since they mean nothing.
pub fn mask(allowed: &[bool]) -> Vec<u32> {
    let word = |bits: &[bool]| (0..32).fold(0, |word, bit| word | u32::from(bits.get(bit) != Some(&false)) << bit);
    allowed.chunks(32).map(word).collect()
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let Case { logits, options, prompt, generated, allowed } = case;
    let mut sampler = Sampler::new(options.clone(), prompt).expect("options");
    sampler.push(generated);
    let mut workspace = Workspace::default();
    let mask = allowed.as_deref().map(mask);
    let sampled = sampler.sample(logits, mask.as_deref(), &mut workspace);
    let known = Row::new(logits, Peak::of(logits));
    prop_assert_eq!(&sampler.sample(known, mask.as_deref(), &mut workspace), &sampled);
    let Some(wanted) = naive(logits, options, prompt, generated, allowed.as_deref()) else {
        let nothing = matches!(sampled, Err(Error::NothingAllowed { .. } | Error::NotFinite { token: None, .. }));
        prop_assert!(nothing, "{sampled:?}");
        return Ok(());
    };
    let sampled = sampled.expect("a token");
    for (id, logprob) in sampled.top.iter().copied().chain(sampled.logprob.map(|logprob| (sampled.token, logprob))) {
        let difference = (logprob - wanted.logprobs[id as usize]).abs();
        prop_assert!(
            difference < 1e-6 * (1.0 + logprob.abs()),
            "{id}: {logprob}, not {}",
            wanted.logprobs[id as usize]
        );
    }
    prop_assert_eq!(sampled.logprob.is_some(), options.logprobs.is_some());
    let mut sorted: Vec<usize> = (0..logits.len()).filter(|&id| wanted.logprobs[id] > f64::NEG_INFINITY).collect();
    let by_logit = |&one: &usize, &other: &usize| wanted.logprobs[other].total_cmp(&wanted.logprobs[one]);
    sorted.sort_by(by_logit);
    prop_assert_eq!(sampled.top.len(), sorted.len().min(options.logprobs.unwrap_or(0) as usize));
    for ((_, found), id) in sampled.top.iter().zip(&sorted) {
        prop_assert!((found - wanted.logprobs[*id]).abs() < 1e-6 * (1.0 + found.abs()), "{:?}", sampled.top);
    }
    if wanted.margin < NEAR {
        return Ok(());
    }
    let mut found = vec![0.0; logits.len()];
    for (id, probability) in sampler.probabilities(logits, mask.as_deref(), &mut workspace).expect("probabilities") {
        found[id as usize] = probability;
    }
    prop_assert!(found[sampled.token as usize] > 0.0);
    for (id, (found, wanted)) in found.iter().zip(&wanted.probabilities).enumerate() {
        prop_assert!((found - wanted).abs() < 1e-9, "token {id}: {found}, not {wanted}");
    }
    Ok(())
}

#[test]
fn what_could_be_drawn_is_what_sorting_everything_finds() {
    run("filters", 4000, case(), |case| check(&case));
}

#[test]
fn a_peak_of_other_logits_is_not_used() {
    let sampler =
        Sampler::new(Options { temperature: 0.0, logprobs: Some(1), ..Options::default() }, &[]).expect("options");
    let drawn = |row: Row<'_>| sampler.sample(row, None, &mut Workspace::default());
    let other = Peak::of(&[0.0, 1.0, 2.0]);
    assert!(other.is_some());
    for logits in [&[3.0, 1.0][..], &[3.0, 1.0, 1.0], &[f32::NAN, 1.0, 0.0]] {
        assert_eq!(drawn(Row::new(logits, other)), drawn(logits.into()));
    }
    for logits in [&[0.0, f32::NAN][..], &[0.0, f32::INFINITY], &[f32::NEG_INFINITY; 3], &[]] {
        assert_eq!(Peak::of(logits), None);
        assert!(drawn(Row::new(logits, Peak::of(logits))).is_err());
    }
}

#[test]
fn cuts_keep_the_first_of_equals() {
    let kept = |options: Options, logits: &[f32]| {
        let sampler = Sampler::new(options, &[]).expect("options");
        let found = sampler.probabilities(logits, None, &mut Workspace::default()).expect("probabilities");
        found.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    let equal = vec![2.0; 1000];
    assert_eq!(kept(Options { top_k: Some(3), ..Options::default() }, &equal), [0, 1, 2]);
    assert_eq!(kept(Options { top_p: 0.003, ..Options::default() }, &equal), [0, 1, 2, 3]);
    assert_eq!(kept(Options { top_p: 0.5, ..Options::default() }, &equal), (0..500).collect::<Vec<_>>());
    assert_eq!(kept(Options { min_p: 1.0, ..Options::default() }, &[1.0, 2.0, 1.5, 2.0]), [1, 3]);
    assert_eq!(kept(Options { top_p: 1e-9, ..Options::default() }, &[1.0, 2.0, 2.0]), [1]);
    assert_eq!(kept(Options { temperature: 0.0, ..Options::default() }, &[1.0, 2.0, 2.0]), [1]);
    assert_eq!(kept(Options { top_k: Some(2), ..Options::default() }, &[0.0, -0.0, 0.0]), [0, 1]);
}

#[test]
fn a_large_vocabulary_is_cut_as_a_small_one() {
    let logits: Vec<f32> = (0..150_001u32).map(|id| (id.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e6).collect();
    for (top_k, top_p, min_p) in [(Some(50), 1.0, 0.0), (None, 0.9, 0.0), (None, 1.0, 0.05), (Some(70_000), 0.5, 0.01)]
    {
        let options = Options { top_k, top_p, min_p, temperature: 0.7, ..Options::default() };
        let wanted = naive(&logits, &options, &[], &[], None).expect("probabilities");
        assert!(wanted.margin > NEAR);
        let sampler = Sampler::new(options, &[]).expect("options");
        let found = sampler.probabilities(&logits, None, &mut Workspace::default()).expect("probabilities");
        assert_eq!(found.len(), wanted.probabilities.iter().filter(|&&probability| probability > 1e-12).count());
        for (id, probability) in found {
            assert!((probability - wanted.probabilities[id as usize]).abs() < 1e-9);
        }
    }
}
