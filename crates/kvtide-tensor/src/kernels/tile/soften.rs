//! The exponential part of a softmax on one row of scores, and other operations on a row of floats.
//!
//! Scores are natural logarithms. Only their differences are multiplied by log2(e): a score close to the largest float would
//! overflow in base 2.
#![expect(unsafe_code, reason = "rows are read through pointers that the caller has checked")]

use super::rows::{ElementFormat, load_some};
use crate::kernels::simd::{Lanes, POWERS, exp2};

/// Turns scores into weights `e^(score - max)`, where max is the larger of `before` and the largest score; returns max and
/// the sum of the weights. If max is -infinity, all weights are 0.
///
/// # Safety
///
/// `scores` has `count` floats, a multiple of `V::COUNT`, and the machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn soften<V: Lanes>(scores: *mut f32, count: usize, before: f32) -> [f32; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut largest = V::splat(before);
        for at in (0..count).step_by(V::COUNT) {
            largest = largest.max(V::load(scores.add(at)));
        }
        let max = largest.largest();
        let base = V::splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
        let (mut sum, log2_e) = (V::splat(0.0), V::splat(std::f32::consts::LOG2_E));
        for at in (0..count).step_by(V::COUNT) {
            let weight = exp2(V::load(scores.add(at)).sub(base).mul(log2_e));
            sum = sum.add(weight);
            weight.store(scores.add(at));
        }
        [max, sum.sum()]
    }
}

/// The largest exponent of 2 of a softcap: beyond it, the hyperbolic tangent is 1.
const EXPONENT_MAX: f32 = 60.0;

/// Applies a softcap to scores: `cap * tanh(score * factor)`.
///
/// # Safety
///
/// As for [`soften`].
#[inline(always)]
pub(super) unsafe fn bend<V: Lanes>(scores: *mut f32, count: usize, factor: f32, cap: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let (one, two) = (V::splat(1.0), V::splat(2.0));
        // For the smallest caps the factor is infinite, and infinity times a score of 0 would be NaN.
        let power = V::splat((2.0 * std::f32::consts::LOG2_E * factor).min(f32::MAX));
        for at in (0..count).step_by(V::COUNT) {
            let exponent = V::load(scores.add(at)).mul(power).max(V::splat(-EXPONENT_MAX)).min(V::splat(EXPONENT_MAX));
            // tanh(x) = e / (e + 2) where e = e^2x - 1, without a difference of numbers near 1 for a small x.
            let whole = exponent.round();
            let rest = exponent.sub(whole);
            let mut less = V::splat(POWERS[0]);
            for &term in &POWERS[1..POWERS.len() - 1] {
                less = less.mul_add(rest, V::splat(term));
            }
            let less = less.mul(rest).scale_by_power(whole).add(one.scale_by_power(whole).sub(one));
            less.div(less.add(two)).mul(V::splat(cap)).store(scores.add(at));
        }
    }
}

/// `row[i] *= factors[i]`
///
/// # Safety
///
/// As for [`soften`], for both.
#[inline(always)]
pub(super) unsafe fn scale<V: Lanes>(row: *mut f32, factors: *const f32, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for at in (0..count).step_by(V::COUNT) {
            V::load(row.add(at)).mul(V::load(factors.add(at))).store(row.add(at));
        }
    }
}

/// `row[i] *= factor`
///
/// # Safety
///
/// As for [`soften`].
#[inline(always)]
pub(super) unsafe fn scale_all<V: Lanes>(row: *mut f32, factor: f32, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for at in (0..count).step_by(V::COUNT) {
            V::load(row.add(at)).mul(V::splat(factor)).store(row.add(at));
        }
    }
}

/// The sum of `row[i] * other[i]`.
///
/// # Safety
///
/// As for [`soften`], for both.
#[inline(always)]
pub(super) unsafe fn dot<V: Lanes>(row: *const f32, other: *const f32, count: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = V::splat(0.0);
        for at in (0..count).step_by(V::COUNT) {
            sum = V::load(row.add(at)).mul_add(V::load(other.add(at)), sum);
        }
        sum.sum()
    }
}

/// Writes `dim` elements as floats to `out`, and zeros up to the next multiple of a vector.
///
/// # Safety
///
/// `row` has `dim` elements, `out` has room for them rounded up to a vector, and the machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn widen<V: Lanes, F: ElementFormat>(row: *const u8, dim: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = 0;
        while at + V::COUNT <= dim {
            F::load::<V>(row, at).store(out.add(at));
            at += V::COUNT;
        }
        if at < dim {
            load_some::<F, V>(row, at, dim - at).store(out.add(at));
        }
    }
}
