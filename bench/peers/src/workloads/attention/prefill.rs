//! Measures a chunk of queries at the end of a long sequence: a prompt's attention, which is bound by arithmetic.

use candle_core::{Device, Tensor};
use kvtide_bench::Result;
use kvtide_tensor::DType;
use kvtide_tensor::runtime::set_threads;

use super::super::Outcome;
use super::candle::{self, grouped};
use super::ggml;
use super::layers::{GROUP, Layers};
use super::limits::computing;
use super::ours;

/// Returns the mask that hides later keys from each query, for candle's operations: `[1, 1, group * queries, keys]`.
fn mask(queries: usize, keys: usize) -> Result<Tensor> {
    let row =
        |query: usize| (0..keys).map(move |key| if key > keys - queries + query { f32::NEG_INFINITY } else { 0. });
    let floats: Vec<f32> = (0..GROUP * queries).flat_map(|at| row(at % queries)).collect();
    Ok(Tensor::from_vec(floats, (1, 1, GROUP * queries, keys), &Device::Cpu)?)
}

pub fn run(dtype: DType, queries: usize, keys: usize, rounds: usize) -> Result<Outcome> {
    set_threads(2)?;
    let layers = Layers::new(dtype, 1, queries, keys)?;
    let mask = mask(queries, keys)?.to_dtype(dtype.candle())?;
    // A query sees the keys before it and itself: half of the last `queries` keys are hidden.
    let seen = keys - queries + queries.div_ceil(2);
    let mut lanes = vec![
        ours("kvtide", &layers, 1),
        ours("kvtide, 2 threads", &layers, 2),
        candle::lane("candle operations, grouped queries", layers.tensors()?, |kv| grouped(&layers.q, kv, Some(&mask))),
        computing(layers.multiply_adds() / keys as u64 * seen as u64, 32),
    ];
    lanes.extend(ggml::lanes(&layers)?);
    let title = format!("attention, {queries} queries of 32 heads, the last ones of {keys} keys of 8, {dtype}");
    Outcome::of(title, "layer", lanes, rounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvtide_tensor::attention::{AttendOptions, attend};

    #[test]
    fn the_mask_hides_what_attend_hides() {
        let layers = Layers::new(DType::F32, 1, 5, 12).unwrap();
        let ours = attend(&layers.q, &layers.kv[0], &AttendOptions::default()).unwrap().out.to_f32().unwrap();
        let kv = &layers.tensors().unwrap()[0];
        let theirs = grouped(&layers.q, kv, Some(&mask(5, 12).unwrap())).unwrap();
        let theirs = theirs.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(theirs.iter().zip(&ours).all(|(theirs, ours)| (theirs - ours).abs() < 1e-5));
    }
}
