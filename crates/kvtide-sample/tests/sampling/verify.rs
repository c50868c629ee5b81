//! Drafts of prompt lookup change no token, and drafts of a second model change no probability.

use kvtide_sample::{Drafts, Options, PromptLookup, Sampler, Workspace};
use proptest::prelude::*;

use crate::naive::naive;
use crate::support::run;

const VOCABULARY: usize = 6;

/// A model: logits that depend on the last token, and on the position a little.
fn model(which: u32, tokens: &[u32]) -> Vec<f32> {
    let last = tokens.last().copied().unwrap_or(VOCABULARY as u32);
    let logit = |id: u32| {
        let mixed = (id + 10 * last + 100 * which + 1).wrapping_mul(2_654_435_761);
        (mixed >> 24) as f32 / 80.0
    };
    (0..VOCABULARY as u32).map(logit).collect()
}

/// The distance of counts from their probabilities: about the number of degrees of freedom if they agree.
pub fn chi_square(counts: &[f64], probabilities: &[f64], draws: f64) -> f64 {
    let each = counts.iter().zip(probabilities).map(|(count, probability)| {
        let wanted = probability * draws;
        if wanted == 0.0 {
            assert_eq!(*count, 0.0, "something that cannot be was drawn");
            return 0.0;
        }
        (count - wanted).powi(2) / wanted
    });
    each.sum()
}

/// Tokens that a second model drafts, and its logits.
fn draft(sampler: &Sampler, prompt: &[u32], count: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
    let (mut drafter, mut workspace) = (sampler.drafter(), Workspace::default());
    let (mut tokens, mut rows) = (prompt.to_vec(), Vec::new());
    for _ in 0..count {
        let row = model(2, &tokens);
        let token = drafter.sample(&row, None, &mut workspace).expect("a token").token;
        drafter.push(&[token]);
        tokens.push(token);
        rows.push(row);
    }
    (tokens.split_off(prompt.len()), rows)
}

/// Two tokens behind `prompt`, drafted by a second model and verified; steps until there are two.
fn two_tokens(sampler: &mut Sampler, prompt: &[u32], drafted: usize) -> [u32; 2] {
    let mut tokens = prompt.to_vec();
    let mut workspace = Workspace::default();
    while tokens.len() < prompt.len() + 2 {
        let (drafts, logits) = draft(sampler, &tokens, drafted);
        let all = [&tokens[..], &drafts].concat();
        let rows: Vec<Vec<f32>> = (0..=drafted).map(|place| model(1, &all[..tokens.len() + place])).collect();
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let logits: Vec<&[f32]> = logits.iter().map(Vec::as_slice).collect();
        let found = sampler.verify(&rows, &drafts, Drafts::Logits(&logits), &[], &mut workspace).expect("tokens");
        let found: Vec<u32> = found.iter().map(|sampled| sampled.token).collect();
        sampler.push(&found);
        tokens.extend(found);
    }
    [tokens[prompt.len()], tokens[prompt.len() + 1]]
}

/// The probability of each pair of tokens without drafts.
fn pairs(options: &Options, prompt: &[u32]) -> Vec<f64> {
    let first = naive(&model(1, prompt), options, prompt, &[], None).expect("probabilities").probabilities;
    let of = |token: usize| {
        let tokens = [prompt, &[token as u32]].concat();
        naive(&model(1, &tokens), options, prompt, &[token as u32], None).expect("probabilities").probabilities
    };
    (0..VOCABULARY)
        .flat_map(|token| of(token).into_iter().map(move |second| (token, second)))
        .map(|(token, second)| first[token] * second)
        .collect()
}

fn limit(probabilities: &[f64]) -> f64 {
    let degrees = probabilities.iter().filter(|&&probability| probability > 0.0).count() as f64 - 1.0;
    // Farther than one in a hundred thousand.
    degrees + 5.0 * (2.0 * degrees).sqrt() + 8.0
}

#[test]
fn drafts_of_a_second_model_leave_the_distribution_as_it_is() {
    const DRAWS: u64 = 40_000;
    let prompt = [3, 1];
    let base = Options::default();
    let cases = [
        base.clone(),
        Options { temperature: 0.6, top_k: Some(4), ..base.clone() },
        Options { top_p: 0.8, frequency_penalty: 0.9, repetition_penalty: 1.4, ..base.clone() },
        Options { temperature: 1.7, min_p: 0.2, bias: vec![(2, 1.0), (4, f32::NEG_INFINITY)], ..base },
    ];
    for options in cases {
        let wanted = pairs(&options, &prompt);
        for drafted in [1, 3] {
            let mut counts = vec![0.0; VOCABULARY * VOCABULARY];
            for seed in 0..DRAWS {
                let mut sampler = Sampler::new(Options { seed, ..options.clone() }, &prompt).expect("options");
                let [first, second] = two_tokens(&mut sampler, &prompt, drafted);
                counts[first as usize * VOCABULARY + second as usize] += 1.0;
            }
            let distance = chi_square(&counts, &wanted, DRAWS as f64);
            assert!(distance < limit(&wanted), "{distance} for {options:?} with {drafted} drafted");
        }
    }
}

