//! The state of one head as a matrix: one token is added, and its rows are summed.
//!
//! ```text
//! advance   rows are keys     row i:  state = decay_i * state + key_i * added        out += weight_i * state
//! across    rows are values   row j:  state = decay * state + value_j * key          out_j = state . weights
//! weigh     out = sum over rows of factor_i * row i
//! ```
//!
//! A state is read once. Four new rows at a time are made in memory that stays in the first-level cache, and carried to
//! their place from there: with stores that bypass the caches, a state is written without being read first, which halves
//! the time.

use super::mul_add;
use crate::kernels::stream::Carrier;

/// The number of rows that are made at a time.
pub(crate) const ROWS: usize = 4;

/// The number of sums side by side in a dot product.
const SUMS: usize = 16;

/// The state of a head before a token and after it.
pub(crate) struct Change<'a> {
    pub source: &'a [f32],
    pub target: &'a mut [f32],
    /// Memory for [`ROWS`] rows.
    pub rows: &'a mut [f32],
    pub carrier: Carrier,
}

// A closure that is not inlined has no vector instructions: these are loops.

/// A token for a state whose rows are keys.
pub(crate) struct Advance<'a> {
    pub state: Change<'a>,
    /// One factor for each row.
    pub decays: &'a [f32],
    pub key: &'a [f32],
    /// One number for each column.
    pub added: &'a [f32],
    pub weights: &'a [f32],
    pub out: &'a mut [f32],
}

#[inline(always)]
pub(super) fn advance<const FUSED: bool>(call: Advance<'_>) {
    let Advance { state, decays, key, added, weights, out } = call;
    let Change { source, target, rows, carrier } = state;
    let width = added.len();
    out.fill(0.0);
    let mut first = 0;
    for (source, target) in source.chunks(ROWS * width).zip(target.chunks_mut(ROWS * width)) {
        let rows = &mut rows[..source.len()];
        for (index, (old, new)) in source.chunks_exact(width).zip(rows.chunks_exact_mut(width)).enumerate() {
            let (decay, key) = (decays[first + index], key[first + index]);
            for ((new, old), added) in new.iter_mut().zip(old).zip(added) {
                *new = mul_add::<FUSED>(key, *added, decay * *old);
            }
        }
        let count = rows.len() / width;
        add_rows::<FUSED>(rows, &weights[first..first + count], out);
        carrier.carry(bytemuck::cast_slice_mut(target), bytemuck::cast_slice(rows));
        first += ROWS;
    }
}

/// The sums of rows, each with its factor. The rows are as long as `out`.
#[inline(always)]
pub(super) fn weigh<const FUSED: bool>(rows: &[f32], factors: &[f32], out: &mut [f32]) {
    let width = out.len();
    out.fill(0.0);
    for (rows, factors) in rows.chunks(ROWS * width).zip(factors.chunks(ROWS)) {
        add_rows::<FUSED>(rows, factors, out);
    }
}

/// Adds up to four rows, each times its factor, in their order.
#[inline(always)]
fn add_rows<const FUSED: bool>(rows: &[f32], factors: &[f32], out: &mut [f32]) {
    let width = out.len();
    if let &[f0, f1, f2, f3] = factors {
        let (low, high) = rows.split_at(2 * width);
        let ((a, b), (c, d)) = (low.split_at(width), high.split_at(width));
        for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let two = mul_add::<FUSED>(f1, *b, mul_add::<FUSED>(f0, *a, *out));
            *out = mul_add::<FUSED>(f3, *d, mul_add::<FUSED>(f2, *c, two));
        }
    } else {
        for (&factor, row) in factors.iter().zip(rows.chunks_exact(width)) {
            for (out, row) in out.iter_mut().zip(row) {
                *out = mul_add::<FUSED>(factor, *row, *out);
            }
        }
    }
}

/// A token for a state whose rows are values.
pub(crate) struct Across<'a> {
    pub state: Change<'a>,
    pub decay: f32,
    pub key: &'a [f32],
    /// One number for each row.
    pub values: &'a [f32],
    pub weights: &'a [f32],
    /// One sum for each row.
    pub out: &'a mut [f32],
}

#[inline(always)]
pub(super) fn across<const FUSED: bool>(call: Across<'_>) {
    let Across { state, decay, key, values, weights, out } = call;
    let Change { source, target, rows, carrier } = state;
    let (width, mut first) = (key.len(), 0);
    for (source, target) in source.chunks(ROWS * width).zip(target.chunks_mut(ROWS * width)) {
        let rows = &mut rows[..source.len()];
        for (index, (old, new)) in source.chunks_exact(width).zip(rows.chunks_exact_mut(width)).enumerate() {
            let value = values[first + index];
            for ((new, old), key) in new.iter_mut().zip(old).zip(key) {
                *new = mul_add::<FUSED>(value, *key, decay * *old);
            }
            out[first + index] = dot::<FUSED>(new, weights);
        }
        carrier.carry(bytemuck::cast_slice_mut(target), bytemuck::cast_slice(rows));
        first += ROWS;
    }
}

#[inline(always)]
fn dot<const FUSED: bool>(row: &[f32], weights: &[f32]) -> f32 {
    let mut sums = [0.0f32; SUMS];
    let (whole, rest) = row.as_chunks::<SUMS>();
    let (whole_weights, rest_of_weights) = weights.as_chunks::<SUMS>();
    for (row, weights) in whole.iter().zip(whole_weights) {
        for lane in 0..SUMS {
            sums[lane] = mul_add::<FUSED>(row[lane], weights[lane], sums[lane]);
        }
    }
    for ((sum, row), weight) in sums.iter_mut().zip(rest).zip(rest_of_weights) {
        *sum = mul_add::<FUSED>(*row, *weight, *sum);
    }
    let mut half = SUMS / 2;
    while half > 0 {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
        half /= 2;
    }
    sums[0]
}
