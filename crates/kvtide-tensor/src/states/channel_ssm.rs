//! State space models with a state for each channel, as in Mamba 1, token by token.
//!
//! ```text
//! dt = softplus(dt + bias), between two limits
//! S = e^(dt A) S + dt B x              state [channels, state], A of the same shape
//! y = S . C + D x
//! ```

use super::rows::{Rows, check_floats, check_multiple};
use super::ssm::StepTimes;
use super::step::{Division, StepState, Unit, kernels, zeros};
use crate::base::error::Result;
use crate::device::form::Kernels;
use crate::kernels::states::channels::Channels;
use crate::kernels::states::wide;

/// The most channels of a unit.
const CHANNELS_MAX: usize = 128;

/// A call of a state space model with a state for each channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelSsm<'a> {
    /// Inputs, `[tokens, channels]`.
    pub x: Rows<'a>,
    /// `[tokens, state]`.
    pub b: Rows<'a>,
    /// `[tokens, state]`.
    pub c: Rows<'a>,
    /// The times of the tokens and channels.
    pub times: StepTimes<'a>,
    /// The logarithm of the decay for a time of 1, `[channels, state]`: negative numbers.
    pub a: &'a [f32],
    /// The factor of the inputs in the output, `[channels]`.
    pub d: Option<&'a [f32]>,
}

/// Computes a step of a state space model: `out` is `[tokens, channels]`, and each state `[channels, state]`.
pub fn channel_ssm(
    call: &ChannelSsm<'_>,
    offsets: &[usize],
    states: &mut [StepState<'_>],
    out: &mut [f32],
) -> Result<()> {
    let &ChannelSsm { x, b, c, times, a, d } = call;
    let (channels, state) = (x.width(), b.width());
    check_multiple("x", channels, 1, "1")?;
    check_multiple("b", state, 1, "1")?;
    let tokens = offsets.last().copied().unwrap_or(0);
    x.check("x", tokens, &[channels])?;
    b.check("b", tokens, &[state])?;
    c.check("c", tokens, &[state])?;
    times.check(tokens, channels)?;
    check_floats("a", a, &[channels, state])?;
    d.map_or(Ok(()), |d| check_floats("d", d, &[channels]))?;
    let division = Division { heads: channels, group: channels, most: CHANNELS_MAX, state, out: 1 };
    division.check(offsets, states, out, tokens)?;
    let (kernels, _) = kernels()?;
    let products = tokens.saturating_mul(channels).saturating_mul(state);
    division.run(offsets, states, out, products, |unit| call.run(kernels, unit))
}

impl ChannelSsm<'_> {
    fn run(&self, kernels: Kernels, mut unit: Unit<'_>) -> Result<()> {
        let (channels, mut source) = (unit.heads.clone(), unit.source);
        let (first, count, state) = (channels.start, channels.len(), self.b.width());
        let mut dt = zeros(count)?;
        for (index, token) in unit.tokens.clone().enumerate() {
            for (dt, channel) in dt.iter_mut().zip(channels.clone()) {
                *dt = self.times.biased(token, channel);
            }
            if self.times.softplus {
                wide::softplus(kernels, &mut dt);
            }
            dt.iter_mut().for_each(|dt| *dt = self.times.limited(*dt));
            let (x, out) = (self.x.part(token, first, count), &mut *unit.out[index]);
            let token = Channels {
                source: source.take(),
                target: &mut *unit.target,
                a: &self.a[first * state..(first + count) * state],
                dt: &dt,
                x,
                b: self.b.part(token, 0, state),
                c: self.c.part(token, 0, state),
                out: &mut *out,
            };
            wide::channels(kernels, token);
            if let Some(d) = self.d {
                out.iter_mut().zip(x).zip(&d[first..]).for_each(|((out, x), d)| *out += d * x);
            }
            unit.keep(index);
        }
        Ok(())
    }
}
