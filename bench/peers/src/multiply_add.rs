//! Measures multiply-adds alone: the machine's peak rate, independent of memory.
//!
//! It uses the machine's widest vectors in twelve chains, more than any core executes at once.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "vectors are named that not every machine has"))]

use std::hint::black_box;

const CHAINS: usize = 12;

/// Does at least `count` multiply-adds of 32-bit floats on this thread.
pub fn multiply_adds(count: u64) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has these vectors.
            return unsafe { avx512(count.div_ceil(16 * CHAINS as u64)) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the machine has these vectors.
            return unsafe { avx2(count.div_ceil(8 * CHAINS as u64)) };
        }
    }
    portable(count.div_ceil(4 * CHAINS as u64))
}

/// The numbers are chosen so that a sum neither grows nor becomes denormal, which would be slow.
#[cfg(target_arch = "x86_64")]
macro_rules! chains {
    ($turns:ident, $set:ident, $multiply_add:ident) => {{
        let (factor, term) = ($set(black_box(0.5)), $set(black_box(0.5)));
        let mut sums = [$set(black_box(1.)); CHAINS];
        for _ in 0..$turns {
            for sum in &mut sums {
                *sum = $multiply_add(*sum, factor, term);
            }
        }
        sums
    }};
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(turns: u64) -> f32 {
    use std::arch::x86_64::*;
    let sums = chains!(turns, _mm512_set1_ps, _mm512_fmadd_ps);
    sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(turns: u64) -> f32 {
    use std::arch::x86_64::*;
    let sums = chains!(turns, _mm256_set1_ps, _mm256_fmadd_ps);
    sums.into_iter().map(|sum| _mm256_cvtss_f32(sum) * 8.).sum()
}

/// Four lanes per chain, which compilers turn into one vector on other machines.
fn portable(turns: u64) -> f32 {
    let (factor, term) = (black_box(0.5f32), black_box(0.5f32));
    let mut sums = [[black_box(1f32); 4]; CHAINS];
    for _ in 0..turns {
        for lane in sums.iter_mut().flatten() {
            *lane = lane.mul_add(factor, term);
        }
    }
    sums.iter().flatten().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_times_a_half_and_a_half_is_one() {
        assert_eq!(multiply_adds(1000) % CHAINS as f32, 0.);
        assert!(multiply_adds(1000) > 0.);
        assert_eq!(portable(10), 4. * CHAINS as f32);
    }
}
