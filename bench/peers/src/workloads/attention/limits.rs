//! The lower limits of attention's time: reading K and V once, and its multiply-adds.

use std::hint::black_box;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Tensor;
use kvtide_bench::{Lane, Result, Role, Stopwatch};
use kvtide_tensor::DType;

use super::layers::{Layers, with_bytes};
use crate::multiply_add::multiply_adds;
use crate::sum::sum;

/// The bytes that a thread processes at a time.
const PIECE: usize = 1 << 20;

/// Adds up every piece, on `threads` threads; a free thread takes the next piece.
fn sum_all(dtype: DType, memory: &[&[u8]], threads: usize) -> f32 {
    let pieces: Vec<&[u8]> = memory.iter().flat_map(|bytes| bytes.chunks(PIECE)).collect();
    let next = AtomicUsize::new(0);
    let drain = || {
        let mut total = 0.;
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            total += sum(dtype, piece);
        }
        total
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(drain)).collect();
        let own = drain();
        own + others.into_iter().map(|other| other.join().unwrap_or(f32::NAN)).sum::<f32>()
    })
}

/// A plain sum over K and V of all layers, in the caches' memory.
pub fn plain_sum(name: &str, layers: &Layers, threads: usize) -> Result<Lane<'static>> {
    let tensors: Vec<Tensor> = layers.tensors()?.into_iter().flatten().collect();
    let dtype = layers.dtype;
    Ok(Lane::timed(Role::Limit, name, layers.kv.len() as u32, move |stopwatch| {
        with_bytes(&tensors, |memory| {
            stopwatch.time_on(threads, || black_box(sum_all(dtype, memory, threads)));
        })
    }))
}

/// A plain sum over as many bytes as the layers have, always as 32-bit floats, because reading these costs the least.
pub fn summing(name: &str, memory: Rc<Vec<u8>>, layers: u32, threads: usize) -> Lane<'static> {
    Lane::timed(Role::Limit, name, layers, move |stopwatch| {
        stopwatch.time_on(threads, || black_box(sum_all(DType::F32, &[&memory], threads)));
        Ok(())
    })
}

/// A lane of `count` multiply-adds on one thread. If they would take long, only a part is measured: one in `share`.
pub fn computing(count: u64, share: u32) -> Lane<'static> {
    Lane::timed(Role::Limit, "multiply-adds alone", 1, move |stopwatch| {
        let mut part = Stopwatch::default();
        part.time(|| black_box(multiply_adds(count / u64::from(share))));
        stopwatch.add(part.elapsed() * share);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_all_pieces() {
        let floats: Vec<f32> = (0..PIECE).map(|index| (index % 3) as f32 - 1.).collect();
        let memory: [&[u8]; 2] = [bytemuck::cast_slice(&floats), bytemuck::cast_slice(&floats[..5])];
        let expected = floats.iter().sum::<f32>() + floats[..5].iter().sum::<f32>();
        for threads in [1, 2, 3] {
            assert_eq!(sum_all(DType::F32, &memory, threads), expected);
        }
    }
}