#[test]
fn the_comparison_tells_a_wrong_rule() {
    // A rejected token is drawn anew from all of p, and not from what p has more than q.
    const DRAWS: u64 = 40_000;
    let prompt = [3, 1];
    let row = model(1, &prompt);
    let (mut counts, mut workspace) = (vec![0.0; VOCABULARY], Workspace::default());
    let wanted = naive(&row, &Options::default(), &[], &[], None).expect("probabilities").probabilities;
    for seed in 0..DRAWS {
        let sampler = Sampler::new(Options { seed, ..Options::default() }, &prompt).expect("options");
        let (drafts, logits) = draft(&sampler, &prompt, 1);
        let found = sampler.verify(&[&row, &row], &drafts, Drafts::Logits(&[&logits[0]]), &[], &mut workspace);
        let first = found.expect("tokens")[0].token;
        let anew = || sampler.sample(&row, None, &mut Workspace::default()).expect("a token").token;
        counts[if first == drafts[0] { first } else { anew() } as usize] += 1.0;
    }
    let distance = chi_square(&counts, &wanted, DRAWS as f64);
    assert!(distance > 5.0 * limit(&wanted), "{distance} is not far");
}

/// Tokens without drafts.
fn plain(options: &Options, prompt: &[u32], count: usize) -> Vec<u32> {
    let (mut sampler, mut workspace) = (Sampler::new(options.clone(), prompt).expect("options"), Workspace::default());
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let token = sampler.sample(&model(1, &tokens), None, &mut workspace).expect("a token").token;
        sampler.push(&[token]);
        tokens.push(token);
    }
    tokens.split_off(prompt.len())
}

/// The same with drafts from the tokens so far, and how many of them stayed.
fn looked_up(options: &Options, prompt: &[u32], count: usize) -> (Vec<u32>, usize) {
    let (mut sampler, mut workspace) = (Sampler::new(options.clone(), prompt).expect("options"), Workspace::default());
    let mut lookup = PromptLookup::new(1, 3).expect("lengths");
    lookup.push(prompt);
    let (mut tokens, mut stayed) = (prompt.to_vec(), 0);
    while tokens.len() < prompt.len() + count {
        let drafts = lookup.draft(4);
        let all = [&tokens[..], &drafts].concat();
        let rows: Vec<Vec<f32>> = (0..=drafts.len()).map(|place| model(1, &all[..tokens.len() + place])).collect();
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let found = sampler.verify(&rows, &drafts, Drafts::Tokens, &[], &mut workspace).expect("tokens");
        let found: Vec<u32> = found.iter().map(|sampled| sampled.token).collect();
        stayed += found.len() - 1;
        sampler.push(&found);
        lookup.push(&found);
        tokens.extend(found);
    }
    tokens.truncate(prompt.len() + count);
    (tokens.split_off(prompt.len()), stayed)
}

#[test]
fn given_drafts_change_no_token() {
    let temperature = prop_oneof![Just(0.0f32), 0.1f32..2.0];
    let prompt = proptest::collection::vec(0..VOCABULARY as u32, 1..12);
    let cases = (temperature, prompt, any::<u64>(), prop_oneof![Just(0.0f32), -1.0f32..1.0]);
    run("given drafts", 300, cases, |(temperature, prompt, seed, frequency_penalty)| {
        let options = Options { temperature, seed, frequency_penalty, ..Options::default() };
        prop_assert_eq!(looked_up(&options, &prompt, 40).0, plain(&options, &prompt, 40));
        Ok(())
    });
    let (_, stayed) = looked_up(&Options { temperature: 0.0, ..Options::default() }, &[1, 2, 3], 100);
    assert!(stayed > 50, "{stayed} drafted tokens stayed");
}

#[test]
fn greedy_tokens_are_those_without_a_second_model() {
    let options = Options { temperature: 0.0, frequency_penalty: 0.3, ..Options::default() };
    for start in 0..VOCABULARY as u32 {
        let mut sampler = Sampler::new(options.clone(), &[start]).expect("options");
        assert_eq!(two_tokens(&mut sampler, &[start], 3)[..], plain(&options, &[start], 2)[..]);
    }
}

#[test]
fn masks_are_those_of_their_rows() {
    let sampler = Sampler::new(Options { temperature: 0.0, ..Options::default() }, &[]).expect("options");
    let rows: [&[f32]; 3] = [&[1.0, 2.0, 3.0]; 3];
    let masks: [Option<&[u32]>; 3] = [Some(&[0b001]), Some(&[0b011]), None];
    let mut workspace = Workspace::default();
    let found = sampler.verify(&rows, &[0, 1], Drafts::Tokens, &masks, &mut workspace).expect("tokens");
    assert_eq!(found.iter().map(|sampled| sampled.token).collect::<Vec<_>>(), [0, 1, 2]);
    let found = sampler.verify(&rows, &[2, 1], Drafts::Tokens, &masks, &mut workspace).expect("tokens");
    assert_eq!(found.iter().map(|sampled| sampled.token).collect::<Vec<_>>(), [0]);
}
