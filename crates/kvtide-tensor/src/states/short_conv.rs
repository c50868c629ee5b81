//! A causal depthwise convolution with a short kernel, whose state has the last columns of its input.
//!
//! ```text
//! input   state: x x x | a b c d        kernel 4: output of b = w0 x + w1 x + w2 a + w3 b + bias
//! state after:             b c d        the last columns of both, of which there may be more than the kernel needs
//! ```
//!
//! With rows of channels (`Order::Channels`), a unit has some channels, and sums are vectors of tokens; with rows of tokens
//! it has some tokens, and sums are vectors of channels. O(tokens * channels * kernel).

use std::ops::Range;

use super::rows::{check_floats, check_size, floats_of};
use super::step::{StepState, check_offsets, check_states, kernels, zeros};
use crate::base::error::Result;
use crate::base::memory::reserved;
use crate::base::threads::{threads, try_share_all};
use crate::device::form::Kernels;
use crate::kernels::states::wide;

/// The order of dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `[channels, columns]`: a row for each channel.
    Channels,
    /// `[columns, channels]`: a row for each token or column of the state.
    Tokens,
}

/// A call of a short convolution.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv<'a> {
    /// The weights, `[channels, kernel]`.
    pub weight: &'a [f32],
    /// Added to the output, `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// The number of channels.
    pub channels: usize,
    /// The number of weights of a channel, from 2 to 8.
    pub kernel: usize,
    /// The number of columns of a state, at least `kernel - 1`.
    pub columns: usize,
    /// The order of the input and the output.
    pub rows: Order,
    /// The order of the states.
    pub states: Order,
    /// Applies `x / (1 + e^-x)` to the output.
    pub silu: bool,
}

/// The largest kernel.
const KERNEL_MAX: usize = 8;

/// The channels of a unit; the tokens of a unit.
const CHANNELS_MAX: usize = 64;
const TOKENS_MAX: usize = 64;

/// The number of multiplications below which waking another thread does not pay.
const ALONE_MAX: usize = 1 << 18;

/// Computes a step of a convolution: `x` and `out` have all tokens of all sequences, `[channels, tokens]` or
/// `[tokens, channels]`; each state is `[channels, columns]` or `[columns, channels]`.
pub fn short_conv(
    call: &ShortConv<'_>,
    x: &[f32],
    offsets: &[usize],
    states: &mut [StepState<'_>],
    out: &mut [f32],
) -> Result<()> {
    let &ShortConv { weight, bias, channels, kernel, columns, .. } = call;
    check_size("channels", channels, 1..=usize::MAX)?;
    check_size("kernel", kernel, 2..=KERNEL_MAX)?;
    check_size("columns", columns, kernel - 1..=usize::MAX)?;
    let tokens = offsets.last().copied().unwrap_or(0);
    check_floats("weight", weight, &[channels, kernel])?;
    bias.map_or(Ok(()), |bias| check_floats("bias", bias, &[channels]))?;
    check_floats("x", x, &[tokens, channels])?;
    check_floats("out", out, &[tokens, channels])?;
    check_offsets(offsets, states.len(), tokens)?;
    check_states(offsets, states, floats_of(&[channels, columns]))?;
    let (kernels, _) = kernels()?;
    let step = Step { call, kernels, x, tokens };
    match call.rows {
        Order::Channels => step.run_channels(offsets, states, out)?,
        Order::Tokens => step.run_tokens(offsets, states, out)?,
    }
    for (state, span) in states.iter_mut().zip(offsets.windows(2)) {
        let StepState { source, target, drafted } = state;
        drafted.iter_mut().zip(span[0] + 1..).for_each(|(to, end)| step.keep(*source, to, span[0]..end));
        step.keep(*source, target, span[0]..span[1]);
    }
    Ok(())
}

struct Step<'a> {
    call: &'a ShortConv<'a>,
    kernels: Kernels,
    x: &'a [f32],
    /// The number of all tokens.
    tokens: usize,
}

/// Some channels of a sequence, or some tokens of it; its rows of the output.
struct Part<'a> {
    span: Range<usize>,
    source: Option<&'a [f32]>,
    some: Range<usize>,
    out: Vec<&'a mut [f32]>,
}

