//! Measures one query of each sequence, over KV caches larger than the processor's caches.
//!
//! Layers are used in turn, as in a model, so each call reads its K and V from memory. The limit is measured in the
//! same run: a plain sum over the same bytes, or the multiply-adds, whichever takes longer.

use candle_core::WithDType;
use half::{bf16, f16};
use kvtide_bench::{Lane, Result};
use kvtide_tensor::DType;
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::runtime::set_threads;

use super::super::Outcome;
use super::candle::{self, by_tokens, flash, grouped, repeated};
use super::ggml;
use super::layers::{Layers, layer_bytes, layers_beyond_caches};
use super::limits::{computing, plain_sum};
use super::ours;
use crate::allocation::largest_during;

/// candle doesn't multiply matrices of bf16 on a processor.
fn candle_lanes(layers: &Layers) -> Result<Vec<Lane<'_>>> {
    let flash_lane = match layers.dtype {
        DType::F32 => flash_lane::<f32>(layers)?,
        DType::F16 => flash_lane::<f16>(layers)?,
        _ => return Ok(vec![flash_lane::<bf16>(layers)?]),
    };
    let q = &layers.q;
    Ok(vec![
        candle::lane("candle operations, grouped queries", layers.tensors()?, move |kv| grouped(q, kv, None)),
        candle::lane("candle operations, repeated K and V", layers.tensors()?, move |kv| repeated(q, kv)),
        flash_lane,
    ])
}

fn flash_lane<T>(layers: &Layers) -> Result<Lane<'static>>
where
    T: WithDType + num_traits::Float,
{
    let q = by_tokens(&layers.q)?;
    // In the layout that this function reads without a copy.
    let turned = |[k, v]: &[candle_core::Tensor; 2]| Ok([by_tokens(k)?, by_tokens(v)?]);
    let turned = layers.tensors()?.iter().map(turned).collect::<Result<_>>()?;
    Ok(candle::lane("candle-nn flash_attn", turned, move |kv| flash::<T>(&q, kv)))
}

/// Returns the largest allocation of the first call in MiB, which includes memory kept between calls.
fn temporary(layers: &Layers) -> Result<f64> {
    let (bytes, attended) = largest_during(|| attend(&layers.q, &layers.kv[0], &AttendOptions::default()));
    attended?;
    Ok(bytes as f64 / f64::from(1 << 20))
}

pub fn run(dtype: DType, keys: usize, count: Option<usize>, rounds: usize) -> Result<Outcome> {
    set_threads(2)?;
    let count = count.unwrap_or_else(|| layers_beyond_caches(layer_bytes(dtype, keys)));
    let layers = Layers::new(dtype, count, 1, keys)?;
    let temporary = temporary(&layers)?;
    let mut lanes = vec![
        ours("kvtide", &layers, 1),
        ours("kvtide, 2 threads", &layers, 2),
        plain_sum("sum of the same bytes", &layers, 1)?,
        plain_sum("sum of the same bytes, 2 threads", &layers, 2)?,
        computing(layers.multiply_adds(), 1),
    ];
    lanes.extend(candle_lanes(&layers)?);
    lanes.extend(ggml::lanes(&layers)?);
    let title = format!("attention, 1 query of 32 heads over {keys} keys of 8, {count} layers in turn, {dtype}");
    let mut outcome = Outcome::of(title, "layer", lanes, rounds)?;
    outcome.facts.insert("temporary".to_owned(), temporary);
    Ok(outcome)
}
