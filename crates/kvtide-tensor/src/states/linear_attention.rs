//! Linear attention: keys and values are summed in a matrix for each head, instead of being kept.
//!
//! ```text
//!                              state                                                  output
//! linear       S = S + k x v                                                          o = S^T q * scale
//! gated        S = e^g S + k x v                                                      the same
//! delta        S = S + k x b (v - S^T k)                                              the same
//! gated delta  S = e^g S + k x b (v - e^g S^T k)                                      the same
//! ```
//!
//! The inputs decide about the rule: `decay` has g, `beta` has b. A decay may be one number for each head (gated delta nets),
//! or one for each element of a key; the latter runs token by token.

use super::recurrence::{Gates, Major, Recurrence};
use super::rows::{Rows, check_multiple};
use super::step::StepState;
use crate::base::error::Result;

/// A call of linear attention, with heads of `key.width() / k_heads` and `value.width() / v_heads` elements.
///
/// A value head has a state `[k_dim, v_dim]`; the output has a head for each query head or value head, whichever are more.
/// `v_heads` is a multiple of `k_heads`; the larger of `q_heads` and `v_heads`, and of `q_heads` and `k_heads`, is a multiple
/// of the smaller.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttention<'a> {
    /// Queries, `[tokens, q_heads * k_dim]`.
    pub query: Rows<'a>,
    /// Keys, `[tokens, k_heads * k_dim]`.
    pub key: Rows<'a>,
    /// Values, `[tokens, v_heads * v_dim]`.
    pub value: Rows<'a>,
    /// The logarithms of the decays, `[tokens, v_heads]`, or `[tokens, v_heads * k_dim]` for one an element of a key.
    pub decay: Option<Rows<'a>>,
    /// The rates of the delta rule, `[tokens, v_heads]` or `[tokens, 1]`.
    pub beta: Option<Rows<'a>>,
    /// The number of query heads.
    pub q_heads: usize,
    /// The number of key heads.
    pub k_heads: usize,
    /// The number of value heads.
    pub v_heads: usize,
    /// The factor of the queries; `None` for the inverse root of `k_dim`.
    pub scale: Option<f32>,
    /// Divides queries and keys by the root of this number and the sum of their squares.
    pub l2_norm: Option<f32>,
}

/// Computes a step of linear attention: `out` is `[tokens, heads * v_dim]`, and each state `[v_heads, k_dim, v_dim]`.
///
/// ```
/// use kvtide_tensor::states::{LinearAttention, Rows, StepState, linear_attention};
///
/// let (keys, values) = ([1.0, 0.0], [3.0, 4.0]);
/// let call = LinearAttention {
///     query: Rows::new(&keys, 2),
///     key: Rows::new(&keys, 2),
///     value: Rows::new(&values, 2),
///     decay: None,
///     beta: None,
///     q_heads: 1,
///     k_heads: 1,
///     v_heads: 1,
///     scale: Some(1.0),
///     l2_norm: None,
/// };
/// let (mut state, mut out) = ([0.0; 4], [0.0; 2]);
/// linear_attention(&call, &[0, 1], &mut [StepState::new(None, &mut state)], &mut out)?;
/// assert_eq!((state, out), ([3.0, 4.0, 0.0, 0.0], [3.0, 4.0]));
/// # Ok::<(), kvtide_tensor::Error>(())
/// ```
pub fn linear_attention(
    call: &LinearAttention<'_>,
    offsets: &[usize],
    states: &mut [StepState<'_>],
    out: &mut [f32],
) -> Result<()> {
    let &LinearAttention { query, key, value, decay, beta, q_heads, k_heads, v_heads, .. } = call;
    check_multiple("k_heads", k_heads, 1, "1")?;
    check_multiple("v_heads", v_heads, k_heads, "k_heads")?;
    check_multiple("q_heads", q_heads.max(v_heads), q_heads.min(v_heads), "the smaller of q_heads and v_heads")?;
    check_multiple("q_heads", q_heads.max(k_heads), q_heads.min(k_heads), "the smaller of q_heads and k_heads")?;
    check_multiple("key", key.width(), k_heads, "k_heads")?;
    check_multiple("value", value.width(), v_heads, "v_heads")?;
    let (k_dim, v_dim) = (key.width() / k_heads, value.width() / v_heads);
    let tokens = offsets.last().copied().unwrap_or(0);
    let width = |heads: usize, dim: usize| [heads.saturating_mul(dim)];
    query.check("query", tokens, &width(q_heads, k_dim))?;
    key.check("key", tokens, &[key.width()])?;
    value.check("value", tokens, &[value.width()])?;
    if let Some(decay) = decay {
        decay.check("decay", tokens, &[v_heads, v_heads.saturating_mul(k_dim)])?;
    }
    if let Some(beta) = beta {
        beta.check("beta", tokens, &[v_heads, 1])?;
    }
    let gates = match decay {
        None => Gates::None,
        Some(decay) if decay.width() == v_heads => Gates::Heads(decay),
        Some(decay) => Gates::Keys(decay),
    };
    let recurrence = Recurrence {
        query,
        key,
        value,
        q_heads,
        k_heads,
        v_heads,
        k_dim,
        v_dim,
        gates,
        beta,
        scale: call.scale.unwrap_or(1.0 / (k_dim as f32).sqrt()),
        l2_norm: call.l2_norm,
        major: Major::Key,
        skip: None,
    };
    recurrence.run(offsets, states, out)
}
