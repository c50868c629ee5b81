//! The threads that large operations share: one pool for the process, which outlives whoever used it first.
//!
//! The caller works too, so a pool of `n` threads has `n - 1` workers. Workers are reserved before they get anything to do:
//! a call that finds them all taken works alone and waits for nobody. A pool that cannot start is a pool without workers.
//!
//! Who computes on threads of its own, as a runtime of models does, lends them with [`with_host`]: what a thread calls inside shares its
//! work through them, and the pool rests. Work is cut by sizes alone, so the bits are the same. No panic leaves what they run: it goes
//! on in the thread that called.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::base::error::{Error, Result};
use crate::base::lock::{lock, unlocked};

/// The environment variable that says how many threads to use.
const VARIABLE: &str = "KVTIDE_THREADS";

/// More threads than any machine has.
const THREADS_MAX: usize = 1024;

struct Pool {
    workers: Option<ThreadPool>,
    idle: AtomicUsize,
}

static POOL: Mutex<Option<Arc<Pool>>> = Mutex::new(None);

/// Says how many threads large operations use from now on, the caller's among them; 1 turns workers off.
pub fn set_threads(count: usize) -> Result<()> {
    let pool = Pool::new(checked("threads", count as u64, &count.to_string())?);
    *lock(&POOL) = Some(Arc::new(pool));
    Ok(())
}

/// How many threads large operations use, the caller's among them: inside [`with_host`] as many as that says, else what
/// [`set_threads`] said, else `KVTIDE_THREADS`, else as many as the machine gives this process.
pub fn threads() -> Result<usize> {
    match present() {
        Some(host) => Ok(host.threads),
        None => Ok(pool()?.size()),
    }
}

/// Somebody else's threads: calls the function with each number below the count, each once and on any of them, and returns when all
/// calls have.
type Share = dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// Somebody else's threads, for what one thread calls.
struct Host {
    threads: usize,
    share: Box<Share>,
}

thread_local! {
    static HOST: RefCell<Option<Rc<Host>>> = const { RefCell::new(None) };
}

fn present() -> Option<Rc<Host>> {
    HOST.with_borrow(Clone::clone)
}

/// Calls of this thread inside `work` use so many of somebody else's threads, the caller's among them, and none of the pool's. `share`
/// calls what it is given with each number below its count, on any threads, and returns when all calls have; what it leaves out is
/// done by the caller.
///
/// ```
/// use kvtide_tensor::{threads, with_host};
///
/// let share = |count: usize, call: &(dyn Fn(usize) + Sync)| {
///     std::thread::scope(|scope| (0..count).for_each(|place| drop(scope.spawn(move || call(place)))));
/// };
/// with_host(3, share, || assert_eq!(threads().unwrap(), 3));
/// ```
pub fn with_host<R>(
    threads: usize,
    share: impl Fn(usize, &(dyn Fn(usize) + Sync)) + 'static,
    work: impl FnOnce() -> R,
) -> R {
    under(Host { threads: threads.max(1), share: Box::new(share) }, work)
}

/// Runs `work` with these threads, and those from before afterwards, also after a panic.
fn under<R>(host: Host, work: impl FnOnce() -> R) -> R {
    struct Before(Option<Rc<Host>>);
    impl Drop for Before {
        fn drop(&mut self) {
            HOST.set(self.0.take());
        }
    }
    let _before = Before(HOST.replace(Some(Rc::new(host))));
    work()
}

impl Host {
    /// Nobody but the caller.
    fn alone() -> Host {
        Host { threads: 1, share: Box::new(|_, _| ()) }
    }

    /// Calls `drain` on so many threads, this one among them, at most; then here, for what is left.
    fn run(&self, threads: usize, drain: impl Fn() + Sync) {
        let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
        (self.share)(threads, &|_| {
            // Its threads know nothing of panics, and what is called inside a call is done alone.
            let caught = catch_unwind(AssertUnwindSafe(|| under(Host::alone(), &drain)));
            if let Err(panic) = caught {
                lock(&panicked).get_or_insert(panic);
            }
        });
        match unlocked(panicked) {
            Some(panic) => resume_unwind(panic),
            None => drain(),
        }
    }
}

/// Calls `work` with each index below `count`, on at most `limit` threads.
pub(crate) fn share(count: usize, limit: usize, work: impl Fn(usize) + Sync) -> Result<()> {
    let alone = || (0..count).for_each(&work);
    if count.min(limit) <= 1 {
        alone();
        return Ok(());
    }
    let next = AtomicUsize::new(0);
    let drain = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            work(index);
        }
    };
    if let Some(host) = present() {
        match count.min(limit).min(host.threads) {
            1 => drain(),
            threads => host.run(threads, drain),
        }
        return Ok(());
    }
    let pool = pool()?;
    let reserved = Reserved::take(&pool, count.min(limit) - 1);
    let (Some(workers), true) = (&pool.workers, reserved.count > 0) else {
        alone();
        return Ok(());
    };
    workers.in_place_scope(|scope| {
        for _ in 0..reserved.count {
            scope.spawn(|_| drain());
        }
        drain();
    });
    Ok(())
}

/// The same with work that may fail. Everything is tried; the answer is a failure of it, if there is one.
pub(crate) fn try_share(count: usize, limit: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let failed = Mutex::new(None);
    share(count, limit, |index| {
        if let Err(error) = work(index) {
            lock(&failed).get_or_insert(error);
        }
    })?;
    unlocked(failed).map_or(Ok(()), Err)
}

