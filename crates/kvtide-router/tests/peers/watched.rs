//! Wraps the system's allocator to count allocated memory, and runs one test at a time, so that the counts belong to
//! that test.
//!
//! Implementing an allocator is unsafe by its interface; this one passes every call on unchanged.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use tokio::runtime::{Builder, Runtime};

struct Watched;

#[global_allocator]
static ALLOCATOR: Watched = Watched;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static PANICS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller follows the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the memory came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// A runtime whose memory and panics are monitored.
pub struct Watch {
    runtime: Runtime,
    start: usize,
    panics: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Watch {
    pub fn start() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        static HOOK: Once = Once::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        HOOK.call_once(|| {
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                PANICS.fetch_add(1, Ordering::Relaxed);
                hook(panic);
            }));
        });
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut watch = Watch { runtime, start: 0, panics: PANICS.load(Ordering::Relaxed), _alone: alone };
        watch.mark();
        watch
    }

    /// Starts counting from the currently allocated memory.
    pub fn mark(&mut self) {
        self.start = HELD.load(Ordering::Relaxed);
        PEAK.store(self.start, Ordering::Relaxed);
    }

    /// The peak of allocated bytes since then, beyond those allocated at that time. Fails if a task panicked.
    pub fn peak(&self) -> usize {
        assert_eq!(PANICS.load(Ordering::Relaxed), self.panics, "a task panicked");
        PEAK.load(Ordering::Relaxed) - self.start
    }

    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}
