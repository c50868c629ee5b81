//! Seeds are reproducible: on every platform, even if tokens were drafted or computed again in between.

use kvtide_sample::{Options, Sampler, Workspace};

/// Logits of whole numbers alone, so that they are the same everywhere.
fn logits(step: u32, vocabulary: u32) -> Vec<f32> {
    let logit = |id: u32| {
        let mixed = (id ^ step.wrapping_mul(0x9E37_79B9)).wrapping_mul(2_654_435_761);
        (mixed >> 20) as f32 / 256.0 - 8.0
    };
    (0..vocabulary).map(logit).collect()
}

fn tokens(options: &Options, count: u32) -> Vec<u32> {
    let mut sampler = Sampler::new(options.clone(), &[1, 2, 3]).expect("options");
    let mut workspace = Workspace::default();
    (0..count)
        .map(|step| {
            let token = sampler.sample(&logits(step, 1000), None, &mut workspace).expect("a token").token;
            sampler.push(&[token]);
            token
        })
        .collect()
}

#[test]
fn tokens_are_those_of_every_platform() {
    let base = Options { seed: 42, ..Options::default() };
    let recorded: [(Options, [u32; 8]); 5] = [
        (base.clone(), [626, 394, 413, 826, 757, 417, 597, 865]),
        (Options { temperature: 0.7, top_p: 0.9, ..base.clone() }, [987, 630, 652, 147, 246, 679, 929, 313]),
        (Options { top_k: Some(40), min_p: 0.1, ..base.clone() }, [254, 820, 888, 647, 564, 915, 187, 813]),
        (
            Options { repetition_penalty: 1.3, frequency_penalty: 0.5, presence_penalty: 0.2, ..base.clone() },
            [626, 394, 413, 833, 757, 434, 597, 878],
        ),
        (Options { seed: u64::MAX, temperature: 2.5, ..base }, [576, 8, 58, 770, 796, 413, 997, 878]),
    ];
    for (options, wanted) in recorded {
        assert_eq!(tokens(&options, 8), wanted, "{options:?}");
    }
}

#[test]
fn another_seed_gives_other_tokens() {
    let of = |seed| tokens(&Options { seed, ..Options::default() }, 12);
    assert_ne!(of(1), of(2));
    assert_eq!(of(1), of(1));
}

#[test]
fn a_token_does_not_depend_on_how_its_candidates_were_found() {
    for seed in 0..300 {
        let row = logits(seed as u32, 777);
        let drawn = |options: Options| {
            let sampler = Sampler::new(Options { seed, temperature: 3.0, ..options }, &[]).expect("options");
            sampler.sample(&row, None, &mut Workspace::default()).expect("a token").token
        };
        let all = drawn(Options::default());
        assert_eq!(drawn(Options { top_k: Some(777), ..Options::default() }), all);
        assert_eq!(drawn(Options { min_p: f32::MIN_POSITIVE, ..Options::default() }), all);
        assert_eq!(drawn(Options { bias: vec![(3, 0.0)], ..Options::default() }), all);
    }
}

#[test]
fn what_is_taken_back_leaves_no_trace() {
    let options = Options { frequency_penalty: 0.4, repetition_penalty: 1.2, seed: 5, ..Options::default() };
    let mut sampler = Sampler::new(options, &[9, 9, 8]).expect("options");
    let mut workspace = Workspace::default();
    let row = logits(1, 50);
    sampler.push(&[4, 4, 7]);
    let (before, kept) = (sampler.sample(&row, None, &mut workspace), sampler.clone());
    sampler.push(&[4, 5, 9, 6]);
    assert_ne!(sampler.probabilities(&row, None, &mut workspace), kept.probabilities(&row, None, &mut workspace));
    sampler.truncate(6).expect("a position");
    assert_eq!(sampler.sample(&row, None, &mut workspace), before);
    assert_eq!(sampler.probabilities(&row, None, &mut workspace), kept.probabilities(&row, None, &mut workspace));
}

#[test]
fn draws_have_the_probabilities_of_their_tokens() {
    let row = logits(3, 6);
    for (options, degrees) in [(Options::default(), 5.0), (Options { top_k: Some(4), ..Options::default() }, 3.0)] {
        let options = Options { temperature: 6.0, ..options };
        let mut counts = [0.0; 6];
        const DRAWS: u64 = 60_000;
        for seed in 0..DRAWS {
            let sampler = Sampler::new(Options { seed, ..options.clone() }, &[]).expect("options");
            counts[sampler.sample(&row, None, &mut Workspace::default()).expect("a token").token as usize] += 1.0;
        }
        let wanted = crate::naive::naive(&row, &options, &[], &[], None).expect("probabilities").probabilities;
        let distance = crate::verify::chi_square(&counts, &wanted, DRAWS as f64);
        assert!(distance < degrees + 6.0 * (2.0f64 * degrees).sqrt(), "{distance} with {degrees} degrees");
    }
}
