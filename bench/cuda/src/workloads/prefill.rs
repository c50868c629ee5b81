//! Measures attention of the last chunk of prompts, which is bound by the tensor cores.

use std::cell::Cell;

use candle_core::{DType, Tensor};
use kvtide_bench::{Amount, Role};
use kvtide_cuda::RowFormat;

use super::decode::BF16_MOST;
use super::keys::{Keys, Pool};
use super::queries::Queries;
use super::{Bench, Measurement};
use crate::Result;
use crate::sizes::Sizes;

/// Returns the multiplications and additions of a chunk's queries; each query sees all keys up to its own.
fn flops(sizes: &Sizes) -> f64 {
    let Sizes { chunk, chunks, keys, query_heads, dim, .. } = *sizes;
    let seen: usize = (0..chunk).map(|query| keys - chunk + query + 1).sum();
    // Scores, and the sum of values.
    (4 * dim * query_heads * chunks) as f64 * seen as f64
}

pub fn measure(bench: &Bench<'_>) -> Result<Measurement> {
    let Bench { place, sizes, .. } = *bench;
    let Sizes { chunk, chunks, keys: count, kv_heads, query_heads, dim, matrix, .. } = *sizes;
    let keys = Keys::new(bench)?;
    let pages = Pool::new(bench, &keys, RowFormat::Bf16)?;
    let low = Pool::new(bench, &keys, RowFormat::Q8)?;
    let queries = Queries::new(bench, chunks, chunk)?;
    let (rows, contiguous) = (keys.rows, keys.contiguous(sizes));
    queries.attend(contiguous)?;
    queries.check("contiguous", rows, false, BF16_MOST)?;
    queries.attend(pages.layer(1))?;
    queries.check("pages", rows, true, BF16_MOST)?;
    // The CPU doesn't multiply matrices of bf16.
    let dtype = if place.is_gpu() { DType::BF16 } else { DType::F32 };
    let side = |_| Tensor::randn(0f32, 1f32, (matrix, matrix), &place.device)?.to_dtype(dtype);
    let [a, b] = [side(0)?, side(1)?];
    let amount = Amount { bytes: 0.0, flops: flops(sizes) };
    let product = Amount { bytes: 0.0, flops: 2.0 * (matrix as f64).powi(3) };
    let turn = Cell::new(0);
    let next = || turn.replace(turn.get() + 1);
    let lanes = vec![
        bench.lane(Role::Ours, "kvtide, pages", amount, || queries.attend(pages.layer(next()))),
        bench.lane(Role::Ours, "kvtide, q8 pages", amount, || queries.attend(low.layer(next()))),
        bench.lane(Role::Ours, "kvtide, contiguous", amount, || queries.attend(contiguous)),
        bench.lane(Role::Limit, "product of matrices", product, || {
            a.matmul(&b)?;
            Ok(())
        }),
    ];
    let heads = format!("{query_heads}/{kv_heads} heads of {dim}");
    let title = format!("attention of the last {chunk} of {count} tokens, {chunks} sequences, {heads}, bf16");
    bench.measured(title, lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_query_sees_the_keys_up_to_its_own() {
        let sizes = Sizes { chunk: 2, chunks: 3, keys: 5, query_heads: 7, dim: 11, ..Sizes::FULL };
        // Four and five keys; two operations for a score, two for a value.
        assert_eq!(flops(&sizes), ((4 + 5) * 4 * 11 * 7 * 3) as f64);
        let all = Sizes { chunk: 5, ..sizes };
        assert_eq!(flops(&all), ((1 + 2 + 3 + 4 + 5) * 4 * 11 * 7 * 3) as f64);
    }
}
