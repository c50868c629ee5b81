//! Measures writing whole prompts into pages, all layers at once, and gathering them layer by layer, with one thread
//! and with two.
//!
//! The limit is `memcpy` of the same bytes: for a write all of them once, for a gather repeatedly into the memory of
//! one layer, as an attention without pages would read them. Two threads copy half of each piece.

use std::cell::RefCell;
use std::hint::black_box;

use candle_core::Tensor;
use kvtide_bench::{Lane, Result, Role, measure};
use kvtide_tensor::runtime::set_threads;
use kvtide_tensor::{DType, PagedKvCache, PagedKvCacheOptions};

use super::Outcome;
use super::attention::{noise, with_bytes};
use crate::large::filled;
use crate::tokens::{HEAD_DIM, HEADS};

fn name(what: &str, threads: usize) -> String {
    if threads == 1 { what.to_owned() } else { format!("{what}, {threads} threads") }
}

struct Prompt {
    layers: usize,
    tokens: usize,
    kv: [Tensor; 2],
}

impl Prompt {
    fn new(layers: usize, tokens: usize) -> Result<Self> {
        let rows = |seed| noise(&[layers, HEADS, tokens, HEAD_DIM], DType::F32, seed);
        Ok(Prompt { layers, tokens, kv: [rows(3)?, rows(5)?] })
    }

    /// Returns the bytes of K, or of V, in `layers` layers.
    fn bytes(&self, layers: usize) -> usize {
        layers * self.tokens * HEADS * HEAD_DIM * size_of::<f32>()
    }

    fn cache(&self) -> Result<PagedKvCache> {
        Ok(PagedKvCache::new(PagedKvCacheOptions {
            capacity: self.tokens.div_ceil(16) as u32,
            num_layers: self.layers as u32,
            num_kv_heads: HEADS as u32,
            head_dim: HEAD_DIM as u32,
            ..Default::default()
        })?)
    }

    fn append(&self, cache: &mut PagedKvCache) -> Result<u64> {
        let [k, v] = &self.kv;
        let sequence = cache.create_sequence()?;
        cache.append(&[sequence], k, v, Some(&[0, self.tokens as u32]))?;
        Ok(sequence)
    }

    /// Returns the operations of a round: one for each token and layer.
    fn operations(&self) -> u32 {
        (self.layers * self.tokens) as u32
    }
}

/// Splits `source` into pieces as long as `target`, and copies each to `target`, one after the other.
pub fn copy(target: &mut [u8], source: &[u8], threads: usize) {
    let (piece, share) = (target.len(), target.len().div_ceil(threads));
    let copy_share = |index: usize, target: &mut [u8]| {
        for source in source.chunks_exact(piece) {
            target.copy_from_slice(&source[index * share..][..target.len()]);
            black_box(&mut *target);
        }
    };
    std::thread::scope(|scope| {
        let mut shares = target.chunks_mut(share).enumerate();
        let own = shares.next();
        for (index, target) in shares {
            scope.spawn(move || copy_share(index, target));
        }
        if let Some((index, target)) = own {
            copy_share(index, target);
        }
    });
}

fn write<'a>(prompt: &'a Prompt, cache: &'a RefCell<PagedKvCache>, threads: usize) -> Lane<'a> {
    Lane::timed(Role::Ours, name("kvtide, append", threads), prompt.operations(), move |stopwatch| {
        set_threads(threads)?;
        let mut cache = cache.borrow_mut();
        let sequence = stopwatch.time_on(threads, || prompt.append(&mut cache))?;
        Ok(cache.drop_sequence(sequence)?)
    })
}

fn gather<'a>(prompt: &'a Prompt, cache: &'a RefCell<PagedKvCache>, sequence: u64, threads: usize) -> Lane<'a> {
    let [mut k, mut v] = [filled(prompt.bytes(1), 1u8), filled(prompt.bytes(1), 2u8)];
    Lane::timed(Role::Ours, name("kvtide, gather", threads), prompt.operations(), move |stopwatch| {
        set_threads(threads)?;
        let mut cache = cache.borrow_mut();
        stopwatch.time_on(threads, || -> Result<()> {
            for layer in 0..prompt.layers as u32 {
                cache.gather_into(sequence, layer, &mut k, &mut v)?;
                black_box((&mut k, &mut v));
            }
            Ok(())
        })
    })
}

fn targets(prompt: &Prompt, layers: usize) -> RefCell<[Vec<u8>; 2]> {
    RefCell::new([1u8, 2].map(|value| filled(prompt.bytes(layers), value)))
}

fn memcpy<'a>(prompt: &'a Prompt, what: &str, targets: &'a RefCell<[Vec<u8>; 2]>, threads: usize) -> Lane<'a> {
    Lane::timed(Role::Limit, name(what, threads), prompt.operations(), move |stopwatch| {
        let mut targets = targets.borrow_mut();
        with_bytes(&prompt.kv, |sources| {
            stopwatch
                .time(|| targets.iter_mut().zip(sources).for_each(|(target, source)| copy(target, source, threads)));
        })
    })
}

pub fn run(tokens: usize, layers: usize, rounds: usize) -> Result<Outcome> {
    let prompt = Prompt::new(layers, tokens)?;
    let (cache, all) = (RefCell::new(prompt.cache()?), targets(&prompt, layers));
    let of_all = |threads| memcpy(&prompt, "memcpy of all layers", &all, threads);
    let written = measure(vec![write(&prompt, &cache, 1), write(&prompt, &cache, 2), of_all(1), of_all(2)], rounds)?;
    drop(all);
    let (sequence, one) = (prompt.append(&mut cache.borrow_mut())?, targets(&prompt, 1));
    let of_one = |threads| memcpy(&prompt, "memcpy layer by layer", &one, threads);
    let ours = |threads| gather(&prompt, &cache, sequence, threads);
    let gathered = measure(vec![ours(1), ours(2), of_one(1), of_one(2)], rounds)?;
    let title = format!("paged, {tokens} tokens of {layers} layers in bulk, f32");
    Ok(Outcome::new(title, "token and layer", [written, gathered].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_goes_through_all_pieces() {
        let source: Vec<u8> = (0..30).collect();
        for threads in [1, 2, 3] {
            let mut target = [0; 10];
            copy(&mut target, &source, threads);
            assert_eq!(target[..], source[20..]);
        }
    }

    #[test]
    fn what_is_gathered_was_appended() {
        let prompt = Prompt::new(2, 20).unwrap();
        let mut cache = prompt.cache().unwrap();
        let sequence = prompt.append(&mut cache).unwrap();
        let gathered = cache.gather(sequence, 1).unwrap();
        let expected = prompt.kv[0].get(1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(gathered.k.to_f32().unwrap(), expected);
    }
}
