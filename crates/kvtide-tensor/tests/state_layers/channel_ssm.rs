//! State space models with a state for each channel.

use kvtide_tensor::Result;
use kvtide_tensor::states::{ChannelSsm, Rows, StepState, StepTimes, channel_ssm};
use proptest::prelude::*;

use crate::batch::{Layer, Random, batches, check, decays, number_or_time, single_tokens_agree, time_bias};
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
        decays(self.seed, self.channels * self.state)
    }

    fn d(&self) -> Vec<f32> {
        Random::new(self.seed + 1).take(self.channels)
    }

    fn bias(&self) -> Vec<f32> {
        time_bias(self.seed + 2, self.channels, self.softplus)
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
