//! Single tokens from empty on, in a cache that grows and in one that has all its memory.
//!
//! The cache is made in the measured time, since that is when memory is taken, and dropped outside it. Lanes that copy
//! everything they hold at each append stop early: what they cost per append rises with the tokens.

use boostr::inference::KvCache as BoostrCache;
use boostr::{CpuClient, CpuDevice, CpuRuntime};
use candle_nn::kv_cache::{ConcatKvCache, KvCache as CandleCache};
use kvtide_tensor::{KvCache, KvCacheOptions};

use super::Outcome;
use crate::bare::BareGrowing;
use crate::claim::{Bound, Lanes};
use crate::harness::{Lane, Result, Role, Stopwatch, measure};
use crate::tokens::{HEAD_DIM, HEADS, Tokens};

const OURS: &str = "kvtide, growing";
const OURS_ROOMY: &str = "kvtide, preallocated";
const CANDLE: &str = "candle-nn KvCache, growing by 512";
const CANDLE_ROOMY: &str = "candle-nn KvCache, preallocated";
const BOOSTR: &str = "boostr, growing";
const BOOSTR_ROOMY: &str = "boostr, preallocated";
const BARE: &str = "bare rows, growing";
const BARE_ROOMY: &str = "bare rows, preallocated";

/// A lane that makes a cache and appends `tokens` times, timed, then drops it.
fn lane<'a, C: 'a>(
    role: Role,
    name: impl Into<String>,
    tokens: u32,
    make: impl Fn() -> Result<C> + 'a,
    append: impl Fn(&mut C) -> Result<()> + 'a,
) -> Lane<'a> {
    Lane::new(role, name, tokens, move |stopwatch: &mut Stopwatch| {
        let cache = stopwatch.time(|| -> Result<C> {
            let mut cache = make()?;
            for _ in 0..tokens {
                append(&mut cache)?;
            }
            Ok(cache)
        })?;
        drop(cache);
        Ok(())
    })
}

fn ours<'a>(name: &str, initial: u32, tokens: u32, step: &'a Tokens<f32>) -> Lane<'a> {
    let make = move || {
        let (num_kv_heads, head_dim) = (HEADS as u32, HEAD_DIM as u32);
        let options = KvCacheOptions {
            num_kv_heads,
            head_dim,
            initial_capacity: initial,
            max_seq_len: tokens,
            ..Default::default()
        };
        Ok(KvCache::new(options)?)
    };
    lane(Role::Ours, name, tokens, make, |cache: &mut KvCache| {
        std::hint::black_box(cache.update(&step.k_tensor, &step.v_tensor)?);
        Ok(())
    })
}

/// It grows by what it was made with.
fn candle<'a>(name: &str, initial: u32, tokens: u32, step: &'a Tokens<f32>) -> Lane<'a> {
    let make = move || Ok(CandleCache::new(2, initial as usize));
    lane(Role::Peer, name, tokens, make, |cache: &mut CandleCache| {
        std::hint::black_box(cache.append(&step.k_tensor, &step.v_tensor)?);
        Ok(())
    })
}

fn concatenating(tokens: u32, step: &Tokens<f32>) -> Lane<'_> {
    let name = format!("candle-nn ConcatKvCache, first {tokens}");
    let make = || Ok(ConcatKvCache::new(2));
    lane(Role::Peer, name, tokens, make, |cache: &mut ConcatKvCache| {
        std::hint::black_box(cache.append(&step.k_tensor, &step.v_tensor)?);
        Ok(())
    })
}

/// By its fused update; the other one copies the whole capacity at each step.
fn boostr<'a>(name: &str, initial: u32, tokens: u32, step: &'a Tokens<f32>) -> Lane<'a> {
    let device = CpuDevice::new();
    let client = CpuClient::new(device.clone());
    let tensor = |data: &[f32]| boostr::Tensor::<CpuRuntime>::from_slice(data, &[1, HEADS, 1, HEAD_DIM], &device);
    let (k, v) = (tensor(&step.k), tensor(&step.v));
    let make = move || {
        let (initial, max) = (initial as usize, tokens as usize);
        Ok(BoostrCache::<CpuRuntime>::new(1, HEADS, initial, max, HEAD_DIM, boostr::DType::F32, &device)?)
    };
    lane(Role::Peer, name, tokens, make, move |cache: &mut BoostrCache<CpuRuntime>| {
        cache.update_fused(&k, &v, &client)?;
        std::hint::black_box(cache.get_kv()?);
        Ok(())
    })
}

fn bare<'a>(name: &str, initial: u32, tokens: u32, step: &'a Tokens<f32>) -> Lane<'a> {
    let make = move || Ok(BareGrowing::<f32>::new(initial as usize));
    lane(Role::Limit, name, tokens, make, |bare: &mut BareGrowing<f32>| {
        bare.append(step);
        Ok(())
    })
}

pub fn run(tokens: u32, rounds: usize) -> Result<Outcome> {
    let step = Tokens::<f32>::new(1, 1)?;
    let lanes = vec![
        ours(OURS, 256, tokens, &step),
        ours(OURS_ROOMY, tokens, tokens, &step),
        candle(CANDLE, 512, tokens, &step),
        candle(CANDLE_ROOMY, tokens, tokens, &step),
        concatenating(tokens.min(512), &step),
        boostr(BOOSTR, 256, tokens, &step),
        boostr(BOOSTR_ROOMY, tokens, tokens, &step),
        bare(BARE, 256, tokens, &step),
        bare(BARE_ROOMY, tokens, tokens, &step),
    ];
    let measured = measure(lanes, rounds)?;
    let lanes = Lanes(&measured);
    let claim =
        |id: &str, says: &str, over, under, bound| lanes.claim(&format!("growable/{id}"), says, over, under, bound);
    let claims = vec![
        claim(
            "ours-over-candle",
            "kvtide / candle-nn, both preallocated",
            OURS_ROOMY,
            CANDLE_ROOMY,
            Bound::AtMost(1.1),
        )
        .with_limit(lanes.ratio(BARE_ROOMY, CANDLE_ROOMY)),
        claim("candle-over-ours", "candle-nn / kvtide, both growing", CANDLE, OURS, Bound::AtLeast(2.))
            .with_limit(lanes.ratio(CANDLE, BARE)),
        claim("boostr-over-ours", "boostr / kvtide, both preallocated", BOOSTR_ROOMY, OURS_ROOMY, Bound::More),
        claim("boostr-over-ours-growing", "boostr / kvtide, both growing", BOOSTR, OURS, Bound::More),
    ];
    let title = format!("growable, {tokens} single-token appends from empty, f32");
    Ok(Outcome::new("growable", &title, "append", &measured, claims))
}
