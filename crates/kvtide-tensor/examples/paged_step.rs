//! What one decode step costs in Rust: K and V of one token each for 8 sequences and 32 layers, with 1 head of 8 dims, so that
//! bytes do not hide the bookkeeping. `examples/paged-step.ts` makes the same call from JavaScript.
//!
//! ```sh
//! cargo run --release -p kvtide-tensor --example paged_step
//! ```

use std::time::{Duration, Instant};

use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions};

const LAYERS: usize = 32;
const SEQUENCES: usize = 8;
const DIM: usize = 8;
const STEPS: u32 = 1024;
const ROUNDS: usize = 41;

fn round() -> Result<Duration, kvtide_tensor::Error> {
    let mut cache = PagedKvCache::new(PagedKvCacheOptions {
        capacity: SEQUENCES as u32 * STEPS / 16,
        num_layers: LAYERS as u32,
        head_dim: DIM as u32,
        ..Default::default()
    })?;
    let sequences = (0..SEQUENCES).map(|_| cache.create_sequence()).collect::<Result<Vec<_>, _>>()?;
    let bytes = vec![1u8; LAYERS * SEQUENCES * DIM * 4];
    let token = || HostTensor::new("k", &bytes, DType::F32, &[LAYERS, 1, SEQUENCES, DIM]);
    let start = Instant::now();
    for _ in 0..STEPS {
        cache.append(&sequences, token()?, token()?, None)?;
    }
    Ok(start.elapsed() / STEPS)
}

fn main() -> Result<(), kvtide_tensor::Error> {
    let mut times = (0..ROUNDS).map(|_| round()).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    println!("a step of {LAYERS} layers x {SEQUENCES} sequences: {:?}, fastest {:?}", times[ROUNDS / 2], times[0]);
    Ok(())
}
