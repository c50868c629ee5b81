//! The products of some rows with a panel, written once for all vector instructions.
#![expect(unsafe_code, reason = "vector instructions read and write through pointers")]

use super::{
    Activation, BlockKernels, COLUMNS, GATE_MIN, GELU, Products, ROWS, Shape, Tile, WideKernels, WideTile, plain,
};
use crate::kernels::simd::avx2::Avx2;
use crate::kernels::simd::avx512::Avx512;
use crate::kernels::simd::dots::{Avx2Dots, Avx512Dots, AvxVnniDots, Codes, Dots, eight_bytes};
use crate::kernels::simd::{Lanes, exp2};

/// # Safety
///
/// The machine has the instructions of `D`, and the call has memory for `R` rows and a panel. `W` vectors of columns are in
/// registers at a time: with few rows, all columns are, and a line is read once.
#[inline(always)]
unsafe fn tile<D: Dots, const R: usize, const W: usize, const HAS_ZEROS: bool>(call: Tile) {
    let Tile { panel, blocks, lines, ahead, group, out, .. } = call;
    for first in (0..COLUMNS).step_by(W * D::Floats::COUNT) {
        // SAFETY: all pointers stay within the memory of the call, or are prefetched only.
        unsafe {
            let mut products = [[D::Floats::splat(0.0); R]; W];
            let mut line = panel.add(4 * first);
            let mut words = group;
            for _ in 0..blocks {
                let (block, meta) = (line, words.add(2 * R * lines));
                D::Floats::prefetch(line.wrapping_add(ahead));
                line = line.add(if HAS_ZEROS { 128 } else { 64 });
                let mut start = [D::start(0); R];
                if !HAS_ZEROS {
                    for (row, start) in start.iter_mut().enumerate() {
                        *start = D::start(*meta.add(R + row));
                    }
                }
                let mut dots = [start; W];
                for _ in 0..lines {
                    D::Floats::prefetch(line.wrapping_add(ahead));
                    for (vector, dots) in dots.iter_mut().enumerate() {
                        let codes = D::codes(line.add(4 * vector * D::Floats::COUNT));
                        for (row, dots) in dots.iter_mut().enumerate() {
                            *dots = dots.add_products(codes, words.add(2 * row));
                        }
                    }
                    (line, words) = (line.add(64), words.add(2 * R));
                }
                for (vector, (dots, products)) in dots.into_iter().zip(&mut products).enumerate() {
                    let block = block.add(4 * vector * D::Floats::COUNT);
                    let scales = D::Floats::load(block.cast());
                    for (row, (dots, products)) in dots.into_iter().zip(products).enumerate() {
                        let zeros = block.add(64).cast();
                        let dots = if HAS_ZEROS { dots.sub_times(zeros, *meta.add(R + row)) } else { dots };
                        let scale = scales.mul(D::Floats::splat(*meta.add(row).cast()));
                        *products = dots.floats().mul_add(scale, *products);
                    }
                }
                words = meta.add(2 * R);
            }
            for (vector, products) in products.into_iter().enumerate() {
                for (row, products) in products.into_iter().enumerate() {
                    products.store(out.add(row).cast::<f32>().add(first + vector * D::Floats::COUNT));
                }
            }
        }
    }
}

/// The same with rows of floats, and as many panels as `W` vectors of columns take, at least one.
///
/// # Safety
///
/// As for [`tile`], with memory for these panels.
#[inline(always)]
unsafe fn float_tile<V: Codes, const R: usize, const W: usize, const HAS_ZEROS: bool>(call: Tile) {
    let Tile { panel, panel_stride, blocks, lines, ahead, group, out } = call;
    for first in (0..COLUMNS).step_by((W * V::COUNT).min(COLUMNS)) {
        let column = |vector: usize| first + vector * V::COUNT;
        // SAFETY: all pointers stay within the memory of the call, or are prefetched only.
        unsafe {
            let place = |vector: usize| column(vector) / COLUMNS * panel_stride + column(vector) % COLUMNS * 4;
            let mut products = [[V::splat(0.0); R]; W];
            let mut line = panel;
            let mut numbers: *const f32 = group.cast();
            for _ in 0..blocks {
                let block = line;
                each_panel::<W, V>(|panel| V::prefetch(line.wrapping_add(panel * panel_stride + ahead)));
                line = line.add(if HAS_ZEROS { 128 } else { 64 });
                let mut zeros = [V::splat(0.0); W];
                if HAS_ZEROS {
                    for (vector, zeros) in zeros.iter_mut().enumerate() {
                        *zeros = V::load_integers(block.add(64 + place(vector)).cast());
                    }
                }
                let mut sums = [[V::splat(0.0); R]; W];
                for _ in 0..lines {
                    each_panel::<W, V>(|panel| V::prefetch(line.wrapping_add(panel * panel_stride + ahead)));
                    for at in 0..8 {
                        for (vector, (sums, zeros)) in sums.iter_mut().zip(zeros).enumerate() {
                            let words = line.add(place(vector));
                            let weights = match HAS_ZEROS {
                                true => V::code::<0>(words, at).sub(zeros),
                                false => V::code::<8>(words, at),
                            };
                            for (row, sum) in sums.iter_mut().enumerate() {
                                *sum = V::splat(*numbers.add(row)).mul_add(weights, *sum);
                            }
                        }
                        numbers = numbers.add(R);
                    }
                    line = line.add(64);
                }
                for (vector, (sums, products)) in sums.into_iter().zip(&mut products).enumerate() {
                    let scales = V::load(block.add(place(vector)).cast());
                    for (sum, products) in sums.into_iter().zip(products) {
                        *products = sum.mul_add(scales, *products);
                    }
                }
            }
            for (vector, products) in products.into_iter().enumerate() {
                let out = out.add(column(vector) / COLUMNS * ROWS).cast::<f32>().add(column(vector) % COLUMNS);
                for (row, products) in products.into_iter().enumerate() {
                    products.store(out.add(row * COLUMNS));
                }
            }
        }
    }
}

