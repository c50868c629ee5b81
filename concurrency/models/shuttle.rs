//! Runs the offload queue and the waiters of restores under random schedules: no block is lost or written twice, and no
//! thread waits forever.
//!
//! `shuttle [schedules]`: 10,000 of each model by default. The files under test are those of kvtide-tiers; this crate
//! stands in for the modules around them. Waits never time out here, so a notification that is missing is a deadlock, which is reported.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::{check_pct, check_random, thread};

use memory::Block;
use queue::Queue;
use tier::{Side, Tier};
use waiters::Waiters;

#[path = "../../crates/kvtide-tiers/src/queue.rs"]
#[allow(dead_code, reason = "a model uses some of each file")]
mod queue;
#[path = "../../crates/kvtide-tiers/src/waiters.rs"]
mod waiters;

mod sync {
    pub use std::sync::PoisonError;

    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
}

mod entry {
    /// The key of a block.
    pub type StoreKey = u32;
}

mod memory {
    /// A block of so many bytes.
    #[derive(Debug)]
    pub struct Block(pub u64);

    impl Block {
        pub fn bytes(&self) -> u64 {
            self.0
        }
    }
}

mod tier {
    /// The side that calls a store.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Side {
        Direct,
        Caller,
    }

    /// A tier below memory.
    #[derive(Debug)]
    pub struct Tier(pub Side);

    impl Tier {
        pub fn is_of(&self, side: Side) -> bool {
            self.0 == side
        }
    }
}

const LOWER: [Tier; 2] = [Tier(Side::Direct), Tier(Side::Caller)];

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// What the stores were given.
type Written = Arc<Mutex<Vec<u32>>>;

/// Takes batches of a side until there are none, as a writer does.
fn write_all(queue: &Queue, side: Side, written: &Written) {
    while let Some((tier, keys)) = queue.begin(side, &LOWER) {
        assert!(LOWER[tier].is_of(side));
        thread::yield_now();
        let batch = queue.take(side);
        assert!(batch.is_empty() || batch.iter().map(|(key, _)| *key).collect::<Vec<_>>() == keys);
        written.lock().expect("no panic").extend(batch.iter().map(|(key, _)| *key));
    }
}

/// Starts the writer thread of a cache, which probes a store twice before it is reachable.
fn writer(queue: &Arc<Queue>, written: &Written) -> thread::JoinHandle<()> {
    let (queue, written) = (queue.clone(), written.clone());
    thread::spawn(move || {
        let probes = AtomicUsize::new(0);
        // A wait never times out here: the pause between two probes would be forever.
        let probe = |_: &Tier| {
            probes.fetch_add(1, Ordering::SeqCst);
            None
        };
        loop {
            write_all(&queue, Side::Direct, &written);
            if !queue.rest(&LOWER, probe) {
                break;
            }
        }
    })
}

/// Every block that is queued is written once, and `drained` returns after it.
fn queued_blocks_are_written_once() {
    let (queue, written) = (Arc::new(Queue::new(1 << 20)), Written::default());
    let thread = writer(&queue, &written);
    let other = {
        let queue = queue.clone();
        thread::spawn(move || (10..13).for_each(|key| assert!(queue.push(0, key, Arc::new(Block(1))))))
    };
    (0..3).for_each(|key| assert!(queue.push((key % 2) as usize, key, Arc::new(Block(1)))));
    queue.probe();
    write_all(&queue, Side::Caller, &written);
    other.join().expect("the other thread");
    assert!(queue.drained(later()));
    let mut keys = written.lock().expect("no panic").clone();
    keys.sort_unstable();
    assert_eq!(keys, [0, 1, 2, 10, 11, 12]);
    queue.end();
    thread.join().expect("the writer");
}

/// Forgetting and ending at any moment: what is written was queued, nothing is written twice, and all threads end.
fn forgotten_blocks_free_their_waiters() {
    let (queue, written) = (Arc::new(Queue::new(3)), Written::default());
    let thread = writer(&queue, &written);
    let waiting = {
        let queue = queue.clone();
        thread::spawn(move || queue.drained(later()))
    };
    let pushed: BTreeSet<u32> = (0..5).filter(|key| queue.push(0, *key, Arc::new(Block(1)))).collect();
    let forgetting = {
        let queue = queue.clone();
        thread::spawn(move || queue.clear())
    };
    queue.probe();
    forgetting.join().expect("the other thread");
    queue.end();
    waiting.join().expect("a waiter");
    thread.join().expect("the writer");
    let keys = written.lock().expect("no panic").clone();
    let once: BTreeSet<u32> = keys.iter().copied().collect();
    assert!(once.len() == keys.len() && once.is_subset(&pushed), "{keys:?} of {pushed:?}");
}

/// A prompt waits for the threads that restore its blocks, however they end.
fn a_restore_ends_with_its_threads() {
    let waiters = Arc::new(Waiters::default());
    let (threads, arrived) = (Arc::new(AtomicUsize::new(3)), Arc::new(AtomicUsize::new(0)));
    for at in 0..3 {
        let (waiters, threads, arrived) = (waiters.clone(), threads.clone(), arrived.clone());
        thread::spawn(move || {
            // One of them finds nothing.
            arrived.fetch_add(usize::from(at > 0), Ordering::SeqCst);
            threads.fetch_sub(1, Ordering::AcqRel);
            waiters.wake();
        });
    }
    waiters.wait(later(), || threads.load(Ordering::Acquire) == 0);
    assert_eq!((threads.load(Ordering::SeqCst), arrived.load(Ordering::SeqCst)), (0, 2));
}

const MODELS: [(&str, fn()); 3] = [
    ("queued blocks are written once", queued_blocks_are_written_once),
    ("forgotten blocks free their waiters", forgotten_blocks_free_their_waiters),
    ("a restore ends with its threads", a_restore_ends_with_its_threads),
];

fn main() {
    let schedules = std::env::args().nth(1).map_or(10_000, |text| text.parse().expect("a whole number"));
    for (name, model) in MODELS {
        let start = Instant::now();
        check_random(model, schedules / 2);
        check_pct(model, schedules - schedules / 2, 3);
        println!("{name}: {schedules} schedules in {:.1} s", start.elapsed().as_secs_f32());
    }
}
