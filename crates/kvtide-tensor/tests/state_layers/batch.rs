//! A ragged batch of a layer, and the checks that all layers have in common.

use std::ops::Range;

use kvtide_tensor::Result;
use kvtide_tensor::runtime::{Kernels, with_host, with_kernels};
use kvtide_tensor::states::StepState;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

/// A layer of some sizes, with its weights.
pub trait Layer {
    /// The widths of its inputs, each with a row for each token.
    fn inputs(&self) -> Vec<usize>;
    fn out(&self) -> usize;
    fn state(&self) -> usize;
    /// A number of an input, made of a random number between -1 and 1.
    fn number(&self, _input: usize, random: f32) -> f32 {
        random
    }
    fn step(&self, inputs: &[Vec<f32>], offsets: &[usize], states: &mut [StepState<'_>], out: &mut [f32])
    -> Result<()>;
    /// The output of one sequence by the layer's formulas; changes the state.
    fn oracle(&self, inputs: &[Vec<f32>], tokens: usize, state: &mut [f64]) -> Vec<f64>;
}

/// A stream of numbers between -1 and 1, the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    pub fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// Logarithms of the decays of a state space model: negative numbers.
pub fn decays(seed: u64, count: usize) -> Vec<f32> {
    Random::new(seed).take(count).iter().map(|a| -4.0 * (a + 1.01)).collect()
}

/// Biases of times that leave the times positive: a state grows in a negative time.
pub fn time_bias(seed: u64, count: usize, softplus: bool) -> Vec<f32> {
    let bias = Random::new(seed).take(count);
    bias.into_iter().map(|bias| if softplus { bias } else { bias.abs() / 4.0 }).collect()
}

/// A number of an input of a state space model, whose input 3 has the times.
pub fn number_or_time(input: usize, random: f32, softplus: bool) -> f32 {
    if input == 3 && !softplus { (random + 1.0) / 8.0 } else { random }
}

/// The sequences of a step: tokens, and whether they have a state before it.
#[derive(Clone, Debug)]
pub struct Batch {
    pub seed: u64,
    pub sequences: Vec<(usize, bool)>,
}

/// Batches with empty shares, single tokens and the borders of chunks.
pub fn batches() -> impl Strategy<Value = Batch> {
    let borders = prop::sample::select(&[0usize, 1, 2, 7, 8, 9, 15, 24, 25, 63, 64, 65, 97, 127, 128, 129][..]);
    let tokens = prop_oneof![2 => borders, 1 => Just(1usize), 1 => 0..150usize];
    let sequences = prop::collection::vec((tokens, any::<bool>()), 1..5);
    (any::<u64>(), sequences).prop_map(|(seed, sequences)| Batch { seed, sequences })
}

/// One sequence's inputs, and its state.
#[derive(Clone)]
struct Sequence {
    tokens: usize,
    inputs: Vec<Vec<f32>>,
    state: Option<Vec<f32>>,
}

impl Sequence {
    /// Some of its tokens, after another state.
    fn cut(&self, layer: &dyn Layer, tokens: Range<usize>, state: Option<Vec<f32>>) -> Sequence {
        let rows = self.inputs.iter().zip(layer.inputs());
        let inputs = rows.map(|(input, width)| input[tokens.start * width..tokens.end * width].to_vec()).collect();
        Sequence { tokens: tokens.len(), inputs, state }
    }
}

/// The outputs and states of sequences.
type Results = Vec<(Vec<f32>, Vec<f32>)>;

impl Batch {
    fn sequences(&self, layer: &dyn Layer) -> Vec<Sequence> {
        let mut random = Random::new(self.seed);
        let mut sequence = |&(tokens, has_state): &(usize, bool)| Sequence {
            tokens,
            inputs: (layer.inputs().into_iter().enumerate())
                .map(|(input, width)| (0..tokens * width).map(|_| layer.number(input, random.next())).collect())
                .collect(),
            state: has_state.then(|| random.take(layer.state())),
        };
        self.sequences.iter().map(&mut sequence).collect()
    }
}

/// Runs a step with these kernels on so many threads.
fn run(layer: &dyn Layer, kernels: Kernels, threads: usize, sequences: &[Sequence]) -> Results {
    run_keeping(layer, kernels, threads, sequences, false).0
}

/// Runs a step that may keep the state after each token but the last.
fn run_keeping(
    layer: &dyn Layer,
    kernels: Kernels,
    threads: usize,
    sequences: &[Sequence],
    keeps: bool,
) -> (Results, Vec<Vec<Vec<f32>>>) {
    let mut offsets = vec![0];
    sequences.iter().for_each(|of| offsets.push(offsets.last().unwrap() + of.tokens));
    let joined = |input: usize| sequences.iter().flat_map(|of| of.inputs[input].iter().copied()).collect();
    let inputs: Vec<Vec<f32>> = (0..layer.inputs().len()).map(joined).collect();
    // Memory that was used before: whatever is not written is seen.
    let mut targets = vec![vec![f32::NAN; layer.state()]; sequences.len()];
    let mut out = vec![f32::NAN; offsets.last().unwrap() * layer.out()];
    let between = |of: &Sequence| if keeps { of.tokens.saturating_sub(1) } else { 0 };
    let mut kept: Vec<_> = sequences.iter().map(|of| vec![vec![f32::NAN; layer.state()]; between(of)]).collect();
    let places = sequences.iter().zip(&mut targets).zip(&mut kept);
    let mut states: Vec<_> = places
        .map(|((of, target), kept)| {
            let drafted = kept.iter_mut().map(|kept| &mut kept[..]).collect();
            StepState { source: of.state.as_deref(), target, drafted }
        })
        .collect();
    let share = |count: usize, call: &(dyn Fn(usize) + Sync)| {
        std::thread::scope(|scope| (0..count).for_each(|place| drop(scope.spawn(move || call(place)))));
    };
    let step = || with_host(threads, share, || layer.step(&inputs, &offsets, &mut states, &mut out));
    with_kernels(kernels, step).unwrap().unwrap();
    let outs = offsets.windows(2).map(|span| out[span[0] * layer.out()..span[1] * layer.out()].to_vec());
    (outs.zip(targets).collect(), kept)
}

/// Fails unless a step that keeps the state after each token keeps those of the sequences that end there.
fn check_kept(layer: &dyn Layer, kernels: Kernels, sequences: &[Sequence]) -> Result<(), TestCaseError> {
    let short: Vec<Sequence> = sequences.iter().filter(|of| of.tokens <= KEPT_MAX).cloned().collect();
    let (found, kept) = run_keeping(layer, kernels, 3, &short, true);
    for ((of, kept), (out, state)) in short.iter().zip(kept).zip(found) {
        for (tokens, state) in (1..).zip(kept.iter().chain([&state])).take(of.tokens) {
            let cut = of.cut(layer, 0..tokens, of.state.clone());
            let (alone, _) = run_keeping(layer, kernels, 1, &[cut], true);
            let shown = vec![(out[..tokens * layer.out()].to_vec(), state.clone())];
            prop_assert!(bits(&alone) == bits(&shown), "{kernels}: the state after {tokens} of {} tokens", of.tokens);
        }
    }
    Ok(())
}

/// The most tokens of a sequence whose states are kept after each of them.
const KEPT_MAX: usize = 25;

fn bits(results: &Results) -> Vec<(Vec<u32>, Vec<u32>)> {
    let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect();
    results.iter().map(|(out, state)| (bits(out), bits(state))).collect()
}

/// The largest difference, relative to the largest number and 1.
fn off(found: &[f32], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(1.0, |largest: f64, number| largest.max(number.abs()));
    let differences =
        found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).abs() / largest);
    // Not `max`, which drops NaN.
    differences.fold(0.0, |most, off| if off.is_nan() || off > most { off } else { most })
}

