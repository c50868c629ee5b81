//! The loops of this folder, compiled for the vector instructions of the machine.
//!
//! Compilation reorders nothing. Versions differ in fused multiply-adds alone, which the smallest one lacks.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls of functions that need instructions beyond those of the build")
)]

use super::channels::{self, Channels};
use super::exponential;
use super::matrix::{self, Across, Advance};
use super::triangle;
use crate::device::form::Kernels;

macro_rules! forms {
    ($($(#[$doc:meta])+ $name:ident = $module:ident::$loops:ident, ($($argument:ident: $kind:ty),+);)+) => {$(
        $(#[$doc])+
        pub(crate) fn $name(kernels: Kernels, $($argument: $kind),+) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($argument: $kind),+) {
                $module::$loops::<true>($($argument),+);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($argument: $kind),+) {
                $module::$loops::<true>($($argument),+);
            }

            match kernels {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: kernels are chosen only if the machine has their instructions.
                Kernels::Avx2 => unsafe { avx2($($argument),+) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Kernels::Avx512 => unsafe { avx512($($argument),+) },
                #[cfg(target_arch = "aarch64")]
                Kernels::Neon => $module::$loops::<true>($($argument),+),
                _ => $module::$loops::<false>($($argument),+),
            }
        }
    )+};
}

forms! {
    /// Adds a token to a state whose rows are keys.
    advance = matrix::advance, (call: Advance<'_>);
    /// Adds a token to a state whose rows are values.
    across = matrix::across, (call: Across<'_>);
    /// Sums rows, each with its factor. The rows are as long as `out`.
    weigh = matrix::weigh, (rows: &[f32], factors: &[f32], out: &mut [f32]);
    /// `row = a * b * factor`, up to the end of the shortest.
    product = triangle::product, (row: &mut [f32], a: &[f32], b: &[f32], factor: f32);
    /// `row = source * factor`, or 0 in place of products below `least`.
    scale_kept = triangle::scale, (row: &mut [f32], source: &[f32], factor: f32, least: f32);
    /// `row = source * factor`
    scale = triangle::copy, (row: &mut [f32], source: &[f32], factor: f32);
    /// `row = factor * (value - total * row)`
    left = triangle::left, (row: &mut [f32], value: &[f32], factor: f32, total: f32);
    /// `row = row + source * factor`
    add = triangle::add, (row: &mut [f32], source: &[f32], factor: f32);
    /// Adds a token to states that belong to a channel each.
    channels = channels::channels, (call: Channels<'_>);
    /// Adds `rows`, one for each weight of the kernel, to `out`.
    convolve = channels::convolve, (rows: &[&[f32]], weights: &[f32], out: &mut [f32]);
    /// Adds `x`, moved by each place of the kernel, to `out`.
    slide = channels::slide, (x: &[f32], weights: &[f32], out: &mut [f32]);
    /// Replaces each element by `x / (1 + e^-x)`.
    silu = exponential::silu, (row: &mut [f32]);
    /// Replaces each element by `e^x`.
    exp = exponential::exps, (row: &mut [f32]);
    /// Replaces each element by `ln(1 + e^x)`.
    softplus = exponential::softplus, (row: &mut [f32]);
}