/// Calls `each` with the index of each panel that `W` vectors of columns are in.
#[inline(always)]
fn each_panel<const W: usize, V: Lanes>(each: impl FnMut(usize)) {
    (0..(W * V::COUNT).div_ceil(COLUMNS)).for_each(each);
}

/// The vectors of columns of a wide call.
const WIDE: usize = 2;

/// Unpacks the codes of the panels of a wide call, `stride` bytes apart.
///
/// # Safety
///
/// The machine has the instructions of `V`, and there is memory for the panels and their weights.
#[inline(always)]
unsafe fn unpack<V: Codes>(shape: Shape, panels: *const u8, stride: usize, mut weights: *mut f32) {
    for index in 0..shape.blocks * shape.block / 8 {
        let (block, line) = (index / (shape.block / 8), index % (shape.block / 8));
        for place in 0..8 {
            for vector in 0..WIDE {
                let column = vector * V::COUNT;
                // SAFETY: a line of a block of a panel, and a vector of its columns.
                unsafe {
                    let block =
                        panels.add(column / COLUMNS * stride + block * shape.lines() * 64 + column % COLUMNS * 4);
                    let line = block.add((shape.lead() + line) * 64);
                    let numbers = match shape.has_zeros {
                        true => V::code::<0>(line, place).sub(V::load_integers(block.add(64).cast())),
                        false => V::code::<8>(line, place),
                    };
                    numbers.store(weights.add(column));
                }
            }
            // SAFETY: the end of a row of weights.
            weights = unsafe { weights.add(WIDE * V::COUNT) };
        }
    }
}

