//! The threads that large operations share: one pool for the process, which outlives whoever used it first.
//!
//! The caller works too, so a pool of `n` threads has `n - 1` workers. Workers are reserved before they get anything to do:
//! a call that finds them all taken works alone and waits for nobody. A pool that cannot start is a pool without workers.

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

/// How many threads large operations use, the caller's among them: what [`set_threads`] said, else `KVTIDE_THREADS`, else as
/// many as the machine gives this process.
pub fn threads() -> Result<usize> {
    Ok(pool()?.size())
}

/// Calls `work` with each index below `count`, on at most `limit` threads.
pub(crate) fn share(count: usize, limit: usize, work: impl Fn(usize) + Sync) -> Result<()> {
    let alone = || (0..count).for_each(&work);
    if count.min(limit) <= 1 {
        alone();
        return Ok(());
    }
    let pool = pool()?;
    let reserved = Reserved::take(&pool, count.min(limit) - 1);
    let (Some(workers), true) = (&pool.workers, reserved.count > 0) else {
        alone();
        return Ok(());
    };
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

    #[test]
    fn no_pool_has_no_threads_or_more_than_there_can_be() {
        for count in [0, THREADS_MAX + 1, usize::MAX] {
            assert_eq!(set_threads(count).unwrap_err().code(), kvtide_core::Code::InvalidArgument);
        }
    }
}
