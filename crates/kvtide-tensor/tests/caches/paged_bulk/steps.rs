//! The allowed difference of a value from the original, in each format: computed here in f64, from the definition.

use kvtide_core::paged::PageFormat;

/// The smallest step but 0.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

/// Rows of one head of a page, as they went in and as they came out; `[tokens][dim]`.
pub struct Rows<'a> {
    pub before: &'a [Vec<f64>],
    pub after: &'a [Vec<f64>],
}

/// The Hadamard matrix times a row, in blocks of the largest power of two in its length.
pub fn rotated(row: &[f64]) -> Vec<f64> {
    let size = 1usize << row.len().trailing_zeros();
    let entry = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1. } else { -1. };
    let rotate = |block: &[f64]| -> Vec<f64> {
        (0..size).map(|i| (0..size).map(|j| entry(i, j) * block[j]).sum::<f64>() / (size as f64).sqrt()).collect()
    };
    row.chunks(size).flat_map(rotate).collect()
}

/// Half a step of the neighbours of a value; from the largest one, 448, whatever is beyond it.
fn f8_bound(value: f64) -> f64 {
    let exponent = value.abs().max(2f64.powi(-6)).log2().floor();
    2f64.powf(exponent - 4.).max(value.abs() - 448.)
}

/// Half a step of `q8`: of a row whose largest magnitude this is, the step rounded to eight bits.
fn q8_bound(row: &[f64]) -> f64 {
    let largest = row.iter().fold(0f64, |largest, value| largest.max(value.abs()));
    (largest / 127. * (1. + 1. / 256.)).max(SMALLEST) / 2.
}

/// Half a step of `q4`: of values whose bounds these are, the minimum rounded to ten bits and the step to seven.
fn q4_bound(values: &[f64]) -> f64 {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    ((high - low + low.abs() / 512.) / 15. * (1. + 1. / 128.)).max(SMALLEST) / 2.
}

/// Says which value is farther from its own than half a step, and the rounding of f32 and of `grain`.
pub fn check(format: PageFormat, is_key: bool, grain: f64, rows: &Rows<'_>) -> Result<(), String> {
    let dim = rows.before[0].len();
    for (token, (before, after)) in rows.before.iter().zip(rows.after).enumerate() {
        for place in 0..dim {
            let bound = match format {
                PageFormat::F8E4M3 => f8_bound(before[place]),
                PageFormat::Q8 => q8_bound(before),
                PageFormat::Q4 if is_key => q4_bound(&rows.before.iter().map(|row| row[place]).collect::<Vec<_>>()),
                PageFormat::Q4 => q4_bound(before),
                _ => 0.,
            };
            // In q4, rounding in one row of K widens the steps of all rows.
            let shared = if format == PageFormat::Q4 && is_key { rows.before } else { &rows.before[token..=token] };
            let largest = shared.iter().flatten().chain(after).fold(0f64, |largest, value| largest.max(value.abs()));
            let error = (before[place] - after[place]).abs();
            if error.is_nan() || error > bound * 1.0001 + largest * grain {
                let (value, found) = (before[place], after[place]);
                return Err(format!(
                    "{format}: token {token}, element {place}: {value} came out as {found}, bound {bound}"
                ));
            }
        }
    }
    Ok(())
}
