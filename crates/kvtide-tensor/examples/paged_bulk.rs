//! What writing and gathering tokens in bulk costs, against `memcpy` of the same bytes in the same run, round by round in turn.
//!
//! ```sh
//! KVTIDE_THREADS=1 cargo run --release -p kvtide-tensor --example paged_bulk
//! ```
//!
//! The argument is the form of pages (`f32`, `f16`, `f8e4m3`, `q8`, `q4`); quantised ones are compared with a copy of
//! the floats that go in or come out.

use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use kvtide_core::paged::PageFormat;
use kvtide_tensor::{DType, PagedKvCache, PagedKvCacheOptions, threads};

const LAYERS: u32 = 32;
const HEADS: u32 = 8;
const DIM: u32 = 128;
const TOKENS: u32 = 4096;
const ROUNDS: usize = 9;

/// A copy by as many threads as the cache uses.
fn memcpy(target: &mut [u8], source: &[u8], threads: usize) {
    let piece = target.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (target, source) in target.chunks_mut(piece).zip(source.chunks(piece)) {
            scope.spawn(|| target.copy_from_slice(source));
        }
    });
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// The fastest of all rounds: what the machine can do when nothing else runs on it.
fn fastest(times: &[Duration]) -> f64 {
    times.iter().min().map_or(f64::NAN, Duration::as_secs_f64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let format = std::env::args().nth(1).map(|name| name.parse::<PageFormat>()).transpose()?;
    let dtype = if format == Some(PageFormat::F16) { DType::F16 } else { DType::F32 };
    let mut cache = PagedKvCache::new(PagedKvCacheOptions {
        capacity: TOKENS / 16,
        num_layers: LAYERS,
        num_kv_heads: HEADS,
        head_dim: DIM,
        dtype,
        key_format: format,
        value_format: format,
        ..Default::default()
    })?;
    let shape = [LAYERS, HEADS, TOKENS, DIM].map(|size| size as usize);
    let random =
        || Tensor::randn(0f32, 1., &shape[..], &Device::Cpu).and_then(|random| random.to_dtype(dtype.candle()));
    let (k, v) = (random()?, random()?);
    let bytes = k.elem_count() * dtype.bytes() * 2;
    let (source, mut target) = (vec![1u8; bytes], vec![2u8; bytes]);
    let layer_bytes = bytes / LAYERS as usize / 2;
    let (mut k_out, mut v_out) = (vec![0u8; layer_bytes], vec![0u8; layer_bytes]);
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(timed(|| memcpy(&mut target, &source, threads().unwrap_or(1))));
        let sequence = cache.create_sequence()?;
        times[1].push(timed(|| cache.append(&[sequence], &k, &v, Some(&[0, TOKENS])).expect("room for all tokens")));
        times[2].push(timed(|| {
            for layer in 0..LAYERS {
                cache.gather_into(sequence, layer, &mut k_out, &mut v_out).expect("the tokens that were written");
            }
        }));
        times[3].push(timed(|| {
            for (place, source) in source.chunks_exact(layer_bytes).enumerate() {
                memcpy(if place % 2 == 0 { &mut k_out } else { &mut v_out }, source, threads().unwrap_or(1));
            }
        }));
        cache.drop_sequence(sequence)?;
    }
    let [copied, written, gathered, copied_layers] = [0, 1, 2, 3].map(|place| fastest(&times[place]));
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    println!("{} threads, {} tokens x {LAYERS} layers x {HEADS} heads x {DIM}, {dtype}", threads()?, TOKENS);
    println!("memcpy of all    {:6.1} GB/s", rate(copied));
    println!("append           {:6.1} GB/s, {:.2} of memcpy", rate(written), copied / written);
    println!("memcpy by layer  {:6.1} GB/s", rate(copied_layers));
    println!("gather by layer  {:6.1} GB/s, {:.2} of it", rate(gathered), copied_layers / gathered);
    println!(
        "{} bytes a token, {:.3} of f32",
        cache.bytes_per_token(),
        cache.bytes_per_token() / f64::from(LAYERS * HEADS * DIM * 8)
    );
    Ok(())
}