/// Fails unless the layer's results are within `bound` of the oracle's, and alone, in a batch, and cut.
pub fn check(layer: &dyn Layer, batch: &Batch, bound: f64) -> Result<(), TestCaseError> {
    let sequences = batch.sequences(layer);
    let expected: Vec<_> = (sequences.iter())
        .map(|of| {
            let mut state = vec![0.0; layer.state()];
            let given = of.state.iter().flatten();
            state.iter_mut().zip(given).for_each(|(to, from)| *to = f64::from(*from));
            (layer.oracle(&of.inputs, of.tokens, &mut state), state)
        })
        .collect();
    let all = Kernels::supported().filter(|kernels| *kernels != Kernels::Opaque);
    for kernels in all {
        let found = run(layer, kernels, 1, &sequences);
        for (index, ((out, state), (of_out, of_state))) in found.iter().zip(&expected).enumerate() {
            let (out, state) = (off(out, of_out), off(state, of_state));
            prop_assert!(out <= bound, "{kernels}: the output of sequence {index} is off by {out:e}");
            prop_assert!(state <= bound, "{kernels}: the state of sequence {index} is off by {state:e}");
        }
        for threads in [2, 3] {
            prop_assert!(
                bits(&run(layer, kernels, threads, &sequences)) == bits(&found),
                "{kernels}, {threads} threads"
            );
        }
        for (index, of) in sequences.iter().enumerate() {
            let alone = run(layer, kernels, 2, std::slice::from_ref(of));
            prop_assert!(bits(&alone)[0] == bits(&found)[index], "{kernels}: sequence {index} differs when alone");
            let cut = cut(layer, kernels, of, Random::new(batch.seed ^ index as u64).next());
            let (out, state) = (off(&cut.0, &expected[index].0), off(&cut.1, &expected[index].1));
            prop_assert!(out <= bound && state <= bound, "{kernels}: sequence {index} is off by {out:e} when cut");
        }
        check_kept(layer, kernels, &sequences)?;
    }
    Ok(())
}

