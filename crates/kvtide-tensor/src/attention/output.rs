//! Where results go: rows in the caller's dtype, and the logarithms of their sums.

use std::f32::consts::LN_2;

use super::asked::Asked;
use super::job::Unit;
use super::scratch::State;
use crate::dtype::DType;
use crate::kernels::quantise::from_f32;

/// The output of a call, and the log-sum-exp of its rows.
pub(super) struct Output<'a> {
    pub dtype: DType,
    /// `[batch, heads, n, dim]` or `[tokens, heads, dim]`.
    pub bytes: &'a mut [u8],
    /// `[tokens, heads]`
    pub lse: &'a mut [f32],
}

impl Output<'_> {
    /// Writes the rows of a unit, each divided by its sum; zeros where a row saw nothing.
    pub fn write(&mut self, asked: &Asked<'_>, unit: &Unit, states: &[State], out: &[f32], stride: usize) {
        let (sizes, group) = (asked.sizes, asked.sizes.group());
        let mut values = vec![0.0; sizes.value_dim];
        for row in 0..unit.rows(group) {
            let State { max, sum, .. } = states[row];
            let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            for (value, total) in values.iter_mut().zip(&out[row * stride..]) {
                *value = total * factor;
            }
            let (query, head) = unit.query_and_head(row, group);
            let token = asked.sequences[unit.sequence].first_query + query;
            self.put(asked, unit.sequence, token, head, &values, log_sum(max, sum));
        }
    }

    /// Writes one row: the query `token` of all, one query head.
    pub fn put(&mut self, asked: &Asked<'_>, sequence: usize, token: usize, head: usize, values: &[f32], lse: f32) {
        let (heads, of) = (asked.sizes.query_heads, &asked.sequences[sequence]);
        let place = match asked.sizes.ragged {
            true => token * heads + head,
            false => (sequence * heads + head) * of.queries + token - of.first_query,
        };
        let width = values.len() * self.dtype.bytes();
        from_f32(self.dtype, values, &mut self.bytes[place * width..(place + 1) * width]);
        self.lse[token * heads + head] = lse;
    }
}

/// The natural logarithm of a row's sum of exponentials.
fn log_sum(max: f32, sum: f32) -> f32 {
    if sum == 0.0 { f32::NEG_INFINITY } else { (max + sum.log2()) * LN_2 }
}
