//! Runs decode steps in Rust on request, for the TypeScript suite, which compares its own steps with them, round by
//! round.
//!
//! A step appends one token of each of 8 sequences in 32 layers, with 1 head of 8 dims, so that bytes do not hide the
//! bookkeeping. For each line of input, a round runs and a line with its nanoseconds is printed; then the next round is
//! prepared.

use std::io::{BufRead, Write};

use kvtide_bench::{Result, Stopwatch};
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions};

const LAYERS: usize = 32;
const SEQUENCES: usize = 8;
const DIM: usize = 8;
const BLOCK: u32 = 16;

fn cache(steps: u32) -> Result<(PagedKvCache, Vec<u64>)> {
    let mut cache = PagedKvCache::new(PagedKvCacheOptions {
        capacity: SEQUENCES as u32 * steps.div_ceil(BLOCK),
        block_size: BLOCK,
        num_layers: LAYERS as u32,
        head_dim: DIM as u32,
        ..Default::default()
    })?;
    let sequences = (0..SEQUENCES).map(|_| cache.create_sequence()).collect::<std::result::Result<_, _>>()?;
    Ok((cache, sequences))
}

/// Reads lines from `asked` and writes a line to `answered` for each, after a round of steps.
pub fn serve(steps: u32, asked: impl BufRead, mut answered: impl Write) -> Result<()> {
    let floats = [1f32; LAYERS * SEQUENCES * DIM];
    let token = |name| HostTensor::new(name, bytemuck::cast_slice(&floats), DType::F32, &[LAYERS, 1, SEQUENCES, DIM]);
    let (mut ready, mut sequences) = cache(steps)?;
    for line in asked.lines() {
        line?;
        let mut stopwatch = Stopwatch::default();
        stopwatch.time(|| -> Result<()> {
            for _ in 0..steps {
                ready.append(&sequences, token("k")?, token("v")?, None)?;
            }
            Ok(())
        })?;
        writeln!(answered, "{}", stopwatch.elapsed().as_nanos())?;
        answered.flush()?;
        (ready, sequences) = cache(steps)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_answered() {
        let mut answered = Vec::new();
        serve(20, "\n\n\n".as_bytes(), &mut answered).unwrap();
        let answers = String::from_utf8(answered).unwrap();
        assert_eq!(answers.lines().filter(|line| line.parse::<u64>().is_ok()).count(), 3);
    }
}
