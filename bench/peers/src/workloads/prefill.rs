//! Measures a long prompt in chunks, appended to a smaller window.
//!
//! Each chunk's queries need the tokens before them: kvtide returns all retained tokens ++ all new tokens. The ring of
//! candle-nn returns the window alone, which lacks keys of the chunk's first queries.

use std::hint::black_box;

use candle_core::Tensor;
use candle_nn::kv_cache::RotatingKvCache as CandleRing;
use kvtide_bench::{Lane, Result, Role};
use kvtide_tensor::{RotatingCacheOptions, RotatingKvCache};

use super::Outcome;
use super::rotating::default_slack;
use crate::bare::BareWindow;
use crate::large::{filled, zeros};
use crate::tokens::Tokens;

pub fn run(tokens: usize, window: usize, chunk_tokens: usize, rounds: usize) -> Result<Outcome> {
    let chunk = &Tokens::<f32>::new(chunk_tokens, 1)?;
    let (chunks, operations) = (tokens / chunk_tokens, tokens as u32);
    let ours = Lane::making(Role::Ours, "kvtide, retained ++ new", operations, || {
        let mut cache = RotatingKvCache::new(RotatingCacheOptions {
            max_seq_len: window as u32,
            capacity_seq_len: Some(window as u32),
            ..Default::default()
        })?;
        for _ in 0..chunks {
            black_box(cache.append(&chunk.k_tensor, &chunk.v_tensor)?);
        }
        Ok(cache)
    });
    let candle = Lane::making(Role::Peer, "candle-nn ring, the window alone", operations, || {
        let mut ring = CandleRing::new(2, window);
        for _ in 0..chunks {
            black_box(ring.append(&chunk.k_tensor, &chunk.v_tensor)?);
        }
        Ok(ring)
    });
    // A program without a cache: a new tensor of the window and the chunk.
    let copying = Lane::making(Role::Baseline, "copying, retained ++ new", operations, || {
        let mut held = [chunk.k_tensor.clone(), chunk.v_tensor.clone()];
        for _ in 1..chunks {
            for (held, new) in held.iter_mut().zip([&chunk.k_tensor, &chunk.v_tensor]) {
                let kept = held.dim(2)?.min(window);
                *held = Tensor::cat(&[&held.narrow(2, held.dim(2)? - kept, kept)?, new], 2)?;
            }
        }
        Ok(held)
    });
    let bare = Lane::making(Role::Limit, "bare rows", operations, || {
        let mut bare = BareWindow::<f32>::new(window, default_slack(window));
        for _ in 0..chunks {
            black_box(bare.append(chunk));
        }
        Ok(bare)
    });
    let source = filled(Tokens::<f32>::bytes(tokens), 1u8);
    // Into newly allocated memory, as in all lanes here.
    let memcpy = Lane::making(Role::Limit, "memcpy of the prompt", operations, || {
        let mut target = zeros::<u8>(source.len());
        target.copy_from_slice(black_box(&source));
        Ok(target)
    });
    let title = format!("prefill of {tokens} tokens into window {window} in chunks of {chunk_tokens}, f32");
    Outcome::of(title, "token", vec![ours, candle, copying, bare, memcpy], rounds)
}
