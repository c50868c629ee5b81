//! Loops over the rows of a chunk: products of decays, and rows times factors.

use super::mul_add;

/// `row = a * b * factor`, up to the end of the shortest.
#[inline(always)]
pub(super) fn product<const FUSED: bool>(row: &mut [f32], a: &[f32], b: &[f32], factor: f32) {
    for ((row, a), b) in row.iter_mut().zip(a).zip(b) {
        *row = a * b * factor;
    }
}

/// `row = source * factor`, or 0 in place of products below `least`.
#[inline(always)]
pub(super) fn scale<const FUSED: bool>(row: &mut [f32], source: &[f32], factor: f32, least: f32) {
    for (row, source) in row.iter_mut().zip(source) {
        let product = source * factor;
        *row = if product < least { 0.0 } else { product };
    }
}

/// `row = source * factor`
#[inline(always)]
pub(super) fn copy<const FUSED: bool>(row: &mut [f32], source: &[f32], factor: f32) {
    for (row, source) in row.iter_mut().zip(source) {
        *row = source * factor;
    }
}

/// `row = factor * (value - total * row)`
#[inline(always)]
pub(super) fn left<const FUSED: bool>(row: &mut [f32], value: &[f32], factor: f32, total: f32) {
    for (row, value) in row.iter_mut().zip(value) {
        *row = factor * mul_add::<FUSED>(-total, *row, *value);
    }
}

/// `row = row + source * factor`
#[inline(always)]
pub(super) fn add<const FUSED: bool>(row: &mut [f32], source: &[f32], factor: f32) {
    for (row, source) in row.iter_mut().zip(source) {
        *row = mul_add::<FUSED>(*source, factor, *row);
    }
}
