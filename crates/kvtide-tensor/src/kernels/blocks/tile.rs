//! The products of some rows with a panel, written once for all vector instructions.
#![expect(unsafe_code, reason = "vector instructions read and write through pointers")]

use super::{Activation, BlockKernels, COLUMNS, GELU, Products, Shape, Tile, plain};
use crate::kernels::simd::dots::{Avx2Dots, Avx512Dots, AvxVnniDots, Dots, eight_bytes};
use crate::kernels::simd::{Lanes, exp2};

/// # Safety
///
/// The machine has the instructions of `D`, and the call has memory for `R` rows and a panel.
#[inline(always)]
unsafe fn tile<D: Dots, const R: usize, const HAS_ZEROS: bool>(call: Tile) {
    let Tile { panel, blocks, lines, ahead, group, out } = call;
    for first in (0..COLUMNS).step_by(D::Floats::COUNT) {
        // SAFETY: all pointers stay within the memory of the call, or are prefetched only.
        unsafe {
            let mut products = [D::Floats::splat(0.0); R];
            let mut line = panel.add(4 * first);
            let mut words = group;
            for _ in 0..blocks {
                let (block, meta) = (line, words.add(2 * R * lines));
                D::Floats::prefetch(line.wrapping_add(ahead));
                line = line.add(if HAS_ZEROS { 128 } else { 64 });
                let mut dots = [D::start(0); R];
                if !HAS_ZEROS {
                    for (row, dots) in dots.iter_mut().enumerate() {
                        *dots = D::start(*meta.add(R + row));
                    }
                }
                for _ in 0..lines {
                    D::Floats::prefetch(line.wrapping_add(ahead));
                    let codes = D::codes(line);
                    for (row, dots) in dots.iter_mut().enumerate() {
                        *dots = dots.add_products(codes, words.add(2 * row));
                    }
                    (line, words) = (line.add(64), words.add(2 * R));
                }
                let scales = D::Floats::load(block.cast());
                for (row, (dots, products)) in dots.into_iter().zip(&mut products).enumerate() {
                    let dots = if HAS_ZEROS { dots.sub_times(block.add(64).cast(), *meta.add(R + row)) } else { dots };
                    let scale = scales.mul(D::Floats::splat(*meta.add(row).cast()));
                    *products = dots.floats().mul_add(scale, *products);
                }
                words = meta.add(2 * R);
            }
            for (row, products) in products.into_iter().enumerate() {
                products.store(out.add(row).cast::<f32>().add(first));
            }
        }
    }
}

/// # Safety
///
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn gate<V: Lanes>(activation: Activation, gates: &[[f32; COLUMNS]], products: &mut Products) {
    for (gates, products) in gates.iter().zip(products) {
        for first in (0..COLUMNS).step_by(V::COUNT) {
            // SAFETY: a vector is a part of a row.
            unsafe {
                let (x, product) = (V::load(gates[first..].as_ptr()), &mut products[first..]);
                let bent = match activation {
                    Activation::Silu => x,
                    Activation::GeluTanh => x.mul(x.mul(x).mul_add(V::splat(GELU[1]), V::splat(GELU[0]))),
                };
                let power = exp2(bent.mul(V::splat(-std::f32::consts::LOG2_E)));
                let activated = x.div(V::splat(1.0).add(power));
                V::load(product.as_ptr()).mul(activated).store(product.as_mut_ptr());
            }
        }
    }
}

/// A call with more rows than fit in the machine's registers.
unsafe fn none(_: Tile) {
    unreachable!("more rows than the kernels say");
}

macro_rules! kernels {
    ($name:ident, $module:ident, $dots:ty, $features:literal, [$($rows:literal)+], [$($none:ident)*]) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn entry<const R: usize, const HAS_ZEROS: bool>(call: Tile) {
                // SAFETY: the caller fulfils the conditions of the call, and the instructions are enabled here.
                unsafe { tile::<$dots, R, HAS_ZEROS>(call) }
            }

            #[target_feature(enable = $features)]
            fn quantise(shape: Shape, row: &[f32], place: usize, group: &mut [i32]) {
                // SAFETY: the instructions are enabled here.
                plain::quantise(shape, row, place, group, |values, factor| unsafe { eight_bytes(values, factor) });
            }

            #[target_feature(enable = $features)]
            fn gate(activation: Activation, gates: &[[f32; COLUMNS]], products: &mut Products) {
                // SAFETY: the instructions are enabled here.
                unsafe { super::gate::<<$dots as Dots>::Floats>(activation, gates, products) }
            }

            #[target_feature(enable = $features)]
            unsafe fn prefetch(line: *const u8) {
                // SAFETY: any address may be prefetched, and the instructions are enabled here.
                unsafe { <$dots as Dots>::Floats::prefetch(line) }
            }

            pub(in super::super) static KERNELS: BlockKernels = BlockKernels {
                rows: <$dots>::ROWS,
                tile: [$(entry::<$rows, false>,)+ $($none,)*],
                tile_with_zeros: [$(entry::<$rows, true>,)+ $($none,)*],
                quantise,
                gate,
                prefetch,
            };
        }
        pub(super) use $module::KERNELS as $name;
    };
}

kernels!(AVX512, avx512, Avx512Dots, "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", [1 2 3 4 5 6 7 8], []);
kernels!(AVX_VNNI, avx_vnni, AvxVnniDots, "avxvnni,avx2,fma", [1 2 3 4], [none none none none]);
kernels!(AVX2, avx2, Avx2Dots, "avx2,fma", [1 2 3 4], [none none none none]);
