//! One token after the other through a full window.
//!
//! A round is one whole turn: the window moves through all free slots behind it and to the front once, so that every round
//! pays for exactly one compaction. The ring of candle-nn shows the tokens out of order; everything else here in order.

use bytemuck::Zeroable;
use candle_core::{Tensor, WithDType};
use candle_nn::kv_cache::RotatingKvCache as CandleRing;
use kvtide_tensor::{RotatingCacheOptions, RotatingKvCache};

use super::Outcome;
use crate::bare::BareWindow;
use crate::claim::{Bound, Claim, Lanes};
use crate::harness::{Lane, Result, Role, Stopwatch, measure};
use crate::large::filled;
use crate::tokens::Tokens;

pub const OURS: &str = "kvtide";
pub const OURS_ROOMY: &str = "kvtide, slack = window";
pub const CANDLE: &str = "candle-nn ring, unordered";
const COPYING: &str = "copying the window";
const BARE: &str = "bare rows";
const BARE_ROOMY: &str = "bare rows, slack = window";
const MEMCPY: &str = "memcpy of the window";

/// The slack that a cache takes unless told.
pub fn default_slack(window: usize) -> usize {
    (window / 4).max(64)
}

/// Appends to a full cache of ours.
pub fn ours<'a, T: WithDType>(name: &str, window: usize, slack: usize, step: &'a Tokens<T>) -> Result<Lane<'a>> {
    let options = RotatingCacheOptions {
        max_seq_len: window as u32,
        capacity_seq_len: Some(window as u32),
        slack: Some(slack as u32),
        ..Default::default()
    };
    let mut cache = RotatingKvCache::new(options)?;
    let full = Tokens::<T>::new(window, 0)?;
    cache.append(&full.k_tensor, &full.v_tensor)?;
    let turn = slack as u32 + 1;
    Ok(Lane::new(Role::Ours, name, turn, move |stopwatch: &mut Stopwatch| {
        stopwatch.time(|| -> Result<()> {
            for _ in 0..turn {
                std::hint::black_box(cache.append(&step.k_tensor, &step.v_tensor)?);
            }
            Ok(())
        })
    }))
}

/// Appends to a full ring of candle-nn.
pub fn candle<'a, T: WithDType>(name: &str, window: usize, step: &'a Tokens<T>) -> Result<Lane<'a>> {
    let mut ring = CandleRing::new(2, window);
    let full = Tokens::<T>::new(window, 0)?;
    ring.append(&full.k_tensor, &full.v_tensor)?;
    let turn = default_slack(window) as u32 + 1;
    Ok(Lane::new(Role::Peer, name, turn, move |stopwatch: &mut Stopwatch| {
        stopwatch.time(|| -> Result<()> {
            for _ in 0..turn {
                std::hint::black_box(ring.append(&step.k_tensor, &step.v_tensor)?);
            }
            Ok(())
        })
    }))
}

/// The same moves in plain memory.
pub fn bare<'a, T>(name: &str, window: usize, slack: usize, step: &'a Tokens<T>) -> Result<Lane<'a>>
where
    T: WithDType + Zeroable,
{
    let mut bare = BareWindow::<T>::new(window, slack);
    bare.append(&Tokens::new(window, 0)?);
    let turn = slack as u32 + 1;
    Ok(Lane::new(Role::Limit, name, turn, move |stopwatch: &mut Stopwatch| {
        stopwatch.time(|| {
            for _ in 0..turn {
                std::hint::black_box(bare.append(step));
            }
        });
        Ok(())
    }))
}

/// What is written where no cache is taken: the window without its oldest token, and the new one, in a new tensor.
fn copying<T: WithDType>(window: usize, step: &Tokens<T>) -> Result<Lane<'_>> {
    let full = Tokens::<T>::new(window, 0)?;
    let mut held = [full.k_tensor, full.v_tensor];
    Ok(Lane::new(Role::Baseline, COPYING, 2, move |stopwatch: &mut Stopwatch| {
        stopwatch.time(|| -> Result<()> {
            for _ in 0..2 {
                for (held, new) in held.iter_mut().zip([&step.k_tensor, &step.v_tensor]) {
                    *held = Tensor::cat(&[&held.narrow(2, 1, window - 1)?, new], 2)?;
                }
            }
            Ok(())
        })
    }))
}

/// One memcpy of K and V of `window` tokens; `operations` is what its time is divided by.
pub fn memcpy<T: WithDType>(name: &str, window: usize, operations: u32) -> Lane<'static> {
    let bytes = Tokens::<T>::bytes(window);
    let (source, mut target) = (filled(bytes, 1u8), filled(bytes, 2u8));
    Lane::new(Role::Limit, name, operations, move |stopwatch: &mut Stopwatch| {
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
        ours(OURS, window, slack, &step)?,
        ours(OURS_ROOMY, window, window, &step)?,
        candle(CANDLE, window, &step)?,
        copying(window, &step)?,
        bare(BARE, window, slack, &step)?,
        bare(BARE_ROOMY, window, window, &step)?,
        memcpy::<T>(MEMCPY, window, 1),
    ];
    let measured = measure(lanes, rounds)?;
    let dtype = T::DTYPE.as_str();
    let id = format!("rotating-{window}-{dtype}");
    let claims = claims(&id, &Lanes(&measured), window == 4096 && dtype == "f32");
    let title = format!("rotating, 1 token, window {window}, {dtype}");
    Ok(Outcome::new(&id, &title, "token", &measured, claims))
}

/// `targets`: whether this is the window that the targets are for.
fn claims(id: &str, lanes: &Lanes<'_>, targets: bool) -> Vec<Claim> {
    let more = |least| if targets { Bound::AtLeast(least) } else { Bound::More };
    let less = |most| if targets { Bound::AtMost(most) } else { Bound::Less };
    let both = [(OURS, BARE, "", "", 800., 5.), (OURS_ROOMY, BARE_ROOMY, "-roomy", ", slack = window", 1500., 2.5)];
    let mut claims = Vec::new();
    for (ours, bare, suffix, words, times_memcpy, times_ring) in both {
        let id = |what: &str| format!("{id}/{what}{suffix}");
        let says = |what: &str| format!("{what}{words}");
        claims.push(
            lanes
                .claim(
                    &id("memcpy-over-ours"),
                    &says("memcpy of the window / kvtide"),
                    MEMCPY,
                    ours,
                    more(times_memcpy),
                )
                .with_limit(lanes.ratio(MEMCPY, bare)),
        );
        claims.push(
            lanes
                .claim(
                    &id("ours-over-ring"),
                    &says("kvtide / candle-nn's unordered ring"),
                    ours,
                    CANDLE,
                    less(times_ring),
                )
                .with_limit(lanes.ratio(bare, CANDLE)),
        );
        let says = says("copying the window / kvtide");
        claims.push(lanes.claim(&id("copying-over-ours"), &says, COPYING, ours, Bound::More));
    }
    claims
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
