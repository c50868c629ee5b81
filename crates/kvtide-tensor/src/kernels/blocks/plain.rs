//! The same without vector instructions.

use super::{Activation, COLUMNS, GATE_MIN, GELU, Line, Precision, Products, Shape};
use crate::kernels::simd::POWERS;

/// Copies a row into its place in a group. Elements that the row lacks are 0. If rows are quantised and an element is not
/// finite, the scale of its block is NaN.
pub(crate) fn lay_plain(shape: Shape, row: &[f32], place: usize, group: &mut [i32]) {
    match shape.precision {
        Precision::Bytes => quantise_plain(shape, row, place, group),
        Precision::Floats => lay_floats(shape, row, place, group),
    }
}

/// Copies the floats of a row.
#[inline(always)]
pub(super) fn lay_floats(shape: Shape, row: &[f32], place: usize, group: &mut [i32]) {
    let count = group.len() / shape.row();
    let (numbers, behind) = group.split_at_mut(count * row.len());
    for (numbers, value) in numbers.chunks_exact_mut(count).zip(row) {
        numbers[place] = value.to_bits() as i32;
    }
    behind.chunks_exact_mut(count).for_each(|numbers| numbers[place] = 0);
}

fn quantise_plain(shape: Shape, row: &[f32], place: usize, group: &mut [i32]) {
    quantise(shape, row, place, group, |values, factor| {
        let bytes = values.map(|value| (value * factor).round_ties_even() as i8);
        let [a, b, c, d, e, f, g, h] = bytes.map(|byte| byte as u8);
        let sum = bytes.iter().map(|&byte| i32::from(byte)).sum();
        ([i32::from_le_bytes([a, c, e, g]), i32::from_le_bytes([b, d, f, h])], sum)
    });
}

/// The same with a function that multiplies eight elements with a factor, and returns their bytes and the sum of these.
#[inline(always)]
pub(super) fn quantise(
    shape: Shape,
    row: &[f32],
    place: usize,
    group: &mut [i32],
    eight_bytes: impl Fn(&[f32; 8], f32) -> ([i32; 2], i32),
) {
    let count = group.len() / shape.row();
    for (values, words) in row.chunks(shape.block).zip(group.chunks_exact_mut(count * shape.words())) {
        // The bits of a magnitude are in the order of magnitudes, and those of NaN above all others.
        let largest = values.iter().fold(0, |largest, value| (value.to_bits() & 0x7fff_ffff).max(largest));
        let largest = f32::from_bits(largest);
        let factor = Some(127.0 / largest).filter(|factor| factor.is_finite()).unwrap_or(0.0);
        let (bytes, meta) = words.split_at_mut(shape.block / 4 * count);
        let mut total = 0;
        for (index, words) in bytes.chunks_exact_mut(2 * count).enumerate() {
            let rest = values.get(8 * index..).unwrap_or_default();
            let (bytes, sum) = match rest.first_chunk::<8>() {
                Some(eight) => eight_bytes(eight, factor),
                None => {
                    let mut eight = [0.0; 8];
                    eight[..rest.len()].copy_from_slice(rest);
                    eight_bytes(&eight, factor)
                }
            };
            total += sum;
            words[2 * place..2 * place + 2].copy_from_slice(&bytes);
        }
        let scale = if largest.is_finite() { largest / 127.0 } else { f32::NAN };
        meta[place] = scale.to_bits() as i32;
        meta[count + place] = if shape.has_zeros { total } else { -8 * total };
    }
}

/// Computes the products of a group of `count` rows with a panel.
pub(crate) fn multiply_plain(lines: &[Line], shape: Shape, group: &[i32], count: usize, out: &mut Products) {
    out[..count].fill([0.0; COLUMNS]);
    let blocks = lines.chunks_exact(shape.lines()).zip(group.chunks_exact(count * shape.words()));
    for (lines, words) in blocks.take(shape.blocks) {
        let scales: &[f32; COLUMNS] = bytemuck::cast_ref(&lines[0]);
        if shape.precision == Precision::Floats {
            for (row, out) in out.iter_mut().enumerate().take(count) {
                for (column, out) in out.iter_mut().enumerate() {
                    *out = float_sum(lines, shape, &words[row..], count, column).mul_add(scales[column], *out);
                }
            }
            continue;
        }
        let zeros: [i32; COLUMNS] = if shape.has_zeros { bytemuck::cast(lines[1]) } else { [-1; COLUMNS] };
        let (bytes, meta) = words.split_at(shape.block / 4 * count);
        for (row, out) in out.iter_mut().enumerate().take(count) {
            let (scale, sum) = (f32::from_bits(meta[row] as u32), meta[count + row]);
            for (column, out) in out.iter_mut().enumerate() {
                let eights = lines[shape.lead()..].iter().zip(bytes.chunks_exact(2 * count));
                let products = eights.flat_map(|(line, words)| {
                    let [evens, odds] = [0, 1].map(|of| words[2 * row + of].to_le_bytes());
                    let codes = line.0[4 * column..][..4].iter();
                    codes.zip(evens.into_iter().zip(odds)).map(|(code, (even, odd))| {
                        i32::from(code & 15) * i32::from(even as i8) + i32::from(code >> 4) * i32::from(odd as i8)
                    })
                });
                let dots = products.sum::<i32>() - zeros[column] * sum;
                *out = (dots as f32).mul_add(scales[column] * scale, *out);
            }
        }
    }
}

/// The sum of a block's products of a row and a column. The row's floats are `count` words apart.
fn float_sum(lines: &[Line], shape: Shape, words: &[i32], count: usize, column: usize) -> f32 {
    let zero = if shape.has_zeros { bytemuck::cast_ref::<_, [i32; COLUMNS]>(&lines[1])[column] } else { 8 };
    (0..shape.block).zip(words.iter().step_by(count)).fold(0.0, |sum, (index, &word)| {
        let byte = lines[shape.lead() + index / 8].0[4 * column + index % 8 / 2];
        let code = i32::from(byte >> (4 * (index % 2)) & 15);
        f32::from_bits(word as u32).mul_add((code - zero) as f32, sum)
    })
}

/// Multiplies products by the activated ones of a gate.
pub(crate) fn gate_plain(activation: Activation, gates: &[[f32; COLUMNS]], products: &mut Products) {
    for (&x, product) in gates.as_flattened().iter().zip(products.as_flattened_mut()) {
        let x = if x < GATE_MIN { GATE_MIN } else { x };
        let bent = match activation {
            Activation::Silu => x,
            Activation::GeluTanh => x * (x * x).mul_add(GELU[1], GELU[0]),
        };
        *product *= x / (1.0 + exp2(bent * -std::f32::consts::LOG2_E));
    }
}

/// The function of this name of `kernels/simd`, with the same bits.
fn exp2(exponent: f32) -> f32 {
    let clamped = if exponent.is_nan() { exponent } else { exponent.clamp(-127.0, 127.0) };
    let whole = clamped.round_ties_even();
    let rest = clamped - whole;
    let power = POWERS.iter().fold(0.0_f32, |power, &term| power.mul_add(rest, term));
    power * f32::from_bits(((whole as i32 + 127) as u32) << 23)
}
