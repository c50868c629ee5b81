//! Short convolutions.

use kvtide_tensor::Result;
use kvtide_tensor::states::{Order, ShortConv, StepState, short_conv};
use proptest::prelude::*;

use crate::batch::{Batch, Layer, Random, batches, check, single_tokens_agree};
use crate::support;

#[derive(Clone, Debug)]
struct Conv {
    channels: usize,
    kernel: usize,
    columns: usize,
    rows: Order,
    states: Order,
    bias: bool,
    silu: bool,
    seed: u64,
}

impl Conv {
    fn weight(&self) -> Vec<f32> {
        Random::new(self.seed).take(self.channels * self.kernel)
    }

    fn bias(&self) -> Vec<f32> {
        Random::new(self.seed + 1).take(self.channels)
    }

    /// The place of a state's number.
    fn place(&self, channel: usize, column: usize) -> usize {
        match self.states {
            Order::Channels => channel * self.columns + column,
            Order::Tokens => column * self.channels + channel,
        }
    }
}

/// Rows as columns.
fn turned(floats: &[f32], width: usize) -> Vec<f32> {
    (0..width).flat_map(|column| floats.iter().skip(column).step_by(width).copied()).collect()
}

impl Layer for Conv {
    fn inputs(&self) -> Vec<usize> {
        vec![self.channels]
    }

    fn out(&self) -> usize {
        self.channels
    }

    fn state(&self) -> usize {
        self.channels * self.columns
    }

    fn step(
        &self,
        inputs: &[Vec<f32>],
        offsets: &[usize],
        states: &mut [StepState<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let (weight, bias) = (self.weight(), self.bias());
        let call = ShortConv {
            weight: &weight,
            bias: self.bias.then_some(&bias),
            channels: self.channels,
            kernel: self.kernel,
            columns: self.columns,
            rows: self.rows,
            states: self.states,
            silu: self.silu,
        };
        match self.rows {
            Order::Tokens => short_conv(&call, &inputs[0], offsets, states, out),
            Order::Channels => {
                let mut columns = out.to_vec();
                short_conv(&call, &turned(&inputs[0], self.channels), offsets, states, &mut columns)?;
                out.copy_from_slice(&turned(&columns, (out.len() / self.channels).max(1)));
                Ok(())
            }
        }
    }

    fn oracle(&self, inputs: &[Vec<f32>], tokens: usize, state: &mut [f64]) -> Vec<f64> {
        let (weight, bias, channels) = (self.weight(), self.bias(), self.channels);
        let mut out = vec![0.0; tokens * channels];
        for channel in 0..channels {
            let mut all: Vec<f64> = (0..self.columns).map(|column| state[self.place(channel, column)]).collect();
            for token in 0..tokens {
                all.push(inputs[0][token * channels + channel].into());
                let last = &all[all.len() - self.kernel..];
                let weights = &weight[channel * self.kernel..];
                let mut sum: f64 = last.iter().zip(weights).map(|(x, weight)| x * f64::from(*weight)).sum();
                if self.bias {
                    sum += f64::from(bias[channel]);
                }
                out[token * channels + channel] = if self.silu { sum / (1.0 + (-sum).exp()) } else { sum };
            }
            let kept = &all[all.len() - self.columns..];
            (0..self.columns).for_each(|column| state[self.place(channel, column)] = kept[column]);
        }
        out
    }
}

fn convs() -> impl Strategy<Value = Conv> {
    let channels = prop::sample::select(&[1usize, 5, 16, 64, 65, 200, 600][..]);
    let orders = || prop::sample::select(&[Order::Channels, Order::Tokens][..]);
    (channels, 2..9usize, 0..3usize, orders(), orders(), any::<[bool; 2]>(), any::<u32>()).prop_map(
        |(channels, kernel, more, rows, states, [bias, silu], seed)| Conv {
            channels,
            kernel,
            columns: kernel - 1 + more,
            rows,
            states,
            bias,
            silu,
            seed: seed.into(),
        },
    )
}

#[test]
fn convolutions_against_the_oracle() {
    support::run("short_conv", 150, (convs(), batches()), |(conv, batch)| check(&conv, &batch, 1e-6));
}

#[test]
fn the_channels_of_a_model_against_the_oracle() {
    let batch = Batch { seed: 2, sequences: vec![(200, true), (1, true), (0, true), (90, false)] };
    for rows in [Order::Channels, Order::Tokens] {
        let (states, columns) = (Order::Channels, 3);
        let conv = Conv { channels: 2048, kernel: 4, columns, rows, states, bias: true, silu: true, seed: 8 };
        check(&conv, &batch, 1e-6).unwrap();
    }
}

#[test]
fn a_step_has_the_bits_of_single_tokens() {
    for rows in [Order::Channels, Order::Tokens] {
        let conv = Conv {
            channels: 70,
            kernel: 4,
            columns: 3,
            rows,
            states: Order::Channels,
            bias: true,
            silu: true,
            seed: 9,
        };
        single_tokens_agree(&conv, 1, 20);
    }
}