/// The results of a sequence that is cut in two somewhere.
fn cut(layer: &dyn Layer, kernels: Kernels, of: &Sequence, random: f32) -> (Vec<f32>, Vec<f32>) {
    let place = (((random + 1.0) / 2.0 * of.tokens as f32) as usize).min(of.tokens);
    let (mut out, state) = run(layer, kernels, 1, &[of.cut(layer, 0..place, of.state.clone())]).remove(0);
    let (rest, state) = run(layer, kernels, 1, &[of.cut(layer, place..of.tokens, Some(state))]).remove(0);
    out.extend(rest);
    (out, state)
}

/// The bits of a step with so many tokens, and of the same tokens one by one.
pub fn single_tokens_agree(layer: &dyn Layer, seed: u64, tokens: usize) {
    let batch = Batch { seed, sequences: vec![(tokens, true)] };
    let whole = batch.sequences(layer).remove(0);
    for kernels in Kernels::supported() {
        let expected = run(layer, kernels, 1, std::slice::from_ref(&whole));
        let (mut out, mut state) = (Vec::new(), whole.state.clone().unwrap());
        let kept = run_keeping(layer, kernels, 1, std::slice::from_ref(&whole), true);
        assert_eq!(bits(&kept.0), bits(&expected), "{kernels}: the states between the tokens are kept");
        for token in 0..tokens {
            let one = run(layer, kernels, 2, &[whole.cut(layer, token..token + 1, Some(state))]).remove(0);
            out.extend(one.0);
            state = one.1;
            assert!(kept.1[0].get(token).is_none_or(|kept| *kept == state), "{kernels}: the state after token {token}");
        }
        assert_eq!(bits(&vec![(out, state)]), bits(&expected), "{kernels}");
    }
}