/// The products of a group with unpacked weights, with the same sums as in [`float_tile`].
///
/// # Safety
///
/// As for [`tile`], with the panels of a wide call.
#[inline(always)]
unsafe fn wide_tile<V: Codes, const R: usize>(call: WideTile) {
    let WideTile { weights, panel, panel_stride, block_stride, blocks, block, group, out } = call;
    let (mut weights, mut numbers) = (weights, group);
    // SAFETY: all pointers stay within the memory of the call.
    unsafe {
        let place = |row: usize, vector: usize| {
            let column = vector * V::COUNT;
            out.cast::<f32>().add(column / COLUMNS * ROWS * COLUMNS + row * COLUMNS + column % COLUMNS)
        };
        for index in 0..blocks {
            let mut sums = [[V::splat(0.0); WIDE]; R];
            for _ in 0..block {
                let mut columns = [V::splat(0.0); WIDE];
                for (vector, column) in columns.iter_mut().enumerate() {
                    *column = V::load(weights.add(vector * V::COUNT));
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let number = V::splat(*numbers.add(row));
                    for (sum, column) in sums.iter_mut().zip(columns) {
                        *sum = number.mul_add(column, *sum);
                    }
                }
                (weights, numbers) = (weights.add(WIDE * V::COUNT), numbers.add(R));
            }
            for vector in 0..WIDE {
                let column = vector * V::COUNT;
                let of_panel = panel.add(column / COLUMNS * panel_stride + column % COLUMNS * 4);
                let scales = V::load(of_panel.add(index * block_stride).cast());
                for (row, sums) in sums.iter().enumerate() {
                    let before = if index == 0 { V::splat(0.0) } else { V::load(place(row, vector)) };
                    sums[vector].mul_add(scales, before).store(place(row, vector));
                }
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
                let x = x.max(V::splat(GATE_MIN));
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
unsafe fn none<T>(_: T) {
    unreachable!("more rows than the kernels say");
}

/// A table of kernels: the function of a tile, that which copies rows, the vectors of floats, the instructions, and the numbers
/// of rows whose sums fit in the machine's registers, each with the vectors of columns at a time. Then those with the vectors of
/// two panels, without and with zero points, and true if many rows have kernels of their own.
macro_rules! kernels {
    (
        $name:ident, $module:ident, $tile:ident<$kind:ty>, $lay:expr, $floats:ty, $features:literal,
        [$($rows:literal: $vectors:literal)+], [$($none:ident)*],
        [$($few:literal: $both:literal)*], [$($few_with_zeros:literal: $both_with_zeros:literal)*], $is_wide:literal
    ) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn entry<const R: usize, const W: usize, const HAS_ZEROS: bool>(call: Tile) {
                // SAFETY: the caller fulfils the conditions of the call, and the instructions are enabled here.
                unsafe { $tile::<$kind, R, W, HAS_ZEROS>(call) }
            }

            #[target_feature(enable = $features)]
            fn lay(shape: Shape, row: &[f32], place: usize, group: &mut [i32]) {
                $lay(shape, row, place, group);
            }

            #[target_feature(enable = $features)]
            fn gate(activation: Activation, gates: &[[f32; COLUMNS]], products: &mut Products) {
                // SAFETY: the instructions are enabled here.
                unsafe { super::gate::<$floats>(activation, gates, products) }
            }

            #[target_feature(enable = $features)]
            unsafe fn prefetch(line: *const u8) {
                // SAFETY: any address may be prefetched, and the instructions are enabled here.
                unsafe { <$floats>::prefetch(line) }
            }

            #[target_feature(enable = $features)]
            unsafe fn unpack(shape: Shape, panels: *const u8, stride: usize, weights: *mut f32) {
                // SAFETY: the caller fulfils the conditions of the call, and the instructions are enabled here.
                unsafe { super::unpack::<$floats>(shape, panels, stride, weights) }
            }

            #[target_feature(enable = $features)]
            unsafe fn wide<const R: usize>(call: WideTile) {
                // SAFETY: the caller fulfils the conditions of the call, and the instructions are enabled here.
                unsafe { wide_tile::<$floats, R>(call) }
            }

            pub(in super::super) static KERNELS: BlockKernels = BlockKernels {
                rows: [$($rows,)+].len(),
                tile: [
                    [$(entry::<$rows, $vectors, false>,)+ $($none,)*],
                    [$(entry::<$rows, $vectors, true>,)+ $($none,)*],
                ],
                pairs: [
                    &[$(entry::<$few, $both, false>,)*],
                    &[$(entry::<$few_with_zeros, $both_with_zeros, true>,)*],
                ],
                lay,
                gate,
                prefetch,
                wide: if $is_wide {
                    let panels = WIDE * <$floats>::COUNT / COLUMNS;
                    Some(WideKernels { panels, unpack, tile: [$(wide::<$rows>,)+ $($none,)*] })
                } else {
                    None
                },
            };
        }
        pub(super) use $module::KERNELS as $name;
    };
}

/// Quantises a row; inlined with the instructions of AVX2.
#[inline(always)]
fn quantise(shape: Shape, row: &[f32], place: usize, group: &mut [i32]) {
    // SAFETY: the callers have the instructions enabled.
    plain::quantise(shape, row, place, group, |values, factor| unsafe { eight_bytes(values, factor) });
}

kernels!(
    AVX512, avx512, tile<Avx512Dots>, quantise, Avx512,
    "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma",
    [1: 1 2: 1 3: 1 4: 1 5: 1 6: 1 7: 1 8: 1], [none none none none], [], [], false
);
kernels!(
    AVX_VNNI, avx_vnni, tile<AvxVnniDots>, quantise, Avx2,
    "avxvnni,avx2,fma", [1: 2 2: 2 3: 1 4: 1], [none none none none none none none none], [], [], false
);
kernels!(
    AVX2, avx2, tile<Avx2Dots>, quantise, Avx2,
    "avx2,fma", [1: 2 2: 2 3: 1 4: 1], [none none none none none none none none], [], [], false
);
kernels!(
    AVX512_FLOATS, avx512_floats, float_tile<Avx512>, plain::lay_floats, Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma",
    [1: 1 2: 1 3: 1 4: 1 5: 1 6: 1 7: 1 8: 1 9: 1 10: 1 11: 1 12: 1], [], [1: 2 2: 2], [1: 2 2: 2], true
);
kernels!(
    AVX2_FLOATS, avx2_floats, float_tile<Avx2>, plain::lay_floats, Avx2,
    "avx2,fma", [1: 2 2: 2 3: 1 4: 1 5: 1 6: 1], [none none none none none none], [1: 4], [], true
);