impl Step<'_> {
    /// One number of the input.
    fn input(&self, channel: usize, token: usize) -> f32 {
        match self.call.rows {
            Order::Channels => self.x[channel * self.tokens + token],
            Order::Tokens => self.x[token * self.call.channels + channel],
        }
    }

    /// The place of a number of a state.
    fn place(&self, channel: usize, column: usize) -> usize {
        match self.call.states {
            Order::Channels => channel * self.call.columns + column,
            Order::Tokens => column * self.call.channels + channel,
        }
    }

    /// Writes the state after some of a sequence's tokens.
    fn keep(&self, source: Option<&[f32]>, to: &mut [f32], span: Range<usize>) {
        let (columns, channels) = (self.call.columns, self.call.channels);
        let moved = span.len().min(columns);
        for channel in 0..channels {
            for column in 0..columns - moved {
                let from = self.place(channel, column + moved);
                to[self.place(channel, column)] = source.map_or(0.0, |source| source[from]);
            }
            for column in 0..moved {
                let token = span.end - moved + column;
                to[self.place(channel, columns - moved + column)] = self.input(channel, token);
            }
        }
    }

    fn share(&self, parts: Vec<Part<'_>>, work: impl Fn(Part<'_>) -> Result<()> + Sync) -> Result<()> {
        let limit = if self.x.len().saturating_mul(self.call.kernel) < ALONE_MAX { 1 } else { threads()? };
        try_share_all(parts, limit, work)
    }

    fn run_channels(&self, offsets: &[usize], states: &[StepState<'_>], out: &mut [f32]) -> Result<()> {
        let channels = self.call.channels;
        let mut parts = reserved(states.len() * channels.div_ceil(CHANNELS_MAX))?;
        for (state, span) in states.iter().zip(offsets.windows(2)) {
            for first in (0..channels).step_by(CHANNELS_MAX) {
                let some = first..(first + CHANNELS_MAX).min(channels);
                let out = reserved(some.len())?;
                parts.push(Part { span: span[0]..span[1], source: state.source, some, out });
            }
        }
        // The parts of a sequence are together: the row of a channel goes to one part of each sequence.
        let of_sequence = channels.div_ceil(CHANNELS_MAX);
        for (channel, mut row) in out.chunks_exact_mut(self.tokens.max(1)).enumerate() {
            for part in parts.iter_mut().skip(channel / CHANNELS_MAX).step_by(of_sequence) {
                part.out.push(row.split_off_mut(..part.span.len()).unwrap_or_default());
            }
        }
        self.share(parts, |part| self.slide(part))
    }

    /// Some channels of one sequence, as vectors of tokens.
    fn slide(&self, part: Part<'_>) -> Result<()> {
        let ShortConv { weight, bias, kernel, columns, silu, .. } = *self.call;
        let (before, count) = (kernel - 1, part.span.len());
        let mut row = zeros(before + count)?;
        for (channel, out) in part.some.zip(part.out) {
            for (place, to) in row[..before].iter_mut().enumerate() {
                let from = self.place(channel, columns - before + place);
                *to = part.source.map_or(0.0, |source| source[from]);
            }
            let first = channel * self.tokens + part.span.start;
            row[before..].copy_from_slice(&self.x[first..first + count]);
            out.fill(bias.map_or(0.0, |bias| bias[channel]));
            wide::slide(self.kernels, &row, &weight[channel * kernel..][..kernel], out);
            if silu {
                wide::silu(self.kernels, out);
            }
        }
        Ok(())
    }

    fn run_tokens(&self, offsets: &[usize], states: &[StepState<'_>], mut out: &mut [f32]) -> Result<()> {
        let ShortConv { weight, channels, kernel, .. } = *self.call;
        let mut columns = zeros(weight.len())?;
        for (place, column) in columns.chunks_exact_mut(channels).enumerate() {
            column.iter_mut().zip(weight.chunks_exact(kernel)).for_each(|(to, weights)| *to = weights[place]);
        }
        let count = |span: &[usize]| (span[1] - span[0]).div_ceil(TOKENS_MAX);
        let mut parts = reserved(offsets.windows(2).map(count).sum())?;
        for (state, span) in states.iter().zip(offsets.windows(2)) {
            for first in (span[0]..span[1]).step_by(TOKENS_MAX) {
                let some = first..(first + TOKENS_MAX).min(span[1]);
                let mut rows = reserved(1)?;
                rows.push(out.split_off_mut(..some.len() * channels).unwrap_or_default());
                parts.push(Part { span: span[0]..span[1], source: state.source, some, out: rows });
            }
        }
        self.share(parts, |part| self.convolve(part, &columns))
    }

    /// Some tokens of one sequence, as vectors of channels.
    fn convolve(&self, part: Part<'_>, weights: &[f32]) -> Result<()> {
        let ShortConv { bias, channels, kernel, silu, .. } = *self.call;
        let (before, start) = (kernel - 1, part.span.start);
        let mut history = zeros(if part.some.start - start < before { before * channels } else { 0 })?;
        if let Some(source) = part.source {
            for (place, row) in history.chunks_exact_mut(channels).enumerate() {
                let column = self.call.columns - before + place;
                row.iter_mut().enumerate().for_each(|(channel, to)| *to = source[self.place(channel, column)]);
            }
        }
        let outs = part.out.into_iter().flat_map(|out| out.chunks_exact_mut(channels));
        for (token, out) in part.some.zip(outs) {
            // Rows before the sequence are those of its state.
            let row = |place: usize| match (token + place).checked_sub(start + before) {
                None => &history[(token - start + place) * channels..][..channels],
                Some(index) => &self.x[(start + index) * channels..][..channels],
            };
            let mut rows = [&[] as &[f32]; KERNEL_MAX];
            rows[..kernel].iter_mut().enumerate().for_each(|(place, to)| *to = row(place));
            match bias {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            wide::convolve(self.kernels, &rows[..kernel], weights, out);
            if silu {
                wide::silu(self.kernels, out);
            }
        }
        Ok(())
    }
}
