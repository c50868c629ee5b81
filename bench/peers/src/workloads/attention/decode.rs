//! One query of each sequence, over caches that no cache of the processor holds.
//!
//! Layers are walked in turn, as a model does, so that each call reads its K and V from memory. The limit is what the same
//! run measures: a plain sum over the same bytes, or the multiply-adds, whichever takes longer.

use candle_core::WithDType;
use half::{bf16, f16};
use kvtide_tensor::{AttendOptions, DType, attend, set_threads};

use super::super::Outcome;
use super::candle::{self, FLASH, GROUPED, REPEATED, by_tokens, flash, grouped, repeated};
use super::layers::{Layers, layer_bytes, layers_beyond_caches};
use super::limits::{MULTIPLY_ADDS, computing, plain_sum};
use super::ours;
use crate::allocation::largest_during;
use crate::claim::{Bound, Claim, Lanes};
use crate::harness::{Lane, Measured, Result, measure};
use crate::statistics::Spread;

const OURS: &str = "kvtide";
const OURS_2: &str = "kvtide, 2 threads";
const SUM: &str = "sum of the same bytes";
const SUM_2: &str = "sum of the same bytes, 2 threads";

/// What the share of the limit is to reach; none where it is information.
fn share_to_reach(dtype: DType) -> Bound {
    match dtype {
        DType::F32 => Bound::AtLeast(0.75),
        DType::F16 => Bound::AtLeast(0.60),
        _ => Bound::More,
    }
}

/// candle multiplies no matrices of bf16 on a processor.
fn candle_lanes(layers: &Layers) -> Result<Vec<Lane<'_>>> {
    let flash_lane = match layers.dtype {
        DType::F32 => flash_lane::<f32>(layers)?,
        DType::F16 => flash_lane::<f16>(layers)?,
        _ => return Ok(vec![flash_lane::<bf16>(layers)?]),
    };
    let q = &layers.q;
    Ok(vec![
        candle::lane(GROUPED, layers.tensors()?, move |kv| grouped(q, kv, None)),
        candle::lane(REPEATED, layers.tensors()?, move |kv| repeated(q, kv)),
        flash_lane,
    ])
}

fn flash_lane<T>(layers: &Layers) -> Result<Lane<'static>>
where
    T: WithDType + num_traits::Float,
{
    let q = by_tokens(&layers.q)?;
    // In the order that this function reads without a copy.
    let turned = |[k, v]: &[candle_core::Tensor; 2]| Ok([by_tokens(k)?, by_tokens(v)?]);
    let turned = layers.tensors()?.iter().map(turned).collect::<Result<_>>()?;
    Ok(candle::lane(FLASH, turned, move |kv| flash::<T>(&q, kv)))
}

/// The largest piece of memory that the first call takes, in MiB: what is kept from call to call is in it.
fn temporary(layers: &Layers) -> Result<f64> {
    let (bytes, attended) = largest_during(|| attend(&layers.q, &layers.kv[0], &AttendOptions::default()));
    attended?;
    Ok(bytes as f64 / f64::from(1 << 20))
}

/// The share of the limit, and why it is no larger.
fn share(id: &str, dtype: DType, lanes: &Lanes<'_>) -> Claim {
    let sum_is_slower = lanes.ratio(SUM, MULTIPLY_ADDS) >= 1.;
    let limit = if sum_is_slower { SUM } else { MULTIPLY_ADDS };
    let both: Vec<f64> =
        lanes.rounds(SUM).iter().zip(lanes.rounds(MULTIPLY_ADDS)).map(|(sum, add)| sum + add).collect();
    let one_after_the_other = Spread::ratio(&both, lanes.rounds(OURS)).median;
    let [sum, add, ours] = [SUM, MULTIPLY_ADDS, OURS].map(|name| Spread::of(lanes.rounds(name)).median / 1e6);
    lanes.claim(&format!("{id}/share-of-limit"), &format!("{limit} / kvtide"), limit, OURS, share_to_reach(dtype)).because(
        format!(
            "the sum takes {sum:.2} ms, the multiply-adds {add:.2} ms, kvtide {ours:.2} ms; sum and multiply-adds one after \
             the other would be {one_after_the_other:.2} of that, and the softmax is in neither"
        ),
    )
}

fn claims(id: &str, dtype: DType, measured: &[Measured], temporary: f64) -> Vec<Claim> {
    let lanes = Lanes(measured);
    let id_of = |what: &str| format!("{id}/{what}");
    let mut claims = vec![share(id, dtype, &lanes)];
    let scaling = lanes.ratio_of_ratios([OURS, OURS_2], [SUM, SUM_2]);
    let says = "kvtide: 1 thread / 2 threads, over that of the sum";
    claims.push(Claim::new(&id_of("scaling"), says, scaling, Bound::AtLeast(0.95)).because(format!(
        "2 threads make the sum {:.2} times faster, kvtide {:.2} times",
        lanes.ratio(SUM, SUM_2),
        lanes.ratio(OURS, OURS_2)
    )));
    if dtype != DType::BF16 {
        let faster = if lanes.ratio(GROUPED, REPEATED) <= 1. { GROUPED } else { REPEATED };
        let says = format!("{faster} / kvtide");
        claims.push(lanes.claim(&id_of("candle-over-ours"), &says, faster, OURS, Bound::AtLeast(4.)));
    }
    claims.push(lanes.claim(&id_of("flash-over-ours"), &format!("{FLASH} / kvtide"), FLASH, OURS, Bound::More));
    let spread = Spread { median: temporary, p10: temporary, p90: temporary };
    let says = "largest temporary of kvtide, in MiB";
    claims.push(Claim::new(&id_of("temporary"), says, spread, Bound::AtMost(1.)));
    claims
}

pub fn run(dtype: DType, keys: usize, count: Option<usize>, rounds: usize) -> Result<Outcome> {
    set_threads(2)?;
    let count = count.unwrap_or_else(|| layers_beyond_caches(layer_bytes(dtype, keys)));
    let layers = Layers::new(dtype, count, 1, keys)?;
    let temporary = temporary(&layers)?;
    let mut lanes = vec![
        ours(OURS, &layers, 1),
        ours(OURS_2, &layers, 2),
        plain_sum(SUM, &layers, 1)?,
        plain_sum(SUM_2, &layers, 2)?,
        computing(layers.multiply_adds(), 1),
    ];
    lanes.extend(candle_lanes(&layers)?);
    let measured = measure(lanes, rounds)?;
    let id = format!("attention-{dtype}");
    let claims = claims(&id, dtype, &measured, temporary);
    let title = format!("attention, 1 query of 32 heads over {keys} keys of 8, {count} layers in turn, {dtype}");
    Ok(Outcome::new(&id, &title, "layer", &measured, claims))
}
