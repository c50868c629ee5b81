//! Checks the results of kernels before they are measured: rows against rows, outputs of attention against a plain
//! loop.

use kvtide_cuda::Span;

use crate::Result;
use crate::numbers::floats;
use crate::place::Place;

pub fn bytes(place: &Place, span: Span<'_>, start: usize, count: usize) -> Result<Vec<u8>> {
    let mut out = vec![0; count];
    place.stream.download(span.from(start), &mut out)?;
    Ok(out)
}

/// Returns an error if rows of `row` bytes differ; `pairs` are byte offsets in the source and in the target.
pub fn rows(
    place: &Place,
    [source, target]: [Span<'_>; 2],
    row: usize,
    pairs: impl Iterator<Item = (usize, usize)>,
) -> Result<()> {
    for (from, to) in pairs {
        if bytes(place, source, from, row)? != bytes(place, target, to, row)? {
            return Err(format!("the row at byte {to} is not the one at byte {from}").into());
        }
    }
    Ok(())
}

/// Returns an error if numbers differ by more than `most`, or if outputs are too small for this to mean anything.
pub fn near(what: &str, found: &[f64], expected: &[f64], most: f64) -> Result<()> {
    assert_eq!(found.len(), expected.len(), "as many outputs");
    let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    if largest < 4.0 * most {
        return Err(format!("{what}: outputs of at most {largest} cannot be told from zeros").into());
    }
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        // This is also false for NaN.
        let is_near = (found - expected).abs() <= most;
        if !is_near {
            return Err(format!("{what}: output {at} is {found}, expected {expected} within {most}").into());
        }
    }
    Ok(())
}

/// Computes one row of attention: a query over keys and values of bf16, in 64-bit floats.
pub fn attended(query: &[u8], keys: &[u8], values: &[u8], dim: usize) -> Vec<f64> {
    let (query, keys, values) = (floats(query), floats(keys), floats(values));
    let dot = |key: &[f64]| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt();
    let scores: Vec<f64> = keys.chunks(dim).map(dot).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; dim];
    for (weight, value) in weights.iter().zip(values.chunks(dim)) {
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight / sum * value);
    }
    out
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn row(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|&number| bf16::from_f32(number).to_le_bytes()).collect()
    }

    #[test]
    fn attention_weighs_values_by_their_scores() {
        // Scores 0 and 4 * 1 / 2 = 2.
        let out = attended(
            &row(&[4.0, 0.0, 0.0, 0.0]),
            &row(&[0.0, 5.0, 5.0, 5.0, 1.0, 0.0, 0.0, 0.0]),
            &row(&[1.0, 0.0, 0.0, 8.0, 0.0, 1.0, 0.0, 8.0]),
            4,
        );
        let weight = 2f64.exp() / (1.0 + 2f64.exp());
        near("out", &out, &[1.0 - weight, weight, 0.0, 8.0], 1e-12).unwrap();
    }

    #[test]
    fn what_differs_or_says_nothing_is_refused() {
        assert!(near("a", &[1.0, 2.0], &[1.0, 2.2], 0.1).unwrap_err().to_string().starts_with("a: output 1 is 2"));
        assert!(near("a", &[f64::NAN], &[1.0], 0.1).is_err());
        assert!(near("a", &[0.0], &[0.01], 0.1).unwrap_err().to_string().contains("cannot be told from zeros"));
        near("a", &[1.05], &[1.0], 0.1).unwrap();
    }
}
