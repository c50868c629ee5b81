//! Depthwise convolutions, and states that belong to a channel.

use super::exponential::exp;
use super::mul_add;

/// The number of channels of a convolution whose sums stay in the first-level cache.
const BLOCK: usize = 512;

/// Adds `rows`, one for each weight of the kernel, to `out`. The row of weights number `i` belongs to row `i`.
#[inline(always)]
pub(super) fn convolve<const FUSED: bool>(rows: &[&[f32]], weights: &[f32], out: &mut [f32]) {
    let width = out.len();
    for first in (0..width).step_by(BLOCK) {
        let end = (first + BLOCK).min(width);
        for (row, weights) in rows.iter().zip(weights.chunks(width)) {
            for ((out, x), weight) in out[first..end].iter_mut().zip(&row[first..end]).zip(&weights[first..end]) {
                *out = mul_add::<FUSED>(*x, *weight, *out);
            }
        }
    }
}

/// Adds `x`, moved by each place of the kernel, to `out`, which is shorter than `x` by the kernel less 1.
#[inline(always)]
pub(super) fn slide<const FUSED: bool>(x: &[f32], weights: &[f32], out: &mut [f32]) {
    for (place, &weight) in weights.iter().enumerate() {
        for (out, x) in out.iter_mut().zip(&x[place..]) {
            *out = mul_add::<FUSED>(*x, weight, *out);
        }
    }
}

/// A token for states that belong to a channel each.
pub(crate) struct Channels<'a> {
    /// The states before it; `None` if they are in `target`.
    pub source: Option<&'a [f32]>,
    pub target: &'a mut [f32],
    /// The logarithm of the decay for a time of 1, for each element of the states.
    pub a: &'a [f32],
    /// The time of each channel.
    pub dt: &'a [f32],
    pub x: &'a [f32],
    pub b: &'a [f32],
    pub c: &'a [f32],
    /// One sum for each channel.
    pub out: &'a mut [f32],
}

/// The number of sums side by side in a dot product.
const SUMS: usize = 16;

#[inline(always)]
pub(super) fn channels<const FUSED: bool>(call: Channels<'_>) {
    let Channels { source, target, a, dt, x, b, c, out } = call;
    let width = b.len();
    let states = target.chunks_mut(width).zip(a.chunks(width));
    for (index, ((state, a), ((&dt, &x), out))) in states.zip(dt.iter().zip(x).zip(out)).enumerate() {
        if let Some(source) = source {
            state.copy_from_slice(&source[index * width..][..width]);
        }
        let value = dt * x;
        let mut sums = [0.0f32; SUMS];
        let parts = state.chunks_mut(SUMS).zip(a.chunks(SUMS)).zip(b.chunks(SUMS)).zip(c.chunks(SUMS));
        for (((state, a), b), c) in parts {
            for ((((state, a), b), c), sum) in state.iter_mut().zip(a).zip(b).zip(c).zip(&mut sums) {
                *state = mul_add::<FUSED>(value, *b, exp::<FUSED>(dt * a) * *state);
                *sum = mul_add::<FUSED>(*state, *c, *sum);
            }
        }
        *out = sums.iter().sum();
    }
}
