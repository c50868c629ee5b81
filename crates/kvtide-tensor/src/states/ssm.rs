//! State space models with one decay for each head, as in Mamba 2.
//!
//! ```text
//! dt = softplus(dt + bias), between two limits
//! S = e^(dt A) S + (dt x) x B          state [head_dim, state] for each head
//! y = S C + D x
//! ```
//!
//! It is linear attention with B as key, C as query and `dt x` as value, whose states are transposed.

use super::recurrence::{Gates, Major, Recurrence};
use super::rows::{Rows, check_floats, check_multiple};
use super::step::StepState;
use crate::base::error::{Error, Result};

/// The times of a step: each token's and head's `dt`.
#[derive(Clone, Copy, Debug)]
pub struct StepTimes<'a> {
    /// Times, `[tokens, heads]`.
    pub dt: Rows<'a>,
    /// Added to the times, `[heads]`.
    pub bias: Option<&'a [f32]>,
    /// Applies `ln(1 + e^dt)`, after the bias.
    pub softplus: bool,
    /// The smallest and the largest time.
    pub limits: Option<[f32; 2]>,
}

impl StepTimes<'_> {
    /// Fails unless there are `tokens` rows for `heads` heads.
    pub(super) fn check(&self, tokens: usize, heads: usize) -> Result<()> {
        self.dt.check("dt", tokens, &[heads])?;
        self.bias.map_or(Ok(()), |bias| check_floats("dt_bias", bias, &[heads]))?;
        match self.limits {
            Some([low, high]) if !matches!(low.partial_cmp(&high), Some(std::cmp::Ordering::Less)) => {
                Err(Error::argument("limits", format!("{low} to {high}"), "two ascending numbers"))
            }
            _ => Ok(()),
        }
    }

    /// The time before softplus.
    pub(super) fn biased(&self, token: usize, head: usize) -> f32 {
        self.dt.part(token, head, 1)[0] + self.bias.map_or(0.0, |bias| bias[head])
    }

    /// Applies the limits; NaN stays NaN.
    pub(super) fn limited(&self, time: f32) -> f32 {
        self.limits.map_or(time, |[low, high]| time.clamp(low, high))
    }
}

/// A call of a state space model. `heads` is a multiple of `groups`: that many heads share B and C.
#[derive(Clone, Copy, Debug)]
pub struct Ssm<'a> {
    /// Inputs, `[tokens, heads * head_dim]`.
    pub x: Rows<'a>,
    /// `[tokens, groups * state]`.
    pub b: Rows<'a>,
    /// `[tokens, groups * state]`.
    pub c: Rows<'a>,
    /// The times of the tokens.
    pub times: StepTimes<'a>,
    /// The logarithm of the decay for a time of 1, `[heads]`: negative numbers.
    pub a: &'a [f32],
    /// The factor of the inputs in the output, `[heads]` or `[heads * head_dim]`.
    pub d: Option<&'a [f32]>,
    /// The number of heads.
    pub heads: usize,
    /// The number of groups.
    pub groups: usize,
}

/// Computes a step of a state space model: `out` is `[tokens, heads * head_dim]`, and each state `[heads, head_dim, state]`.
pub fn ssm(call: &Ssm<'_>, offsets: &[usize], states: &mut [StepState<'_>], out: &mut [f32]) -> Result<()> {
    let &Ssm { x, b, c, times, a, d, heads, groups } = call;
    check_multiple("groups", groups, 1, "1")?;
    check_multiple("heads", heads, groups, "groups")?;
    check_multiple("x", x.width(), heads, "heads")?;
    check_multiple("b", b.width(), groups, "groups")?;
    let (head_dim, state) = (x.width() / heads, b.width() / groups);
    let tokens = offsets.last().copied().unwrap_or(0);
    x.check("x", tokens, &[x.width()])?;
    b.check("b", tokens, &[b.width()])?;
    c.check("c", tokens, &[b.width()])?;
    times.check(tokens, heads)?;
    check_floats("a", a, &[heads])?;
    if let Some(d) = d.filter(|d| d.len() != heads) {
        check_floats("d", d, &[heads, head_dim])?;
    }
    let recurrence = Recurrence {
        query: c,
        key: b,
        value: x,
        q_heads: groups,
        k_heads: groups,
        v_heads: heads,
        k_dim: state,
        v_dim: head_dim,
        gates: Gates::Times { times, a },
        beta: None,
        scale: 1.0,
        l2_norm: None,
        major: Major::Value,
        skip: d,
    };
    recurrence.run(offsets, states, out)
}
