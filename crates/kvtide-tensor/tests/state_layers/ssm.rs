//! State space models with one decay for each head.

use kvtide_tensor::Result;
use kvtide_tensor::states::{Rows, Ssm, StepState, StepTimes, ssm};
use proptest::prelude::*;

use crate::batch::{Batch, Layer, Random, batches, check, decays, number_or_time, single_tokens_agree, time_bias};
use crate::support;

#[derive(Clone, Debug)]
struct Model {
    heads: usize,
    groups: usize,
    head_dim: usize,
    state: usize,
    softplus: bool,
    limits: Option<[f32; 2]>,
    /// The number of factors of the input in the output.
    d: usize,
    bias: bool,
    seed: u64,
}

impl Model {
    fn a(&self) -> Vec<f32> {
        decays(self.seed, self.heads)
    }

    fn d(&self) -> Vec<f32> {
        Random::new(self.seed + 1).take(self.d)
    }

    fn bias(&self) -> Vec<f32> {
        time_bias(self.seed + 2, self.heads, self.softplus)
    }
}

impl Layer for Model {
    fn inputs(&self) -> Vec<usize> {
        let of_group = self.groups * self.state;
        vec![self.heads * self.head_dim, of_group, of_group, self.heads]
    }

    fn out(&self) -> usize {
        self.heads * self.head_dim
    }

    fn state(&self) -> usize {
        self.heads * self.head_dim * self.state
    }

    fn number(&self, input: usize, random: f32) -> f32 {
        number_or_time(input, random, self.softplus)
    }

    fn step(
        &self,
        inputs: &[Vec<f32>],
        offsets: &[usize],
        states: &mut [StepState<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let (a, d, bias) = (self.a(), self.d(), self.bias());
        // Columns of one tensor, as a convolution gives them.
        let widths = self.inputs();
        let wide = widths[..3].iter().sum::<usize>() + 3;
        let tokens = *offsets.last().unwrap();
        let mut joined = vec![f32::NAN; tokens * wide];
        for (token, row) in joined.chunks_mut(wide).enumerate() {
            let mut at = 1;
            for (input, &width) in inputs.iter().zip(&widths).take(3) {
                row[at..at + width].copy_from_slice(&input[token * width..(token + 1) * width]);
                at += width;
            }
        }
        let rows = |first: usize, width: usize| Rows::strided(joined.get(first..).unwrap_or_default(), width, wide);
        let call = Ssm {
            x: rows(1, widths[0]),
            b: rows(1 + widths[0], widths[1]),
            c: rows(1 + widths[0] + widths[1], widths[2]),
            times: StepTimes {
                dt: Rows::new(&inputs[3], self.heads),
                bias: self.bias.then_some(&bias),
                softplus: self.softplus,
                limits: self.limits,
            },
            a: &a,
            d: (self.d > 0).then_some(&d),
            heads: self.heads,
            groups: self.groups,
        };
        ssm(&call, offsets, states, out)
    }

    fn oracle(&self, inputs: &[Vec<f32>], tokens: usize, state: &mut [f64]) -> Vec<f64> {
        let (dim, width) = (self.head_dim, self.state);
        let (a, d, bias) = (self.a(), self.d(), self.bias());
        let at =
            |input: usize, token: usize, index: usize| f64::from(inputs[input][token * self.inputs()[input] + index]);
        let mut out = vec![0.0; tokens * self.out()];
        for token in 0..tokens {
            for head in 0..self.heads {
                let group = head / (self.heads / self.groups) * width;
                let mut dt = at(3, token, head) + if self.bias { f64::from(bias[head]) } else { 0.0 };
                if self.softplus {
                    dt = dt.exp().ln_1p();
                }
                if let Some([low, high]) = self.limits {
                    dt = dt.clamp(f64::from(low), f64::from(high));
                }
                let decay = (dt * f64::from(a[head])).exp();
                for row in 0..dim {
                    let x = at(0, token, head * dim + row);
                    let state = &mut state[(head * dim + row) * width..][..width];
                    let mut sum = 0.0;
                    for (column, state) in state.iter_mut().enumerate() {
                        *state = *state * decay + dt * x * at(1, token, group + column);
                        sum += *state * at(2, token, group + column);
                    }
                    let d = match self.d {
                        0 => 0.0,
                        count if count == self.heads => f64::from(d[head]),
                        _ => f64::from(d[head * dim + row]),
                    };
                    out[token * self.out() + head * dim + row] = sum + d * x;
                }
            }
        }
        out
    }
}

fn models() -> impl Strategy<Value = Model> {
    let heads = prop::sample::select(&[(1usize, 1usize), (2, 1), (4, 2), (3, 3), (10, 1), (18, 2)][..]);
    let dims = || prop::sample::select(&[1usize, 3, 8, 15, 16, 17, 32, 33, 64][..]);
    let limits = prop::option::of(Just([0.05f32, 0.8]));
    (heads, dims(), dims(), limits, 0..3usize, any::<[bool; 2]>(), any::<u32>()).prop_map(
        |((heads, groups), head_dim, state, limits, d, [softplus, bias], seed)| Model {
            heads,
            groups,
            head_dim,
            state,
            softplus,
            limits,
            d: [0, heads, heads * head_dim][d],
            bias,
            seed: seed.into(),
        },
    )
}

/// As for attention; sums are over more numbers of the same size, and times are not 1 at most.
const BOUND: f64 = 1e-5;

#[test]
fn models_against_the_oracle() {
    support::run("ssm", 150, (models(), batches()), |(model, batch)| check(&model, &batch, BOUND));
}

fn granite() -> Model {
    Model { heads: 9, groups: 1, head_dim: 64, state: 128, softplus: true, limits: None, d: 9, bias: true, seed: 1 }
}

#[test]
fn heads_of_real_models_against_the_oracle() {
    let batch = Batch { seed: 6, sequences: vec![(1, true), (130, true), (0, false), (300, false), (5, true)] };
    check(&granite(), &batch, BOUND).unwrap();
}

#[test]
fn a_step_of_few_tokens_has_the_bits_of_single_tokens() {
    single_tokens_agree(&granite(), 7, 5);
}
