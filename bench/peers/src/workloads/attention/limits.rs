//! What attention cannot be faster than: reading K and V once, and its multiply-adds.

use std::hint::black_box;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Tensor;
use kvtide_bench::{Lane, Result, Role, Stopwatch};
use kvtide_tensor::DType;

use super::layers::{Layers, with_bytes};
use crate::multiply_add::multiply_adds;
use crate::sum::sum;

/// Bytes that a thread takes at a time.
const PIECE: usize = 1 << 20;

/// Adds up every piece, on so many threads; whoever is free takes the next one.
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

/// A plain sum over K and V of all layers, where the caches keep them.
pub fn plain_sum(name: &str, layers: &Layers, threads: usize) -> Result<Lane<'static>> {
    let tensors: Vec<Tensor> = layers.tensors()?.into_iter().flatten().collect();
    let dtype = layers.dtype;
    Ok(Lane::timed(Role::Limit, name, layers.kv.len() as u32, move |stopwatch| {
        with_bytes(&tensors, |memory| {
            stopwatch.time_on(threads, || black_box(sum_all(dtype, memory, threads)));
        })
    }))
}

/// A plain sum over as many bytes as so many layers have, as 32-bit floats whatever they are: reading them costs the least so.
pub fn summing(name: &str, memory: Rc<Vec<u8>>, layers: u32, threads: usize) -> Lane<'static> {
    Lane::timed(Role::Limit, name, layers, move |stopwatch| {
        stopwatch.time_on(threads, || black_box(sum_all(DType::F32, &[&memory], threads)));
        Ok(())
    })
}

/// So many multiply-adds on one thread. A long run of them is measured in its `share`th part.
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
