//! Linear attention with its four rules.

use kvtide_tensor::Result;
use kvtide_tensor::states::{CHUNKED_MIN, LinearAttention, Rows, StepState, linear_attention};
use proptest::prelude::*;

use crate::batch::{Batch, Layer, batches, check, single_tokens_agree};
use crate::support;

/// A layer of linear attention; its rule follows from the decay and from `delta`.
#[derive(Clone, Debug)]
struct Attention {
    q_heads: usize,
    k_heads: usize,
    v_heads: usize,
    k_dim: usize,
    v_dim: usize,
    /// The number of decays of a head: none, 1, or one for each element of a key.
    decays: usize,
    /// The largest logarithm of a decay.
    strength: f32,
    delta: bool,
    /// One rate for all heads.
    one_beta: bool,
    l2_norm: bool,
}

impl Attention {
    fn heads_out(&self) -> usize {
        self.q_heads.max(self.v_heads)
    }
}

impl Layer for Attention {
    fn inputs(&self) -> Vec<usize> {
        let betas = if self.one_beta { 1 } else { self.v_heads };
        vec![
            self.q_heads * self.k_dim,
            self.k_heads * self.k_dim,
            self.v_heads * self.v_dim,
            self.v_heads * self.decays,
            betas,
        ]
    }

    fn out(&self) -> usize {
        self.heads_out() * self.v_dim
    }

    fn state(&self) -> usize {
        self.v_heads * self.k_dim * self.v_dim
    }

    fn number(&self, input: usize, random: f32) -> f32 {
        match input {
            // Keys of about unit length, as models have them: with longer ones the delta rule amplifies errors.
            1 if !self.l2_norm => random * (1.5 / self.k_dim as f32).sqrt(),
            3 => -self.strength * (random + 1.0) / 2.0,
            4 => (random + 1.0) / 2.0,
            _ => random,
        }
    }

    fn step(
        &self,
        inputs: &[Vec<f32>],
        offsets: &[usize],
        states: &mut [StepState<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let widths = self.inputs();
        let rows = |input: usize| Rows::new(&inputs[input], widths[input]);
        let call = LinearAttention {
            query: rows(0),
            key: rows(1),
            value: rows(2),
            decay: (self.decays > 0).then(|| rows(3)),
            beta: self.delta.then(|| rows(4)),
            q_heads: self.q_heads,
            k_heads: self.k_heads,
            v_heads: self.v_heads,
            scale: None,
            l2_norm: self.l2_norm.then_some(1e-6),
        };
        linear_attention(&call, offsets, states, out)
    }

    fn oracle(&self, inputs: &[Vec<f32>], tokens: usize, state: &mut [f64]) -> Vec<f64> {
        let (k_dim, v_dim, heads) = (self.k_dim, self.v_dim, self.heads_out());
        let row = |input: usize, token: usize, index: usize, dim: usize| -> Vec<f64> {
            let start = token * self.inputs()[input] + index * dim;
            inputs[input][start..start + dim].iter().map(|number| f64::from(*number)).collect()
        };
        let normal = |row: Vec<f64>| {
            let norm = (row.iter().map(|x| x * x).sum::<f64>() + f64::from(1e-6f32)).sqrt();
            row.into_iter().map(|x| if self.l2_norm { x / norm } else { x }).collect::<Vec<_>>()
        };
        let mut out = vec![0.0; tokens * heads * v_dim];
        for token in 0..tokens {
            for head in 0..self.v_heads {
                let state = &mut state[head * k_dim * v_dim..(head + 1) * k_dim * v_dim];
                let key = normal(row(1, token, head / (self.v_heads / self.k_heads), k_dim));
                let mut value = row(2, token, head, v_dim);
                if self.decays > 0 {
                    let decay = row(3, token, head, self.decays);
                    for (index, state) in state.iter_mut().enumerate() {
                        *state *= decay[index / v_dim % self.decays].exp();
                    }
                }
                if self.delta {
                    let beta = row(4, token, if self.one_beta { 0 } else { head }, 1)[0];
                    for (column, value) in value.iter_mut().enumerate() {
                        let held: f64 = (0..k_dim).map(|index| state[index * v_dim + column] * key[index]).sum();
                        *value = beta * (*value - held);
                    }
                }
                for (index, state) in state.iter_mut().enumerate() {
                    *state += key[index / v_dim] * value[index % v_dim];
                }
            }
            for head in 0..heads {
                let of_state = head / (heads / self.v_heads);
                let state = &state[of_state * k_dim * v_dim..][..k_dim * v_dim];
                let query = normal(row(0, token, head / (heads / self.q_heads), k_dim));
                for column in 0..v_dim {
                    let sum: f64 = (0..k_dim).map(|index| state[index * v_dim + column] * query[index]).sum();
                    out[(token * heads + head) * v_dim + column] = sum / (k_dim as f64).sqrt();
                }
            }
        }
        out
    }
}

fn layers() -> impl Strategy<Value = Attention> {
    let heads = prop::sample::select(
        &[
            (1usize, 1usize, 1usize),
            (2, 2, 2),
            (1, 1, 4),
            (2, 2, 6),
            (4, 2, 2),
            (6, 3, 3),
            (1, 2, 2),
            (2, 1, 4),
            (1, 1, 11),
        ][..],
    );
    let dims = || prop::sample::select(&[1usize, 3, 8, 15, 16, 17, 31, 32, 40, 64][..]);
    let strength = prop::sample::select(&[0.01f32, 0.3, 3.0, 60.0][..]);
    (heads, dims(), dims(), 0..4usize, strength, any::<[bool; 3]>()).prop_map(
        |((q_heads, k_heads, v_heads), k_dim, v_dim, decays, strength, [delta, one_beta, l2_norm])| Attention {
            q_heads,
            k_heads,
            v_heads,
            k_dim,
            v_dim,
            decays: [0, 1, 1, k_dim][decays],
            strength,
            delta,
            one_beta,
            l2_norm,
        },
    )
}

/// Differences of 32-bit floats: a few units in the last place for each of the hundred sums behind a number.
const BOUND: f64 = 1e-5;

#[test]
fn all_rules_against_the_oracle() {
    support::run("linear attention", 150, (layers(), batches()), |(layer, batch)| check(&layer, &batch, BOUND));
}

#[test]
fn heads_of_real_models_against_the_oracle() {
    let layer = |q_heads, v_heads, decays, delta| Attention {
        q_heads,
        k_heads: q_heads.min(v_heads),
        v_heads,
        k_dim: 128,
        v_dim: 128,
        decays,
        strength: 0.5,
        delta,
        one_beta: false,
        l2_norm: true,
    };
    let batch = Batch { seed: 5, sequences: vec![(1, true), (130, true), (0, true), (300, false), (5, false)] };
    for layer in [layer(2, 4, 1, true), layer(4, 2, 1, true), layer(2, 2, 128, true), layer(2, 2, 1, false)] {
        check(&layer, &batch, BOUND).unwrap();
    }
}

#[test]
fn a_step_of_few_tokens_has_the_bits_of_single_tokens() {
    let layer = Attention {
        q_heads: 2,
        k_heads: 2,
        v_heads: 4,
        k_dim: 33,
        v_dim: 70,
        decays: 1,
        strength: 1.0,
        delta: true,
        one_beta: false,
        l2_norm: true,
    };
    for tokens in 1..CHUNKED_MIN {
        single_tokens_agree(&layer, tokens as u64, tokens);
        single_tokens_agree(&Attention { delta: false, q_heads: 8, ..layer.clone() }, tokens as u64, tokens);
    }
}
