//! The portable kernels allocate memory in pieces: none of their allocations is larger than 1 MiB plus bookkeeping.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType as CandleDType, Device, Tensor};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, RotatingCacheOptions, RotatingKvCache};

/// The system's allocator, which remembers the largest piece that it was asked for.
struct Largest;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's memory and layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Largest = Largest;

fn largest(work: impl FnOnce()) -> usize {
    LARGEST.store(0, Ordering::Relaxed);
    work();
    LARGEST.load(Ordering::Relaxed)
}

#[test]
fn no_piece_is_larger_than_a_mebibyte() {
    const PIECE: usize = 1 << 20;
    let (heads, window, dim) = (4, 2048, 256);
    let shape = [1, heads, window, dim];
    let strided =
        Tensor::ones((1, heads, dim, window), CandleDType::F32, &Device::Cpu).unwrap().transpose(2, 3).unwrap();
    let bytes = vec![7; heads * window * dim * 4];
    let options = RotatingCacheOptions {
        max_seq_len: window as u32,
        capacity_seq_len: Some(window as u32),
        slack: Some(1),
        ..Default::default()
    };
    let mut out = vec![0; bytes.len()];
    with_kernels(Kernels::Portable, || {
        let mut cache = RotatingKvCache::new(options).unwrap();
        let host = || HostTensor::new("v", &bytes, DType::F32, &shape).unwrap();
        let buffer = largest(|| drop(cache.append(&strided, host()).unwrap()));
        assert_eq!(buffer, 2 * heads * (window + 1) * dim * 4, "the buffer itself is the largest allocation");
        cache.reset().unwrap();
        let writes = largest(|| drop(cache.append(&strided, host()).unwrap()));
        let token = strided.narrow(2, 0, 1).unwrap();
        cache.append(&token, &token).unwrap();
        let compaction = largest(|| drop(cache.append(&token, &token).unwrap()));
        assert_eq!(cache.stats().compactions, 1);
        let seen = cache.current_data().unwrap().unwrap();
        let reads = largest(|| seen.k.read_into(&mut out).unwrap());
        for (what, largest) in [("writes", writes), ("compaction", compaction), ("reads", reads)] {
            assert!((PIECE / 2..=PIECE).contains(&largest), "{what}: {largest} bytes at once");
        }
    })
    .unwrap();
}
