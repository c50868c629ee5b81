//! A view read on another thread while its cache changes: it gives what it saw, or fails, with each set of kernels.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_core::Code;
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, KvCache, KvCacheOptions};

const TOKENS: usize = 64;

/// Rows of 64 KiB, so that a read takes long enough to be overtaken.
const DIM: usize = 1 << 16;

fn rows(value: u8) -> Vec<u8> {
    vec![value; TOKENS * DIM]
}

#[test]
fn a_view_on_another_thread_never_mixes() {
    let (old, new) = (rows(1), rows(2));
    let host = |bytes| HostTensor::new("k", bytes, DType::U8, &[1, 1, TOKENS, DIM]).unwrap();
    let options = KvCacheOptions {
        head_dim: DIM as u32,
        dtype: DType::U8,
        initial_capacity: TOKENS as u32,
        ..Default::default()
    };
    for kernels in Kernels::supported() {
        for _ in 0..6 {
            let mut cache = KvCache::new(options.clone()).unwrap();
            let view = with_kernels(kernels, || cache.update(host(&old), host(&old)).unwrap().k).unwrap();
            let reading = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    with_kernels(kernels, || {
                        loop {
                            reading.store(true, Ordering::Release);
                            match view.to_bytes() {
                                Ok(seen) => assert!(seen.iter().all(|&byte| byte == 1), "{kernels}: a mixture"),
                                Err(error) => break assert_eq!(error.code(), Code::StaleView),
                            }
                        }
                    })
                    .unwrap();
                });
                while !reading.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                with_kernels(kernels, || {
                    cache.truncate(0).unwrap();
                    cache.update(host(&new), host(&new)).unwrap();
                })
                .unwrap();
                reader.join().unwrap();
            });
        }
    }
}
