//! A long prompt in chunks, into a window that it overflows.
//!
//! Each chunk's queries need the tokens before them: kvtide returns everything retained ++ everything new. The ring of
//! candle-nn returns the window alone, in which the first queries of a chunk have lost keys.

use candle_core::Tensor;
use candle_nn::kv_cache::RotatingKvCache as CandleRing;
use kvtide_tensor::{RotatingCacheOptions, RotatingKvCache};

use super::Outcome;
use super::rotating::default_slack;
use crate::bare::BareWindow;
use crate::claim::{Bound, Lanes};
use crate::harness::{Lane, Result, Role, Stopwatch, measure};
use crate::large::{filled, zeros};
use crate::tokens::Tokens;

const OURS: &str = "kvtide, retained ++ new";
const CANDLE: &str = "candle-nn ring, the window alone";
const COPYING: &str = "copying, retained ++ new";
const BARE: &str = "bare rows";
const MEMCPY: &str = "memcpy of the prompt";

fn ours(chunk: &Tokens<f32>, chunks: usize, window: usize) -> Lane<'_> {
    let tokens = (chunks * chunk.count) as u32;
    Lane::new(Role::Ours, OURS, tokens, move |stopwatch: &mut Stopwatch| {
        let cache = stopwatch.time(|| -> Result<RotatingKvCache> {
            let options = RotatingCacheOptions {
                max_seq_len: window as u32,
                capacity_seq_len: Some(window as u32),
                ..Default::default()
            };
            let mut cache = RotatingKvCache::new(options)?;
            for _ in 0..chunks {
                std::hint::black_box(cache.append(&chunk.k_tensor, &chunk.v_tensor)?);
            }
            Ok(cache)
        })?;
        drop(cache);
        Ok(())
    })
}

fn candle(chunk: &Tokens<f32>, chunks: usize, window: usize) -> Lane<'_> {
    let tokens = (chunks * chunk.count) as u32;
    Lane::new(Role::Peer, CANDLE, tokens, move |stopwatch: &mut Stopwatch| {
        let ring = stopwatch.time(|| -> Result<CandleRing> {
            let mut ring = CandleRing::new(2, window);
            for _ in 0..chunks {
                std::hint::black_box(ring.append(&chunk.k_tensor, &chunk.v_tensor)?);
            }
            Ok(ring)
        })?;
        drop(ring);
        Ok(())
    })
}

/// What is written where no cache is taken: a new tensor of the window and the chunk.
fn copying(chunk: &Tokens<f32>, chunks: usize, window: usize) -> Lane<'_> {
    let tokens = (chunks * chunk.count) as u32;
    Lane::new(Role::Baseline, COPYING, tokens, move |stopwatch: &mut Stopwatch| {
        let held = stopwatch.time(|| -> Result<[Tensor; 2]> {
            let mut held = [chunk.k_tensor.clone(), chunk.v_tensor.clone()];
            for _ in 1..chunks {
                for (held, new) in held.iter_mut().zip([&chunk.k_tensor, &chunk.v_tensor]) {
                    let kept = held.dim(2)?.min(window);
                    *held = Tensor::cat(&[&held.narrow(2, held.dim(2)? - kept, kept)?, new], 2)?;
                }
            }
            Ok(held)
        })?;
        drop(held);
        Ok(())
    })
}

fn bare(chunk: &Tokens<f32>, chunks: usize, window: usize) -> Lane<'_> {
    let tokens = (chunks * chunk.count) as u32;
    Lane::new(Role::Limit, BARE, tokens, move |stopwatch: &mut Stopwatch| {
        let bare = stopwatch.time(|| {
            let mut bare = BareWindow::<f32>::new(window, default_slack(window));
            for _ in 0..chunks {
                std::hint::black_box(bare.append(chunk));
            }
            bare
        });
        drop(bare);
        Ok(())
    })
}

fn memcpy(tokens: usize) -> Lane<'static> {
    let source = filled(Tokens::<f32>::bytes(tokens), 1u8);
    Lane::new(Role::Limit, MEMCPY, tokens as u32, move |stopwatch: &mut Stopwatch| {
        // Into memory that was just taken, as everyone's is here.
        let target = stopwatch.time(|| {
            let mut target = zeros::<u8>(source.len());
            target.copy_from_slice(std::hint::black_box(&source));
            target
        });
        drop(target);
        Ok(())
    })
}

pub fn run(tokens: usize, window: usize, chunk_tokens: usize, rounds: usize) -> Result<Outcome> {
    let chunk = Tokens::<f32>::new(chunk_tokens, 1)?;
    let chunks = tokens / chunk_tokens;
    let lanes = vec![
        ours(&chunk, chunks, window),
        candle(&chunk, chunks, window),
        copying(&chunk, chunks, window),
        bare(&chunk, chunks, window),
        memcpy(tokens),
    ];
    let measured = measure(lanes, rounds)?;
    let lanes = Lanes(&measured);
    let says = "kvtide / candle-nn's ring, which returns less";
    let claims = vec![
        lanes
            .claim("prefill/ours-over-ring", says, OURS, CANDLE, Bound::AtMost(1.5))
            .with_limit(lanes.ratio(BARE, CANDLE)),
        lanes.claim("prefill/copying-over-ours", "copying / kvtide", COPYING, OURS, Bound::More),
    ];
    let title = format!("prefill of {tokens} tokens into window {window} in chunks of {chunk_tokens}, f32");
    Ok(Outcome::new("prefill", &title, "token", &measured, claims))
}
