//! The highest rate of multiply-adds: independent sums in registers, with the widest vectors of the machine.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "calls of functions with instructions of their own"))]

use std::hint::black_box;

/// Computes as many multiply-adds, shared among threads.
pub fn run(products: f64, threads: usize) {
    let share = products / threads as f64;
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(move || sums(share))));
        sums(share);
    });
}

#[cfg(target_arch = "x86_64")]
fn sums(products: f64) {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the machine has the instructions.
        unsafe { x86::avx512(products) };
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the machine has the instructions.
        unsafe { x86::avx2(products) };
    } else {
        plain::<4>(products);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn sums(products: f64) {
    plain::<4>(products);
}

/// Independent sums of arrays.
fn plain<const LANES: usize>(products: f64) {
    let (factor, term) = (black_box([0.999f32; LANES]), black_box([0.001f32; LANES]));
    let mut sums = [[0.0f32; LANES]; 12];
    for _ in 0..(products / (12 * LANES) as f64) as u64 {
        for sum in &mut sums {
            (0..LANES).for_each(|lane| sum[lane] = sum[lane] * factor[lane] + term[lane]);
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps, _mm512_fmadd_ps, _mm512_set1_ps};
    use std::hint::black_box;

    macro_rules! sums {
        ($name:ident, $features:literal, $lanes:literal, $splat:ident, $fused:ident) => {
            #[target_feature(enable = $features)]
            pub fn $name(products: f64) {
                let (factor, term) = ($splat(black_box(0.999)), $splat(black_box(0.001)));
                let mut sums = [$splat(0.0); 12];
                for _ in 0..(products / (12 * $lanes) as f64) as u64 {
                    for sum in &mut sums {
                        *sum = $fused(*sum, factor, term);
                    }
                }
                black_box(sums);
            }
        };
    }

    sums!(avx512, "avx512f", 16, _mm512_set1_ps, _mm512_fmadd_ps);
    sums!(avx2, "avx2,fma", 8, _mm256_set1_ps, _mm256_fmadd_ps);
}
