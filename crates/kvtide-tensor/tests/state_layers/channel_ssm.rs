//! State space models with a state for each channel.

use kvtide_tensor::Result;
use kvtide_tensor::states::{ChannelSsm, Rows, StepState, StepTimes, channel_ssm};
use proptest::prelude::*;

use crate::batch::{Layer, Random, batches, check, single_tokens_agree};
use crate::support;

#[derive(Clone, Debug)]
struct Model {
    channels: usize,
    state: usize,
    softplus: bool,
    d: bool,
    bias: bool,
    seed: u64,
}

impl Model {
    fn a(&self) -> Vec<f32> {
        Random::new(self.seed).take(self.channels * self.state).iter().map(|a| -4.0 * (a + 1.01)).collect()
    }

    fn d(&self) -> Vec<f32> {
        Random::new(self.seed + 1).take(self.channels)
    }

    /// Numbers that leave times positive: a state grows in a negative time.
    fn bias(&self) -> Vec<f32> {
        let bias = Random::new(self.seed + 2).take(self.channels);
        bias.into_iter().map(|bias| if self.softplus { bias } else { bias.abs() / 4.0 }).collect()
    }
}

impl Layer for Model {
    fn inputs(&self) -> Vec<usize> {
        vec![self.channels, self.state, self.state, self.channels]
    }

    fn out(&self) -> usize {
        self.channels
    }

    fn state(&self) -> usize {
        self.channels * self.state
    }

    fn number(&self, input: usize, random: f32) -> f32 {
        if input == 3 && !self.softplus { (random + 1.0) / 8.0 } else { random }
    }

    fn step(
        &self,
        inputs: &[Vec<f32>],
        offsets: &[usize],
        states: &mut [StepState<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let (a, d, bias) = (self.a(), self.d(), self.bias());
        let call = ChannelSsm {
            x: Rows::new(&inputs[0], self.channels),
            b: Rows::new(&inputs[1], self.state),
            c: Rows::new(&inputs[2], self.state),
            times: StepTimes {
                dt: Rows::new(&inputs[3], self.channels),
                bias: self.bias.then_some(&bias),
                softplus: self.softplus,
                limits: None,
            },
            a: &a,
            d: self.d.then_some(&d),
        };
        channel_ssm(&call, offsets, states, out)
    }

    fn oracle(&self, inputs: &[Vec<f32>], tokens: usize, state: &mut [f64]) -> Vec<f64> {
        let (a, d, bias) = (self.a(), self.d(), self.bias());
        let at =
            |input: usize, token: usize, index: usize| f64::from(inputs[input][token * self.inputs()[input] + index]);
        let mut out = Vec::new();
        for token in 0..tokens {
            for channel in 0..self.channels {
                let mut dt = at(3, token, channel) + if self.bias { f64::from(bias[channel]) } else { 0.0 };
                if self.softplus {
                    dt = dt.exp().ln_1p();
                }
                let x = at(0, token, channel);
                let mut sum = if self.d { f64::from(d[channel]) * x } else { 0.0 };
                for index in 0..self.state {
                    let place = channel * self.state + index;
                    state[place] = state[place] * (dt * f64::from(a[place])).exp() + dt * x * at(1, token, index);
                    sum += state[place] * at(2, token, index);
                }
                out.push(sum);
            }
        }
        out
    }
}

fn models() -> impl Strategy<Value = Model> {
    let channels = prop::sample::select(&[1usize, 5, 64, 129, 300][..]);
    let states = prop::sample::select(&[1usize, 4, 15, 16, 17, 33][..]);
    (channels, states, any::<[bool; 3]>(), any::<u32>()).prop_map(|(channels, state, [softplus, d, bias], seed)| {
        Model { channels, state, softplus, d, bias, seed: seed.into() }
    })
}

#[test]
fn models_against_the_oracle() {
    support::run("channel_ssm", 60, (models(), batches()), |(model, batch)| check(&model, &batch, 1e-5));
}

#[test]
fn a_step_has_the_bits_of_single_tokens() {
    let model = Model { channels: 130, state: 16, softplus: true, d: true, bias: true, seed: 3 };
    single_tokens_agree(&model, 4, 20);
}
