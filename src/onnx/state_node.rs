//! One node of a layer that keeps a state: its attributes, and its computation in a step.
//!
//! ```text
//! inputs of all tokens, 32-bit floats     x, or query, key, value ..; weights
//! state of each sequence                  from the slots of the step run, to its new slots
//! output of all tokens
//! ```
//!
//! A NaN in a state would reach every later token, so the step is refused. Checking a whole matrix after each token would
//! cost as much as computing it. If few tokens are computed, the last token's output is a sum over the whole state, and is
//! NaN if any number of the state is NaN: the state itself is read only in that case.

use std::ffi::CStr;

use kvtide_core::{Code, details};
use kvtide_tensor::states::{
    CHUNKED_MIN, LinearAttention, Order, Rows, ShortConv, Ssm, StepState, StepTimes, linear_attention, short_conv, ssm,
};
use kvtide_tensor::{Error, StepRun};

use super::call::refused;
use super::info::Attributes;
use crate::border::refusal::{Outcome, Refusal};

/// The operators of layers with states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateOperator {
    ShortConv,
    LinearAttention,
    StateSpace,
}

impl StateOperator {
    pub const ALL: [Self; 3] = [Self::ShortConv, Self::LinearAttention, Self::StateSpace];

    pub fn name(self) -> &'static CStr {
        match self {
            Self::ShortConv => c"ShortConv",
            Self::LinearAttention => c"LinearAttention",
            Self::StateSpace => c"StateSpace",
        }
    }

    pub fn text(self) -> &'static str {
        self.name().to_str().unwrap_or_default()
    }

    /// The names of its inputs. The first ones are required.
    pub fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::ShortConv => &["x", "weight", "bias"],
            Self::LinearAttention => &["query", "key", "value", "decay", "beta"],
            Self::StateSpace => &["x", "b", "c", "dt", "a", "d", "dt_bias"],
        }
    }

    /// The number of inputs that are required.
    pub fn required(self) -> usize {
        match self {
            Self::ShortConv => 2,
            Self::LinearAttention => 3,
            Self::StateSpace => 5,
        }
    }
}

/// One node.
#[derive(Debug)]
pub(super) struct StateNode {
    pub operator: StateOperator,
    /// The index of its state.
    state: u32,
    sizes: Sizes,
}

#[derive(Debug)]
enum Sizes {
    ShortConv { channels: usize, kernel: usize, columns: usize, rows: Order, states: Order, silu: bool },
    LinearAttention { heads: [usize; 3], value_dim: usize, scale: Option<f32>, l2_norm: Option<f32> },
    StateSpace { heads: usize, head_dim: usize, groups: usize, softplus: bool, limits: Option<[f32; 2]> },
}

/// The reason why a state was not computed.
enum Failed {
    Refused(Error),
    /// It has a number that is not one.
    NotNumbers,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Refused(error)
    }
}

impl StateNode {
    pub fn read(operator: StateOperator, of: &impl Attributes) -> Outcome<Self> {
        let whole = |name: &CStr| of.whole(operator.text(), name).map(|value| value as usize);
        let order = |name: &CStr| if of.is_set(name) { Order::Channels } else { Order::Tokens };
        let sizes = match operator {
            StateOperator::ShortConv => Sizes::ShortConv {
                channels: whole(c"channels")?,
                kernel: whole(c"kernel")?,
                columns: whole(c"columns")?,
                rows: order(c"channels_first"),
                states: order(c"state_channels_first"),
                silu: of.is_set(c"silu"),
            },
            StateOperator::LinearAttention => Sizes::LinearAttention {
                heads: [whole(c"q_heads")?, whole(c"k_heads")?, whole(c"v_heads")?],
                value_dim: whole(c"v_dim")?,
                scale: of.float(c"scale"),
                l2_norm: of.float(c"l2_norm"),
            },
            StateOperator::StateSpace => Sizes::StateSpace {
                heads: whole(c"heads")?,
                head_dim: whole(c"head_dim")?,
                groups: whole(c"groups")?,
                softplus: of.is_set(c"softplus"),
                limits: match of.floats(c"limits")?.as_deref() {
                    None => None,
                    Some(&[low, high]) => Some([low, high]),
                    Some(others) => {
                        let reason = format!("limits has {} numbers, expected 2", others.len());
                        return Err(refused(operator.text(), reason));
                    }
                },
            },
        };
        Ok(StateNode { operator, state: whole(c"state")? as u32, sizes })
    }

    /// The number of tokens of the first input. The batch has one row, in which the tokens of all sequences are
    /// concatenated.
    pub fn tokens(&self, dims: &[i64]) -> Outcome<usize> {
        let axis = if matches!(self.sizes, Sizes::ShortConv { rows: Order::Channels, .. }) { 2 } else { 1 };
        match (dims.first(), dims.get(axis)) {
            (Some(1), Some(&tokens)) if dims.len() >= 3 => Ok(tokens as usize),
            _ => {
                Err(self
                    .wrong(format!("{} has the dimensions {dims:?}, expected a batch of 1", self.operator.inputs()[0])))
            }
        }
    }

