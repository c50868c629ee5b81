//! The results of a call: rows in the caller's dtype, and the logarithms of their sums.

use super::call::asked::Asked;
use crate::base::dtype::DType;
use crate::base::dtype::from_f32;

/// The output of a call, and the log-sum-exp of its rows.
pub(super) struct Output<'a> {
    pub dtype: DType,
    /// `[batch, heads, n, dim]` or `[tokens, heads, dim]`.
    pub bytes: &'a mut [u8],
    /// `[tokens, heads]`; empty if they are not requested.
    pub lse: &'a mut [f32],
    /// Rows whose results are not finite.
    pub suspects: Vec<Suspect>,
}

/// A row of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    pub sequence: usize,
    /// The index in the list of all queries.
    pub token: usize,
    pub head: usize,
}

impl<'a> Output<'a> {
    pub fn new(dtype: DType, bytes: &'a mut [u8], lse: &'a mut [f32]) -> Self {
        Output { dtype, bytes, lse, suspects: Vec::new() }
    }

    /// Notes a row whose output or sum is not finite.
    pub fn check(&mut self, is_finite: bool, of: Suspect, lse: f32) {
        // If there is no memory to note it, the row stays as it is.
        if (!is_finite || lse.is_nan() || lse == f32::INFINITY) && self.suspects.try_reserve(1).is_ok() {
            self.suspects.push(of);
        }
    }

    /// Writes one row: query `token` of all queries, one query head.
    pub fn put(&mut self, asked: &Asked<'_>, sequence: usize, token: usize, head: usize, values: &[f32], lse: f32) {
        let (heads, of) = (asked.sizes.query_heads, &asked.sequences[sequence]);
        let place = match asked.sizes.is_ragged {
            true => token * heads + head,
            false => (sequence * heads + head) * of.queries + token - of.first_query,
        };
        let width = values.len() * self.dtype.bytes();
        from_f32(self.dtype, values, &mut self.bytes[place * width..(place + 1) * width]);
        if let Some(sum) = self.lse.get_mut(token * heads + head) {
            *sum = lse;
        }
    }
}

/// The larger one; NaN if one is NaN.
pub(super) fn larger(one: f32, other: f32) -> f32 {
    if one.is_nan() || one > other { one } else { other }
}
