//! Reading uses memory for the graph only, and no more than the limit. Unsafe: an allocator that counts.
#![allow(unsafe_code, reason = "an allocator is unsafe by its interface")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use kvtide_onnx::{Error, Model};
use support::build::Message;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's; only sizes are counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the layout is the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the memory came from `alloc` above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most that was held above what was held before.
fn most(work: impl FnOnce()) -> usize {
    let before = HELD.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    work();
    MOST.load(Ordering::Relaxed) - before
}

/// One test, since memory is counted for the whole process.
#[test]
fn reading_takes_what_the_graph_takes_and_no_more_than_allowed() {
    // Weights of 640 kB, a graph of 20 kB.
    let bytes = support::bytes("onnx-gqa-f32");
    let taken = most(|| drop(Model::read(&bytes).unwrap()));
    assert!(taken < 200_000, "{taken} bytes");

    // Nodes of two bytes each.
    let nodes = [0x0a, 0x00].repeat(1 << 20);
    let hostile = Message::default().bytes(7, &nodes).0;
    let limit = 16 << 20;
    let taken = most(|| {
        let error = Model::read_within(&hostile, limit).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    });
    assert!(taken < 4 * limit as usize, "{taken} bytes");
}
