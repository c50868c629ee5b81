//! Where results go: rows in the caller's dtype, and the logarithms of their sums.

use super::asked::Asked;
use super::job::{Job, Unit};
use super::scratch::State;
use crate::base::dtype::DType;
use crate::base::float::from_f32;

/// The output of a call, and the log-sum-exp of its rows.
pub(super) struct Output<'a> {
    pub dtype: DType,
    /// `[batch, heads, n, dim]` or `[tokens, heads, dim]`.
    pub bytes: &'a mut [u8],
    /// `[tokens, heads]`
    pub lse: &'a mut [f32],
    /// Rows that came out as no finite numbers.
    pub suspects: Vec<Suspect>,
}

/// A row of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    pub sequence: usize,
    /// In the list of all queries.
    pub token: usize,
    pub head: usize,
}

impl Output<'_> {
    /// Writes the rows of a unit, each divided by its sum; zeros where a row saw nothing.
    pub fn write(&mut self, job: &Job<'_>, unit: &Unit, states: &[State], out: &[f32], stride: usize) {
        let asked = job.asked;
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
            let lse = log_sum(max, sum);
            // With the kernels, for a decode step feels another pass. Squares of what is finite may not be: that is looked at in vain.
            let sums = &out[row * stride..][..stride];
            let is_finite = job.kernels.dot(sums, sums).is_finite();
            self.check(is_finite, Suspect { sequence: unit.sequence, token, head }, lse);
            self.put(asked, unit.sequence, token, head, &values, lse);
        }
    }

    /// Notes a row whose output or sum is no finite number.
    pub fn check(&mut self, is_finite: bool, of: Suspect, lse: f32) {
        // Where there is no memory for it, it stays as it is.
        if (!is_finite || lse.is_nan() || lse == f32::INFINITY) && self.suspects.try_reserve(1).is_ok() {
            self.suspects.push(of);
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
    if sum == 0.0 { f32::NEG_INFINITY } else { max + sum.ln() }
}

/// The larger one, NaN where one is NaN.
pub(super) fn larger(one: f32, other: f32) -> f32 {
    if one.is_nan() || one > other { one } else { other }
}