impl Pool {
    fn new(size: usize) -> Pool {
        let build = |workers| {
            ThreadPoolBuilder::new().num_threads(workers).thread_name(|index| format!("kvtide-{index}")).build().ok()
        };
        let workers = (size > 1).then(|| build(size - 1)).flatten();
        let idle = workers.as_ref().map_or(0, ThreadPool::current_num_threads);
        Pool { workers, idle: AtomicUsize::new(idle) }
    }

    fn size(&self) -> usize {
        1 + self.workers.as_ref().map_or(0, ThreadPool::current_num_threads)
    }
}

/// Workers that are this call's until it ends.
struct Reserved<'a> {
    pool: &'a Pool,
    count: usize,
}

impl<'a> Reserved<'a> {
    fn take(pool: &'a Pool, wanted: usize) -> Self {
        let mut count = 0;
        let _ = pool.idle.fetch_update(Ordering::AcqRel, Ordering::Acquire, |idle| {
            count = idle.min(wanted);
            Some(idle - count)
        });
        Reserved { pool, count }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.pool.idle.fetch_add(self.count, Ordering::AcqRel);
    }
}

fn pool() -> Result<Arc<Pool>> {
    let mut present = lock(&POOL);
    if let Some(pool) = &*present {
        return Ok(pool.clone());
    }
    let pool = Arc::new(Pool::new(asked_for()?));
    *present = Some(pool.clone());
    Ok(pool)
}

/// The number of threads that the environment asks for.
fn asked_for() -> Result<usize> {
    static ASKED: OnceLock<Option<String>> = OnceLock::new();
    let asked = ASKED.get_or_init(|| std::env::var_os(VARIABLE).map(|text| text.to_string_lossy().into_owned()));
    match asked.as_deref() {
        None | Some("") => Ok(std::thread::available_parallelism().map_or(1, |count| count.get().min(THREADS_MAX))),
        Some(text) => checked(VARIABLE, text.parse().unwrap_or(0), text),
    }
}

fn checked(argument: &'static str, count: u64, text: &str) -> Result<usize> {
    match usize::try_from(count) {
        Ok(count) if (1..=THREADS_MAX).contains(&count) => Ok(count),
        _ => Err(Error::argument(argument, text, format!("an integer from 1 to {THREADS_MAX}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_is_worked_on_once() {
        for limit in [1, 2, 7] {
            let done: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
            share(done.len(), limit, |index| {
                done[index].fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1), "{limit} threads");
        }
    }

    #[test]
    fn a_call_inside_a_call_works_alone_when_all_are_taken() {
        let total = AtomicUsize::new(0);
        let count = |_| {
            total.fetch_add(1, Ordering::Relaxed);
        };
        share(4, 4, |_| share(4, 4, count).unwrap()).unwrap();
        assert_eq!(total.into_inner(), 16);
    }

    #[test]
    fn workers_come_back_after_a_panic() {
        let pool = Pool::new(3);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _reserved = Reserved::take(&pool, 2);
            panic!("a worker's");
        }));
        assert!(caught.is_err());
        assert_eq!(pool.idle.load(Ordering::Relaxed), 2);
    }

    /// Threads of the standard library's.
    fn scoped(count: usize, call: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| (0..count).for_each(|place| drop(scope.spawn(move || call(place)))));
    }

    #[test]
    fn a_host_works_on_each_index_once_whatever_it_leaves_out() {
        type Shared = fn(usize, &(dyn Fn(usize) + Sync));
        let hosts: [Shared; 4] =
            [scoped, |_, _| (), |count, call| scoped(count / 2, call), |count, call| (0..count).for_each(call)];
        for host in hosts {
            for (limit, threads) in [(1, 4), (4, 1), (7, 3), (2, 9)] {
                let done: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
                let count = |index: usize| {
                    done[index].fetch_add(1, Ordering::Relaxed);
                };
                with_host(threads, host, || share(done.len(), limit, count)).unwrap();
                assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1), "{limit} of {threads} threads");
            }
        }
    }

    #[test]
    fn a_host_is_there_for_its_thread_alone_and_as_long_as_its_work() {
        let outside = threads().unwrap();
        let many = outside + 5;
        with_host(many, scoped, || {
            assert_eq!(threads().unwrap(), many);
            with_host(0, scoped, || assert_eq!(threads().unwrap(), 1));
            assert_eq!(threads().unwrap(), many);
            std::thread::spawn(move || assert_eq!(threads().unwrap(), outside)).join().unwrap();
            // What is called inside a call is done where it is.
            share(8, 8, |_| assert_eq!(threads().unwrap(), 1)).unwrap();
        });
        assert_eq!(threads().unwrap(), outside);
    }

    #[test]
    fn a_panic_on_a_host_s_thread_goes_on_where_it_was_called() {
        static UNWOUND: AtomicUsize = AtomicUsize::new(0);
        let watched = |count: usize, call: &(dyn Fn(usize) + Sync)| {
            scoped(count, &|place| {
                if catch_unwind(AssertUnwindSafe(|| call(place))).is_err() {
                    UNWOUND.fetch_add(1, Ordering::Relaxed);
                }
            });
        };
        let outside = threads().unwrap();
        let caught =
            catch_unwind(|| with_host(3, watched, || share(10, 3, |index| assert!(index != 7, "the seventh"))));
        assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "the seventh");
        assert_eq!(UNWOUND.load(Ordering::Relaxed), 0, "no panic reached the host");
        assert_eq!(threads().unwrap(), outside);
    }

    #[test]
    fn no_pool_has_no_threads_or_more_than_there_can_be() {
        for count in [0, THREADS_MAX + 1, usize::MAX] {
            assert_eq!(set_threads(count).unwrap_err().code(), kvtide_core::Code::InvalidArgument);
        }
    }
}
