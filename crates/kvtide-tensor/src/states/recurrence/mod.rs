//! Recurrences with a matrix as state: linear attention, and state space models with one decay for each head.
//!
//! ```text
//!                               rows of the state   key   query   value    decay       delta rule
//! linear attention  Major::Key        keys           k      q       v      e^g, or 1   if there is a beta
//! ssm               Major::Value      values         B      C      dt x    e^(dt A)    no
//! ```
//!
//! `token` follows the formulas. `chunk` computes the same for 64 tokens at a time in products of matrices; it needs vector
//! instructions, and one decay for each head. Each sequence takes one of both, depending on its number of tokens.

mod chunk;
mod token;

use std::ops::Range;

use super::rows::Rows;
use super::ssm::StepTimes;
use super::step::{Division, StepState, Unit, kernels};
use crate::base::error::Result;
use crate::device::form::Kernels;
use crate::kernels::Carrier;
use crate::kernels::states::wide;

/// The fewest tokens of a sequence that are computed in chunks. With fewer, a step gives the bits that its tokens give one
/// by one.
pub const CHUNKED_MIN: usize = 8;

/// The bytes of a step's states from which on they are written past the caches: the layers behind this one, and their
/// weights, evict the states before the next step reads them.
const STREAMED_MIN: usize = 1 << 20;

/// The most heads of a unit: they share the products of queries and keys.
const HEADS_MAX: usize = 8;

/// The order of a state's dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Major {
    /// `[k_dim, v_dim]`
    Key,
    /// `[v_dim, k_dim]`
    Value,
}

/// The decays of states, and the factors of values.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gates<'a> {
    /// No decay.
    None,
    /// The logarithm of one decay for each head.
    Heads(Rows<'a>),
    /// The logarithm of a decay for each element of a key.
    Keys(Rows<'a>),
    /// A time for each head, which is also the factor of its value, and the logarithm of the decay for a time of 1.
    Times { times: StepTimes<'a>, a: &'a [f32] },
}

/// A checked call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recurrence<'a> {
    pub query: Rows<'a>,
    pub key: Rows<'a>,
    pub value: Rows<'a>,
    pub q_heads: usize,
    pub k_heads: usize,
    pub v_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub gates: Gates<'a>,
    pub beta: Option<Rows<'a>>,
    /// The factor of the queries.
    pub scale: f32,
    pub l2_norm: Option<f32>,
    pub major: Major,
    /// The factor of values that are added to the output, for each head or for each element.
    pub skip: Option<&'a [f32]>,
}

/// The gates of one token and head.
#[derive(Clone, Copy, Debug)]
struct Gate {
    /// The factor of the state; 1 if there is one for each element of a key.
    decay: f32,
    /// The factor of the value.
    value: f32,
}

impl Recurrence<'_> {
    /// Computes a step.
    pub fn run(&self, offsets: &[usize], states: &mut [StepState<'_>], out: &mut [f32]) -> Result<()> {
        let (heads, group) = (self.v_heads, self.v_heads / self.k_heads);
        let state = self.k_dim.saturating_mul(self.v_dim);
        let division =
            Division { heads, group, most: HEADS_MAX, state, out: self.queries().saturating_mul(self.v_dim) };
        let tokens = offsets.last().copied().unwrap_or(0);
        division.check(offsets, states, out, tokens)?;
        let (kernels, tiles) = kernels()?;
        let products = tokens.saturating_mul(heads).saturating_mul(state);
        let bytes = states.len().saturating_mul(heads).saturating_mul(4 * state);
        let carrier = if bytes < STREAMED_MIN { Carrier::PLAIN } else { Carrier::past_caches(kernels) };
        // A chunk has no state between its tokens.
        let is_chunked = |unit: &Unit<'_>| {
            unit.tokens.len() >= CHUNKED_MIN && unit.drafted.is_empty() && !matches!(self.gates, Gates::Keys(_))
        };
        division.run(offsets, states, out, products, |unit| match tiles {
            Some(tiles) if is_chunked(&unit) => chunk::run(self, kernels, tiles, unit),
            _ => token::Walk { call: self, kernels, tiles, carrier }.run(unit),
        })
    }

    /// The number of queries of each value head.
    fn queries(&self) -> usize {
        (self.q_heads / self.v_heads).max(1)
    }

    /// The query heads of these value heads.
    fn query_heads(&self, heads: Range<usize>) -> Range<usize> {
        let first = |head: usize| match self.q_heads >= self.v_heads {
            true => head * self.queries(),
            false => head / (self.v_heads / self.q_heads),
        };
        first(heads.start)..first(heads.end - 1) + self.queries()
    }

    /// The key head of a unit.
    fn key_head(&self, unit: &Unit<'_>) -> usize {
        unit.heads.start / (self.v_heads / self.k_heads)
    }

    /// Writes a head of a query or key to `to`, divided by its norm if the call asks for that, times `factor`.
    fn prepare(&self, kernels: Kernels, head: &[f32], factor: f32, to: &mut [f32]) {
        let factor = match self.l2_norm {
            None => factor,
            Some(added) => factor / (sum_of_squares(head) + added).sqrt(),
        };
        wide::scale(kernels, to, head, factor);
    }

    fn gate(&self, kernels: Kernels, token: usize, head: usize) -> Gate {
        match self.gates {
            Gates::None | Gates::Keys(_) => Gate { decay: 1.0, value: 1.0 },
            Gates::Heads(decay) => Gate { decay: exp(kernels, decay.part(token, head, 1)[0]), value: 1.0 },
            Gates::Times { times, a } => {
                let mut time = [times.biased(token, head)];
                if times.softplus {
                    wide::softplus(kernels, &mut time);
                }
                let time = times.limited(time[0]);
                Gate { decay: exp(kernels, time * a[head]), value: time }
            }
        }
    }

    /// The rate of the delta rule.
    fn beta(&self, token: usize, head: usize) -> Option<f32> {
        self.beta.map(|beta| beta.at(token, head))
    }

    /// Adds the value of a head, times its factor, to one of its outputs.
    fn skip(&self, kernels: Kernels, token: usize, head: usize, out: &mut [f32]) {
        let Some(skip) = self.skip else { return };
        let value = self.value.part(token, head * self.v_dim, self.v_dim);
        if skip.len() == self.v_heads {
            wide::add(kernels, out, value, skip[head]);
        } else {
            let skip = &skip[head * self.v_dim..];
            out.iter_mut().zip(value).zip(skip).for_each(|((out, value), skip)| *out += skip * value);
        }
    }
}

fn exp(kernels: Kernels, exponent: f32) -> f32 {
    let mut one = [exponent];
    wide::exp(kernels, &mut one);
    one[0]
}

fn sum_of_squares(row: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    for part in row.chunks(sums.len()) {
        sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * x);
    }
    sums.iter().sum()
}
