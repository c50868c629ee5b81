//! The Hadamard rotation: every element becomes a sum and difference of all, so that no channel stands out.
//!
//! ```text
//! H_1 = [1]     H_2n = [ H_n  H_n ] / sqrt(2)
//!                      [ H_n -H_n ]
//! ```
//!
//! It is symmetric and orthonormal: it is its own inverse, and the dot product of two rotated rows equals that of the rows.
//! A row whose length is no power of two is rotated in blocks of the largest power of two that divides it. NaN or infinity
//! in a row makes its whole block NaN. O(n log n).

/// Rotates a row in place.
#[inline(always)]
pub(crate) fn hadamard(row: &mut [f32]) {
    if row.is_empty() {
        return;
    }
    let size = 1usize << row.len().trailing_zeros();
    let factor = (1. / (size as f64).sqrt()) as f32;
    for block in row.chunks_exact_mut(size) {
        let done = rotate_known::<32>(block)
            || rotate_known::<64>(block)
            || rotate_known::<128>(block)
            || rotate_known::<256>(block);
        let mut half = if done { size } else { 1 };
        while half < size {
            for pair in block.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        block.iter_mut().for_each(|value| *value *= factor);
    }
}

/// Rotates a block of exactly `N` elements, without the factor; returns false if it has another size.
///
/// Each stage combines neighbours and puts their sums in the lower half and their differences in the upper half, so every
/// stage uses the same vectors. That rotates the bits of the indices by one, so that after all stages every element is at
/// its original index.
#[inline(always)]
fn rotate_known<const N: usize>(block: &mut [f32]) -> bool {
    let Ok(block) = <&mut [f32; N]>::try_from(block) else { return false };
    let mut before = *block;
    for _ in 0..N.trailing_zeros() {
        for place in 0..N / 2 {
            block[place] = before[2 * place] + before[2 * place + 1];
            block[N / 2 + place] = before[2 * place] - before[2 * place + 1];
        }
        before = *block;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry of the matrix by definition: the sign is the parity of the common bits.
    fn entry(size: usize, row: usize, column: usize) -> f64 {
        let sign = if (row & column).count_ones().is_multiple_of(2) { 1. } else { -1. };
        sign / (size as f64).sqrt()
    }

    #[test]
    fn rows_are_multiplied_with_the_matrix_and_come_back() {
        for (len, size) in [(1, 1), (2, 2), (8, 8), (128, 128), (96, 32), (80, 16), (7, 1), (256, 256), (512, 512)] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37 + 11) % 29) as f32 - 14.).collect();
            let mut rotated = row.clone();
            hadamard(&mut rotated);
            for (place, &found) in rotated.iter().enumerate() {
                let start = place / size * size;
                let expected: f64 = (0..size).map(|i| entry(size, place - start, i) * f64::from(row[start + i])).sum();
                assert!((f64::from(found) - expected).abs() < 1e-4, "{len}: {found} is not {expected}");
            }
            hadamard(&mut rotated);
            assert!(rotated.iter().zip(&row).all(|(found, value)| (found - value).abs() < 1e-4), "{len}");
        }
    }
}
