//! The threads of large operations: one pool per process, created at first use.
//!
//! The caller works too, so a pool of `n` threads has `n - 1` workers. A call reserves idle workers before it starts; if all
//! are reserved, it runs on the caller's thread alone and never waits. If the pool cannot start, it has no workers.
//!
//! A runtime that has threads of its own lends them with [`with_host`]: calls inside share their work over those threads,
//! and the pool stays idle. Work is divided by sizes alone, so results are bit-identical for every number of threads. A
//! panic on a lent thread never reaches the host: it continues in the calling thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::base::error::{Error, Result};
use crate::base::idle::Idle;
use crate::base::lock::{lock, unlocked};
use crate::base::sync::{AtomicUsize, Ordering};

/// The environment variable with the number of threads.
const VARIABLE: &str = "KVTIDE_THREADS";

/// The upper limit of the number of threads.
const THREADS_MAX: usize = 1024;

struct Pool {
    workers: Option<ThreadPool>,
    idle: Idle,
}

static POOL: Mutex<Option<Arc<Pool>>> = Mutex::new(None);

/// Sets the number of threads that large operations use from now on, including the caller's; 1 turns workers off.
pub fn set_threads(count: usize) -> Result<()> {
    let pool = Pool::new(checked("threads", count as u64, &count.to_string())?);
    *lock(&POOL) = Some(Arc::new(pool));
    Ok(())
}

/// The number of threads that large operations use, including the caller's: inside [`with_host`] the number given there,
/// else that of [`set_threads`], else `KVTIDE_THREADS`, else the number of CPUs that the machine gives this process; inside
/// [`with_threads`] at most the number given there.
pub fn threads() -> Result<usize> {
    match present() {
        Some(host) => Ok(host.threads),
        None => Ok(pool()?.size().min(MOST.get())),
    }
}

/// Runs `work`; inside it, calls of this thread use at most `most` threads of the pool, including the caller's.
pub fn with_threads<R>(most: usize, work: impl FnOnce() -> R) -> R {
    struct Before(usize);
    impl Drop for Before {
        fn drop(&mut self) {
            MOST.set(self.0);
        }
    }
    let _before = Before(MOST.replace(most.max(1)));
    work()
}

/// A function of the host: calls its argument with each number below the count, each once and on any thread, and returns
/// after all calls have returned.
type Share = dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// The threads of a host, lent to one calling thread.
struct Host {
    threads: usize,
    share: Box<Share>,
}

thread_local! {
    /// The most threads of the pool that calls of this thread use.
    static MOST: Cell<usize> = const { Cell::new(usize::MAX) };
    static HOST: RefCell<Option<Rc<Host>>> = const { RefCell::new(None) };
}

fn present() -> Option<Rc<Host>> {
    HOST.with_borrow(Clone::clone)
}

/// Runs `work`; inside it, calls of this thread use `threads` threads of a host, including the caller's, and none of the
/// pool's. `share` calls its argument with each number below the count, on any threads, and returns after all calls have
/// returned. The caller does the work that `share` leaves out.
///
/// ```
/// use kvtide_tensor::runtime::{threads, with_host};
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

/// True inside [`with_host`]: the threads of a host wait for work in a loop, and start at once.
pub(crate) fn is_hosted() -> bool {
    HOST.with_borrow(Option::is_some)
}

/// Runs `work` with this host, and reinstates the previous one afterwards, also after a panic.
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
    /// Uses the calling thread only.
    fn alone() -> Host {
        Host { threads: 1, share: Box::new(|_, _| ()) }
    }

    /// Calls `drain` on at most `threads` threads, including this one, and then once here for the rest.
    fn run(&self, threads: usize, drain: impl Fn() + Sync) {
        let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
        (self.share)(threads, &|_| {
            // The host's threads do not handle panics; nested calls run on one thread.
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
    let reserved = pool.idle.reserve(count.min(limit) - 1);
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

/// Like [`share`], for work that may fail. All indices are tried; returns the first error, if any.
pub(crate) fn try_share(count: usize, limit: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let failed = Mutex::new(None);
    share(count, limit, |index| {
        if let Err(error) = work(index) {
            lock(&failed).get_or_insert(error);
        }
    })?;
    unlocked(failed).map_or(Ok(()), Err)
}

/// Like [`try_share`], with an item for each index.
pub(crate) fn try_share_all<T: Send>(items: Vec<T>, limit: usize, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let items: Vec<_> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    try_share(items.len(), limit, |index| lock(&items[index]).take().map_or(Ok(()), &work))
}

impl Pool {
    fn new(size: usize) -> Pool {
        let build = |workers| {
            ThreadPoolBuilder::new().num_threads(workers).thread_name(|index| format!("kvtide-{index}")).build().ok()
        };
        let workers = (size > 1).then(|| build(size - 1)).flatten();
        let idle = workers.as_ref().map_or(0, ThreadPool::current_num_threads);
        Pool { workers, idle: Idle::new(idle) }
    }

    fn size(&self) -> usize {
        1 + self.workers.as_ref().map_or(0, ThreadPool::current_num_threads)
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

/// The number of threads from the environment.
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
            let _reserved = pool.idle.reserve(2);
            panic!("a worker's");
        }));
        assert!(caught.is_err());
        assert_eq!(pool.idle.reserve(3).count, 2);
    }

    /// Threads of the standard library.
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
            // Nested calls run on the thread that makes them.
            share(8, 8, |_| assert_eq!(threads().unwrap(), 1)).unwrap();
        });
        assert_eq!(threads().unwrap(), outside);
    }

    #[test]
    fn a_thread_can_use_fewer_threads_for_a_while() {
        let outside = threads().unwrap();
        with_threads(1, || {
            assert_eq!(threads().unwrap(), 1);
            with_host(3, scoped, || assert_eq!(threads().unwrap(), 3));
            assert!(std::panic::catch_unwind(|| with_threads(0, || panic!("inside"))).is_err());
            assert_eq!(threads().unwrap(), 1);
        });
        with_threads(usize::MAX, || assert_eq!(threads().unwrap(), outside));
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
