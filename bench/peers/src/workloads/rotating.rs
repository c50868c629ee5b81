//! Measures single-token appends to a full window, and compares a large window with a small one.
//!
//! In a round, the window moves through all free slots behind it and to the front once, so every round
//! has exactly one compaction. The ring of candle-nn returns the tokens out of order; all other lanes in order.
//!
//! A small window fits into the processor's caches and a large one doesn't: the cost of memory at both sizes is
//! measured as the memcpy of a buffer of that size, per token.

use bytemuck::Zeroable;
use candle_core::{Tensor, WithDType};
use candle_nn::kv_cache::RotatingKvCache as CandleRing;
use kvtide_bench::{Lane, Result, Role};
use kvtide_tensor::{RotatingCacheOptions, RotatingKvCache};

use super::Outcome;
use crate::bare::BareWindow;
use crate::large::filled;
use crate::tokens::Tokens;

/// The default slack of a cache.
pub fn default_slack(window: usize) -> usize {
    (window / 4).max(64)
}

fn ours<'a, T: WithDType>(name: &str, window: usize, slack: usize, step: &'a Tokens<T>) -> Result<Lane<'a>> {
    let mut cache = RotatingKvCache::new(RotatingCacheOptions {
        max_seq_len: window as u32,
        capacity_seq_len: Some(window as u32),
        slack: Some(slack as u32),
        ..Default::default()
    })?;
    let full = Tokens::<T>::new(window, 0)?;
    cache.append(&full.k_tensor, &full.v_tensor)?;
    Ok(Lane::repeated(Role::Ours, name, slack as u32 + 1, move || Ok(cache.append(&step.k_tensor, &step.v_tensor)?)))
}

fn candle<'a, T: WithDType>(name: &str, window: usize, step: &'a Tokens<T>) -> Result<Lane<'a>> {
    let mut ring = CandleRing::new(2, window);
    let full = Tokens::<T>::new(window, 0)?;
    ring.append(&full.k_tensor, &full.v_tensor)?;
    Ok(Lane::repeated(Role::Peer, name, default_slack(window) as u32 + 1, move || {
        Ok(ring.append(&step.k_tensor, &step.v_tensor)?)
    }))
}

fn bare<'a, T>(name: &str, window: usize, slack: usize, step: &'a Tokens<T>) -> Result<Lane<'a>>
where
    T: WithDType + Zeroable,
{
    let mut bare = BareWindow::<T>::new(window, slack);
    bare.append(&Tokens::new(window, 0)?);
    Ok(Lane::repeated(Role::Limit, name, slack as u32 + 1, move || Ok(bare.append(step))))
}

/// A program without a cache: copies the window without its oldest token, and the new token, to a new tensor.
fn copying<T: WithDType>(window: usize, step: &Tokens<T>) -> Result<Lane<'_>> {
    let full = Tokens::<T>::new(window, 0)?;
    let mut held = [full.k_tensor, full.v_tensor];
    Ok(Lane::repeated(Role::Baseline, "copying the window", 2, move || {
        for (held, new) in held.iter_mut().zip([&step.k_tensor, &step.v_tensor]) {
            *held = Tensor::cat(&[&held.narrow(2, 1, window - 1)?, new], 2)?;
        }
        Ok(())
    }))
}

/// One memcpy of K and V of `window` tokens; its time is divided by `operations`.
fn memcpy<T: WithDType>(name: &str, window: usize, operations: u32) -> Lane<'static> {
    let bytes = Tokens::<T>::bytes(window);
    let (source, mut target) = (filled(bytes, 1u8), filled(bytes, 2u8));
    Lane::timed(Role::Limit, name, operations, move |stopwatch| {
        stopwatch.time(|| std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source)));
        Ok(())
    })
}

pub fn run<T>(window: usize, rounds: usize) -> Result<Outcome>
where
    T: WithDType + Zeroable,
{
    let step = Tokens::<T>::new(1, 1)?;
    let slack = default_slack(window);
    let lanes = vec![
        ours("kvtide", window, slack, &step)?,
        ours("kvtide, slack = window", window, window, &step)?,
        candle("candle-nn ring, unordered", window, &step)?,
        copying(window, &step)?,
        bare("bare rows", window, slack, &step)?,
        bare("bare rows, slack = window", window, window, &step)?,
        memcpy::<T>("memcpy of the window", window, 1),
    ];
    Outcome::of(format!("rotating, 1 token, window {window}, {}", T::DTYPE.as_str()), "token", lanes, rounds)
}

pub fn windows(small: usize, large: usize, rounds: usize) -> Result<Outcome> {
    let step = Tokens::<f32>::new(1, 1)?;
    let mut lanes = Vec::new();
    for window in [small, large] {
        let name = |what: &str| format!("{what}, at {window}");
        lanes.push(ours(&name("kvtide"), window, default_slack(window), &step)?);
        lanes.push(ours(&name("kvtide, slack = window"), window, window, &step)?);
        lanes.push(candle(&name("candle-nn ring"), window, &step)?);
        lanes.push(bare(&name("bare rows"), window, default_slack(window), &step)?);
        lanes.push(bare(&name("bare rows, slack = window"), window, window, &step)?);
        lanes.push(memcpy::<f32>(&name("memcpy"), window, window as u32));
    }
    Outcome::of(format!("rotating, 1 token, window {large} against {small}, f32"), "token", lanes, rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_one_compaction() {
        for slack in [16, 64] {
            let options = RotatingCacheOptions { max_seq_len: 64, slack: Some(slack), ..Default::default() };
            let mut cache = RotatingKvCache::new(options).unwrap();
            let (full, step) = (Tokens::<f32>::new(64, 0).unwrap(), Tokens::<f32>::new(1, 1).unwrap());
            cache.append(&full.k_tensor, &full.v_tensor).unwrap();
            for turn in 1..4 {
                for _ in 0..=slack {
                    cache.append(&step.k_tensor, &step.v_tensor).unwrap();
                }
                assert_eq!(cache.stats().compactions, turn);
            }
        }
    }

    #[test]
    fn the_default_slack_is_the_planners() {
        for window in [1, 64, 512, 4096, 32768] {
            assert_eq!(default_slack(window), kvtide_core::default_slack(window as u32) as usize);
        }
    }
}
