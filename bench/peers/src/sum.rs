//! A plain sum over elements: the lower limit for reading them.
//!
//! It uses the machine's widest vectors, enough independent sums that none waits for the one before it, and four
//! streams, because with small pages a single stream doesn't keep memory busy. Half floats are converted to 32-bit
//! floats, as any computation must.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "vectors are named, and loaded through pointers"))]

use half::slice::HalfFloatSliceExt;
use kvtide_tensor::DType;

/// Returns the sum of elements of this type. Elements that don't fill the last group of vectors are added one by one.
pub fn sum(dtype: DType, bytes: &[u8]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the machine has these vectors.
            return unsafe { avx512(dtype, bytes) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            // SAFETY: the machine has these vectors.
            return unsafe { avx2(dtype, bytes) };
        }
    }
    one_by_one(dtype, bytes)
}

/// Returns the same sum without explicit vectors.
fn one_by_one(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F32 => bytes.chunks_exact(4).map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]])).sum(),
        DType::F16 => halves::<half::f16>(bytes),
        DType::BF16 => halves::<half::bf16>(bytes),
        DType::U8 => bytes.iter().map(|&byte| f32::from(byte)).sum(),
    }
}

fn halves<T>(bytes: &[u8]) -> f32
where
    T: Copy + Default,
    [T]: HalfFloatSliceExt,
{
    let mut total = 0.;
    for group in bytes.chunks(128) {
        let (mut bits, mut floats) = ([T::default(); 64], [0f32; 64]);
        for (bits, two) in bits.reinterpret_cast_mut().iter_mut().zip(group.chunks_exact(2)) {
            *bits = u16::from_ne_bytes([two[0], two[1]]);
        }
        bits.convert_to_f32_slice(&mut floats);
        total += floats.iter().sum::<f32>();
    }
    total
}

/// Computes eight sums at once, of vectors of `$width` bytes from four streams with a quarter of the bytes each.
#[cfg(target_arch = "x86_64")]
macro_rules! eight_sums {
    ($dtype:ident, $bytes:ident, $width:literal, $zero:expr, $add:ident, |$at:ident| $load:expr) => {{
        let quarter = $bytes.len() / (8 * $width) * (2 * $width);
        let rest = one_by_one($dtype, &$bytes[4 * quarter..]);
        let mut sums = [[$zero; 2]; 4];
        for pair in (0..quarter).step_by(2 * $width) {
            for (stream, sums) in sums.iter_mut().enumerate() {
                let pair = &$bytes[stream * quarter + pair..][..2 * $width];
                for (index, sum) in sums.iter_mut().enumerate() {
                    let $at = pair[$width * index..].as_ptr();
                    // SAFETY: a pair has two vectors, and a load needs no alignment.
                    *sum = $add(*sum, unsafe { $load });
                }
            }
        }
        (sums.into_iter().flatten(), rest)
    }};
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn avx512(dtype: DType, bytes: &[u8]) -> f32 {
    use std::arch::x86_64::*;
    let zero = _mm512_setzero_ps();
    let (sums, rest) = match dtype {
        DType::F32 => eight_sums!(dtype, bytes, 64, zero, _mm512_add_ps, |at| _mm512_loadu_ps(at.cast())),
        DType::F16 => {
            eight_sums!(dtype, bytes, 32, zero, _mm512_add_ps, |at| _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())))
        }
        DType::BF16 => eight_sums!(dtype, bytes, 32, zero, _mm512_add_ps, |at| _mm512_castsi512_ps(
            _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())))
        )),
        DType::U8 => return one_by_one(dtype, bytes),
    };
    sums.map(|sum| _mm512_reduce_add_ps(sum)).sum::<f32>() + rest
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn avx2(dtype: DType, bytes: &[u8]) -> f32 {
    use std::arch::x86_64::*;
    let zero = _mm256_setzero_ps();
    let (sums, rest) = match dtype {
        DType::F32 => eight_sums!(dtype, bytes, 32, zero, _mm256_add_ps, |at| _mm256_loadu_ps(at.cast())),
        DType::F16 => {
            eight_sums!(dtype, bytes, 16, zero, _mm256_add_ps, |at| _mm256_cvtph_ps(_mm_loadu_si128(at.cast())))
        }
        DType::BF16 => eight_sums!(dtype, bytes, 16, zero, _mm256_add_ps, |at| _mm256_castsi256_ps(
            _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())))
        )),
        DType::U8 => return one_by_one(dtype, bytes),
    };
    let mut floats = [0f32; 8];
    let mut total = rest;
    for sum in sums {
        // SAFETY: eight floats have room in eight floats.
        unsafe { _mm256_storeu_ps(floats.as_mut_ptr(), sum) };
        total += floats.iter().sum::<f32>();
    }
    total
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Small whole numbers, whose sum is exact in every type and every order.
    fn bytes(dtype: DType, count: usize) -> Vec<u8> {
        let number = |index: usize| (index * 7 % 13) as f32 - 4.;
        (0..count)
            .flat_map(|index| match dtype {
                DType::F32 => number(index).to_ne_bytes().to_vec(),
                DType::F16 => f16::from_f32(number(index)).to_ne_bytes().to_vec(),
                DType::BF16 => bf16::from_f32(number(index)).to_ne_bytes().to_vec(),
                DType::U8 => vec![index as u8 % 13],
            })
            .collect()
    }

    #[test]
    fn every_form_adds_up_the_same() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::U8] {
            for count in [0, 1, 127, 128, 1000] {
                let bytes = bytes(dtype, count);
                let expected = one_by_one(dtype, &bytes);
                assert_eq!(sum(dtype, &bytes), expected, "{dtype} {count}");
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                    // SAFETY: the machine has these vectors.
                    assert_eq!(unsafe { avx2(dtype, &bytes) }, expected, "{dtype} {count}");
                }
            }
        }
        let four = bytes(DType::F32, 13);
        assert_eq!(sum(DType::F32, &four), (0..13).map(|number| number as f32 - 4.).sum::<f32>());
    }
}
