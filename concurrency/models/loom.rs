//! Checks the atomics of caches in every order that the memory model allows, up to a number of preemptions.
//!
//! `loom [preemptions [minutes]]`: two preemptions by default. The files under test are those of kvtide-tensor; this crate stands in
//! for the modules around them. Reference counts, free lists and copies on write of blocks are plain numbers behind `&mut`,
//! which no other thread can reach.

// The files name candle_core::Device and crate::base: both are found here.
extern crate self as candle_core;

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::thread;

use base::error::Error;
use base::idle::Idle;
use base::life::{Life, Pin, RunPin};
use base::memory::Budget;

#[allow(dead_code, reason = "a model uses some of each file")]
mod base;

/// A device, as far as budgets know it.
#[derive(Clone, Debug)]
pub enum Device {
    Cpu,
}

impl Device {
    pub fn is_cpu(&self) -> bool {
        true
    }

    pub fn same_device(&self, _: &Device) -> bool {
        true
    }
}

/// The content of a cache, which is read and written without a lock.
struct Rows(UnsafeCell<u32>);

// SAFETY: loom reports each access that another one does not come before.
unsafe impl Sync for Rows {}
// SAFETY: as above.
unsafe impl Send for Rows {}

impl Rows {
    fn read(&self) -> u32 {
        // SAFETY: loom checks the access.
        self.0.with(|rows| unsafe { *rows })
    }

    fn write(&self, value: u32) {
        // SAFETY: loom checks the access.
        self.0.with_mut(|rows| unsafe { *rows = value });
    }
}

/// A background call reads a cache while it has a pin. The cache is written only once no call reads it, and can be disposed of at any time.
fn a_cache_is_not_written_while_it_is_read() {
    let life = Arc::new(Life::default());
    let rows = Arc::new(Rows(UnsafeCell::new(1)));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (pin, rows) = (Pin::new(&life), rows.clone());
            thread::spawn(move || {
                let read = rows.read();
                drop(pin);
                assert_eq!(read, 1);
            })
        })
        .collect();
    life.close();
    while life.check_idle().is_err() {
        thread::yield_now();
    }
    rows.write(2);
    assert!(life.is_closed());
    readers.into_iter().for_each(|reader| reader.join().expect("a reader"));
}

/// A step on another thread writes pages of two groups. Once no group has a run, the pages are written or known to be torn.
fn a_step_that_failed_half_way_is_seen() {
    let lives: Vec<Arc<Life>> = (0..2).map(|_| Arc::default()).collect();
    let rows = Arc::new(Rows(UnsafeCell::new(0)));
    let pin = RunPin::new(lives.iter().cloned());
    let (step, page) = (lives[0].clone(), rows.clone());
    let failing = thread::spawn(move || {
        let write = step.begin_write();
        page.write(1);
        // The write fails here.
        drop(write);
        drop(pin);
    });
    while lives[0].check_no_run().is_err() {
        thread::yield_now();
    }
    assert!(lives[0].is_torn() && !lives[1].is_torn());
    assert_eq!(rows.read(), 1);
    failing.join().expect("the step");
    assert!(lives[1].check_no_run().is_ok());
}

/// Two caches allocate under one limit, hand out copies and free them. The limit is never exceeded, and nothing stays counted.
fn a_limit_is_kept_by_several_caches() {
    let whole = Budget::of_parts(&Device::Cpu, Some(&root()), Some(60));
    let part = Budget::under(whole.clone(), None);
    let cache = {
        let part = part.clone();
        thread::spawn(move || drop(part.take_given(30).expect("copies do not count")))
    };
    match part.take(60) {
        Ok(lease) => drop(lease),
        Err(Error::OutOfMemory { requested_bytes, used_bytes, limit_bytes }) => {
            assert_eq!(requested_bytes, 60);
            assert!(used_bytes <= 90 && limit_bytes == 60, "{used_bytes} of {limit_bytes}");
        }
        Err(other) => panic!("{other:?}"),
    }
    cache.join().expect("a cache");
    for budget in [&whole, &part] {
        assert_eq!((budget.used(), budget.held()), (0, 0));
    }
    let lease = part.take(60).expect("nothing stays counted");
    assert!(part.take(1).is_err());
    drop(lease);
}

/// The memory of a process. The real budget is a static, which outlives a model.
fn root() -> Arc<Budget> {
    Arc::new(Budget::root(Device::Cpu, 100))
}

/// Calls reserve idle workers: none is reserved twice, and all are idle in the end.
fn a_worker_is_reserved_once() {
    let idle = Arc::new(Idle::new(3));
    let busy = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
    let call = |wanted: usize| {
        let (idle, busy) = (idle.clone(), busy.clone());
        move || {
            let reserved = idle.reserve(wanted);
            assert!(reserved.count <= wanted);
            let now = busy.fetch_add(reserved.count, loom::sync::atomic::Ordering::AcqRel) + reserved.count;
            assert!(now <= 3, "{now} of 3 workers");
            busy.fetch_sub(reserved.count, loom::sync::atomic::Ordering::AcqRel);
        }
    };
    let others = [thread::spawn(call(2)), thread::spawn(call(1))];
    call(2)();
    others.into_iter().for_each(|other| other.join().expect("a call"));
    assert_eq!(idle.reserve(9).count, 3);
}

const MODELS: [(&str, fn()); 4] = [
    ("a cache is not written while it is read", a_cache_is_not_written_while_it_is_read),
    ("a step that failed half-way is seen", a_step_that_failed_half_way_is_seen),
    ("a limit is kept by several caches", a_limit_is_kept_by_several_caches),
    ("a worker is reserved once", a_worker_is_reserved_once),
];

fn main() {
    let number = |at: usize| std::env::args().nth(at).map(|text| text.parse::<usize>().expect("a whole number"));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(number(1).unwrap_or(2));
    builder.max_duration = number(2).map(|minutes| Duration::from_secs(60 * minutes as u64));
    builder.max_branches = 100_000;
    for (name, model) in MODELS {
        let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counted = count.clone();
        let start = std::time::Instant::now();
        builder.check(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            model();
        });
        let count = count.load(std::sync::atomic::Ordering::Relaxed);
        println!("{name}: {count} orders in {:.1} s", start.elapsed().as_secs_f32());
    }
}
