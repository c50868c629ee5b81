//! Speculative decoding: draft five tokens, keep two, again and again.
//!
//! Every round of a lane starts at the same length, so that no lane works on a longer cache than another.

use abyo_speculate::cache::RollbackCache as AbyoCache;
use candle_core::Tensor;
use candle_core_08::{Device as Device08, Tensor as Tensor08};
use kvtide_tensor::RollbackCache;

use super::Outcome;
use crate::bare::BareGrowing;
use crate::claim::{Bound, Lanes};
use crate::harness::{Lane, Result, Role, Stopwatch, measure};
use crate::tokens::{HEAD_DIM, HEADS, Tokens};

const DRAFT: usize = 5;
const KEPT: usize = 2;

const OURS: &str = "kvtide";
const ABYO: &str = "abyo-speculate";
const CONCATENATING: &str = "concatenating";
const BARE: &str = "bare rows";

fn ours<'a>(full: &Tokens<f32>, draft: &'a Tokens<f32>) -> Result<Lane<'a>> {
    let mut cache = RollbackCache::new(Default::default())?;
    cache.append(&full.k_tensor, &full.v_tensor, None)?;
    cache.commit(full.count as u64)?;
    let start = cache.snapshot();
    let path: Vec<u32> = (0..KEPT as u32).collect();
    let operations = 64;
    Ok(Lane::new(Role::Ours, OURS, operations, move |stopwatch: &mut Stopwatch| {
        stopwatch.time(|| -> Result<()> {
            for _ in 0..operations {
                std::hint::black_box(cache.append(&draft.k_tensor, &draft.v_tensor, None)?);
                cache.accept_path(&path)?;
                std::hint::black_box(cache.current()?);
            }
            Ok(())
        })?;
        Ok(cache.rollback(&start)?)
    }))
}

/// It can go back to the commit point alone: what is kept is appended a second time.
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
    Ok(Lane::new(Role::Peer, ABYO, operations, move |stopwatch: &mut Stopwatch| {
        stopwatch.time(|| -> Result<()> {
            for _ in 0..operations {
                let mark = cache.snapshot();
                cache.append(&draft_k, &draft_v)?;
                cache.rollback(mark)?;
                cache.append(&kept_k, &kept_v)?;
                cache.commit();
                std::hint::black_box(cache.current()?);
            }
            Ok(())
        })?;
        Ok(cache.rollback(start)?)
    }))
}

/// What is written where no cache is taken: one concatenation a round, its tail cut off.
fn concatenating<'a>(full: &Tokens<f32>, draft: &'a Tokens<f32>) -> Lane<'a> {
    let start = [full.k_tensor.clone(), full.v_tensor.clone()];
    let operations = 2;
    Lane::new(Role::Baseline, CONCATENATING, operations, move |stopwatch: &mut Stopwatch| {
        let mut held = start.clone();
        stopwatch.time(|| -> Result<()> {
            for _ in 0..operations {
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
    let mut bare = BareGrowing::<f32>::new(full.count + DRAFT + KEPT * operations as usize);
    bare.append(full);
    let start = full.count;
    Lane::new(Role::Limit, BARE, operations, move |stopwatch: &mut Stopwatch| {
        stopwatch.time(|| {
            let mut len = start;
            for _ in 0..operations {
                bare.append(draft);
                len += KEPT;
                bare.truncate(len);
                std::hint::black_box(&mut bare);
            }
        });
        bare.truncate(start);
        Ok(())
    })
}

pub fn run(tokens: usize, rounds: usize) -> Result<Outcome> {
    let (full, draft) = (Tokens::<f32>::new(tokens, 0)?, Tokens::<f32>::new(DRAFT, 1)?);
    let lanes = vec![ours(&full, &draft)?, abyo(&full, &draft)?, concatenating(&full, &draft), bare(&full, &draft)];
    let measured = measure(lanes, rounds)?;
    let lanes = Lanes(&measured);
    let claims = vec![
        lanes
            .claim(
                "rollback/concatenating-over-ours",
                "concatenating / kvtide",
                CONCATENATING,
                OURS,
                Bound::AtLeast(1000.),
            )
            .with_limit(lanes.ratio(CONCATENATING, BARE)),
        lanes.claim("rollback/abyo-over-ours", "abyo-speculate / kvtide", ABYO, OURS, Bound::More),
    ];
    let title = format!("rollback, draft {DRAFT} and keep {KEPT} at {tokens} tokens, f32");
    Ok(Outcome::new("rollback", &title, "round of drafting", &measured, claims))
}