    /// The dimensions of the output.
    pub fn out_dims(&self, tokens: usize) -> [i64; 3] {
        let [first, second] = match self.sizes {
            Sizes::ShortConv { channels, rows: Order::Channels, .. } => [channels, tokens],
            Sizes::ShortConv { channels, rows: Order::Tokens, .. } => [tokens, channels],
            Sizes::LinearAttention { heads: [q, _, v], value_dim, .. } => [tokens, q.max(v).saturating_mul(value_dim)],
            Sizes::StateSpace { heads, head_dim, .. } => [tokens, heads.saturating_mul(head_dim)],
        };
        [1, first as i64, second as i64]
    }

    /// Computes the states of all sequences of a step, and the output.
    pub fn compute(&self, run: &mut StepRun, inputs: &[Option<&[f32]>], out: &mut [f32]) -> Outcome<()> {
        let tokens = run.tokens() as usize;
        let computed = run.compute_state(self.state, |offsets, states| {
            self.step(inputs, tokens, offsets, states, out)?;
            if self.has_nan(offsets, states, out) { Err(Failed::NotNumbers) } else { Ok(()) }
        });
        computed.map_err(|failed| match failed {
            Failed::Refused(error) => error.into(),
            Failed::NotNumbers => {
                let of = &run.model().states()[self.state as usize];
                let node = format!("{} of layer {}", of.name, of.layer);
                let reason = format!("the state {node} has a value that is not a number (NaN)");
                let message = format!("kvtide::{}: {reason}", self.operator.text());
                Refusal { code: Code::RuntimeFailed, message, details: details![reason: reason, node: node] }
            }
        })
    }

    fn step(
        &self,
        inputs: &[Option<&[f32]>],
        tokens: usize,
        offsets: &[usize],
        states: &mut [StepState<'_>],
        out: &mut [f32],
    ) -> kvtide_tensor::Result<()> {
        let names = self.operator.inputs();
        let given = |index: usize| inputs.get(index).copied().flatten();
        let input =
            |index: usize| given(index).ok_or_else(|| Error::argument(names[index], "missing", "an input of the node"));
        // The checks of a layer name rows of another width than it needs.
        let row = |floats: &'_ [f32]| floats.len() / tokens.max(1);
        let of_tokens = |index: usize| input(index).map(|floats| Rows::new(floats, row(floats)));
        let of_tokens_given = |index: usize| given(index).map(|floats| Rows::new(floats, row(floats)));
        match self.sizes {
            Sizes::ShortConv { channels, kernel, columns, rows, states: order, silu } => {
                let (weight, bias) = (input(1)?, given(2));
                let call = ShortConv { weight, bias, channels, kernel, columns, rows, states: order, silu };
                short_conv(&call, input(0)?, offsets, states, out)
            }
            Sizes::LinearAttention { heads: [q_heads, k_heads, v_heads], scale, l2_norm, .. } => {
                let (query, key, value) = (of_tokens(0)?, of_tokens(1)?, of_tokens(2)?);
                let (decay, beta) = (of_tokens_given(3), of_tokens_given(4));
                let call =
                    LinearAttention { query, key, value, decay, beta, q_heads, k_heads, v_heads, scale, l2_norm };
                linear_attention(&call, offsets, states, out)
            }
            Sizes::StateSpace { heads, groups, softplus, limits, .. } => {
                let times = StepTimes { dt: of_tokens(3)?, bias: given(6), softplus, limits };
                let (x, b, c) = (of_tokens(0)?, of_tokens(1)?, of_tokens(2)?);
                let call = Ssm { x, b, c, times, a: input(4)?, d: given(5), heads, groups };
                ssm(&call, offsets, states, out)
            }
        }
    }

    /// True if a state after the step has a number that is not one.
    fn has_nan(&self, offsets: &[usize], states: &[StepState<'_>], out: &[f32]) -> bool {
        let is_summed = !matches!(self.sizes, Sizes::ShortConv { .. });
        let width = out.len() / offsets.last().map_or(1, |&tokens| tokens.max(1));
        states.iter().zip(offsets.windows(2)).any(|(state, span)| {
            let few = is_summed && span[1] - span[0] < CHUNKED_MIN;
            let is_fine = few && !any_nan(&out[(span[1] - 1) * width..span[1] * width]);
            !is_fine && any_nan(state.target)
        })
    }

    fn wrong(&self, reason: String) -> Refusal {
        refused(self.operator.text(), reason)
    }
}

fn any_nan(floats: &[f32]) -> bool {
    // Without a branch for each number, this is a loop of vectors.
    floats.chunks(256).any(|some| some.iter().fold(false, |any, number| any | number.is_nan()))
}
