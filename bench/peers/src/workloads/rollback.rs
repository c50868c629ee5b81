//! Measures speculative decoding: draft five tokens, keep two, again and again.
//!
//! Every round of a lane starts at the same length, so that no lane works on a longer cache than another.

use std::hint::black_box;

use abyo_speculate::cache::RollbackCache as AbyoCache;
use candle_core::Tensor;
use candle_core_08::{Device as Device08, Tensor as Tensor08};
use kvtide_bench::{Lane, Result, Role};
use kvtide_tensor::RollbackCache;

use super::Outcome;
use crate::bare::BareGrowing;
use crate::tokens::{HEAD_DIM, HEADS, Tokens};

const DRAFT: usize = 5;
const KEPT: usize = 2;

fn ours<'a>(full: &Tokens<f32>, draft: &'a Tokens<f32>) -> Result<Lane<'a>> {
    let mut cache = RollbackCache::new(Default::default())?;
    cache.append(&full.k_tensor, &full.v_tensor, None)?;
    cache.commit(full.count as u64)?;
    let start = cache.snapshot();
    let path: Vec<u32> = (0..KEPT as u32).collect();
    let operations = 64;
    Ok(Lane::timed(Role::Ours, "kvtide", operations, move |stopwatch| {
        stopwatch.time(|| -> Result<()> {
            for _ in 0..operations {
                black_box(cache.append(&draft.k_tensor, &draft.v_tensor, None)?);
                cache.accept_path(&path)?;
                black_box(cache.current()?);
            }
            Ok(())
        })?;
        Ok(cache.rollback(&start)?)
    }))
}

/// It can only roll back to the commit point, so accepted tokens are appended a second time.
fn abyo<'a>(full: &Tokens<f32>, draft: &Tokens<f32>) -> Result<Lane<'a>> {
    let tensor = |data: &[f32], tokens: usize| Tensor08::from_slice(data, (1, HEADS, tokens, HEAD_DIM), &Device08::Cpu);
    let [full_k, full_v] = [tensor(&full.k, full.count)?, tensor(&full.v, full.count)?];
    let [draft_k, draft_v] = [tensor(&draft.k, DRAFT)?, tensor(&draft.v, DRAFT)?];
    let [kept_k, kept_v] = [draft_k.narrow(2, 0, KEPT)?, draft_v.narrow(2, 0, KEPT)?];
    let mut cache = AbyoCache::new(Device08::Cpu);
    cache.append(&full_k, &full_v)?;
    cache.commit();
    let start = cache.snapshot();
    let operations = 2;
    Ok(Lane::timed(Role::Peer, "abyo-speculate", operations, move |stopwatch| {
        stopwatch.time(|| -> Result<()> {
            for _ in 0..operations {
                let mark = cache.snapshot();
                cache.append(&draft_k, &draft_v)?;
                cache.rollback(mark)?;
                cache.append(&kept_k, &kept_v)?;
                cache.commit();
                black_box(cache.current()?);
            }
            Ok(())
        })?;
        Ok(cache.rollback(start)?)
    }))
}

/// A program without a cache: one concatenation per round, whose tail is cut off.
fn concatenating<'a>(full: &Tokens<f32>, draft: &'a Tokens<f32>) -> Lane<'a> {
    let start = [full.k_tensor.clone(), full.v_tensor.clone()];
    Lane::timed(Role::Baseline, "concatenating", 2, move |stopwatch| {
        let mut held = start.clone();
        stopwatch.time(|| -> Result<()> {
            for _ in 0..2 {
                for (held, new) in held.iter_mut().zip([&draft.k_tensor, &draft.v_tensor]) {
                    let longer = Tensor::cat(&[&*held, new], 2)?;
                    *held = longer.narrow(2, 0, held.dim(2)? + KEPT)?;
                }
            }
            Ok(())
        })
    })
}

fn bare<'a>(full: &Tokens<f32>, draft: &'a Tokens<f32>) -> Lane<'a> {
    let operations = 64;
    let mut bare = BareGrowing::<f32>::new(full.count + DRAFT + KEPT * operations);
    bare.append(full);
    let start = full.count;
    Lane::timed(Role::Limit, "bare rows", operations as u32, move |stopwatch| {
        stopwatch.time(|| {
            for done in 1..=operations {
                bare.append(draft);
                bare.truncate(start + done * KEPT);
                black_box(&mut bare);
            }
        });
        bare.truncate(start);
        Ok(())
    })
}

pub fn run(tokens: usize, rounds: usize) -> Result<Outcome> {
    let (full, draft) = (Tokens::<f32>::new(tokens, 0)?, Tokens::<f32>::new(DRAFT, 1)?);
    let lanes = vec![ours(&full, &draft)?, abyo(&full, &draft)?, concatenating(&full, &draft), bare(&full, &draft)];
    let title = format!("rollback, draft {DRAFT} and keep {KEPT} at {tokens} tokens, f32");
    Outcome::of(title, "round of drafting", lanes, rounds)
}
