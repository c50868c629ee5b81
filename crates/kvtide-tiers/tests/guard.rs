//! Deadlines, limits and retries over a backend that follows a script.

mod support;

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvtide_tiers::{Backend, Fault, FaultKind, GateOptions, GuardOptions, Guarded, Replies, State, Store};
use support::{entries, events, in_time, keys, later, runtime, soon, value};

/// The behaviour of the next call to the backend; if the list is empty, the backend answers.
#[derive(Clone, Debug)]
enum Act {
    Fail(FaultKind),
    Hang,
    Panic,
    Answer(Duration),
}

#[derive(Debug, Default)]
struct Told {
    acts: Mutex<Vec<Act>>,
    calls: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    /// The time of each answer, in milliseconds.
    pace: AtomicUsize,
    is_down: AtomicBool,
}

impl Told {
    async fn act(&self) -> Result<(), Fault> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_in_flight.fetch_max(now, Ordering::Relaxed);
        let act = self.acts.lock().unwrap().pop();
        let pace = Duration::from_millis(self.pace.load(Ordering::Relaxed) as u64);
        let down = self.is_down.load(Ordering::Relaxed).then_some(Act::Fail(FaultKind::Unreachable));
        let result = match act.or(down).unwrap_or(Act::Answer(pace)) {
            Act::Fail(kind) => Err(Fault::new(kind, "told to")),
            Act::Hang => std::future::pending().await,
            Act::Panic => panic!("told to"),
            Act::Answer(time) => {
                if !time.is_zero() {
                    tokio::time::sleep(time).await;
                }
                Ok(())
            }
        };
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

fn all<T: Clone>(count: usize, one: T) -> Replies<T> {
    Replies::new(vec![one; count])
}

impl Backend for Told {
    fn get(
        &self,
        keys: &[String],
        bytes_max: usize,
    ) -> impl Future<Output = Result<Replies<Option<Vec<u8>>>, Fault>> + Send {
        let replies = Replies::new(keys.iter().map(|key| Some(key.as_bytes().to_vec())).collect());
        let _ = bytes_max;
        async { self.act().await.map(|()| replies) }
    }

    async fn has(&self, keys: &[String]) -> Result<Replies<bool>, Fault> {
        self.act().await.map(|()| all(keys.len(), true))
    }

    async fn put(&self, entries: &[(String, &[u8])]) -> Result<Replies<bool>, Fault> {
        self.act().await.map(|()| all(entries.len(), true))
    }

    async fn remove(&self, keys: &[String]) -> Result<Replies<()>, Fault> {
        self.act().await.map(|()| all(keys.len(), ()))
    }
}

fn options() -> GuardOptions {
    let gate = GateOptions {
        backoff_min: Duration::from_millis(30),
        backoff_max: Duration::from_millis(60),
        ..GateOptions::default()
    };
    GuardOptions { gate, pause: Duration::from_millis(2), batch_keys: 2, ..GuardOptions::default() }
}

fn told(acts: &[Act]) -> Told {
    Told { acts: Mutex::new(acts.iter().rev().cloned().collect()), ..Told::default() }
}

fn guarded(acts: &[Act]) -> Guarded<Told> {
    Guarded::new(told(acts), options(), runtime()).unwrap()
}

/// Creates a store that stays unavailable for the rest of the test once it is unavailable.
fn guarded_for_good(acts: &[Act]) -> Guarded<Told> {
    let [backoff_min, backoff_max] = [Duration::from_secs(3600); 2];
    let gate = GateOptions { backoff_min, backoff_max, ..GateOptions::default() };
    Guarded::new(told(acts), GuardOptions { gate, ..options() }, runtime()).unwrap()
}

fn found(store: &impl Store, count: usize, deadline: Instant) -> usize {
    let keys = keys(count);
    let values = in_time(deadline, || store.get(&keys, 100, deadline));
    assert_eq!(values.len(), count);
    let right = |(key, value): (&String, &Option<Vec<u8>>)| value.as_ref().is_none_or(|value| value == key.as_bytes());
    assert!(keys.iter().zip(&values).all(right), "never a wrong value");
    values.iter().flatten().count()
}

#[test]
fn all_keys_are_asked_for_in_their_order_and_counted() {
    let store = guarded(&[]);
    assert_eq!(found(&store, 101, later()), 101);
    assert_eq!(store.backend().calls.load(Ordering::Relaxed), 51);
    assert_eq!(found(&store, 0, later()), 0);
    assert_eq!(store.has(&keys(3), later()), [true; 3]);
    let values: Vec<Vec<u8>> = (0..3).map(|index| value(index, 10)).collect();
    assert_eq!(store.put(&entries(&keys(3), &values), later()), 3);
    let health = store.health();
    assert_eq!((health.hits, health.misses, health.bytes_out), (101, 0, 30));
    assert_eq!((health.operations_in_flight, health.bytes_in_flight), (0, 0));
}

#[test]
fn what_fails_is_tried_again_and_what_came_before_the_deadline_is_kept() {
    use Act::{Fail, Hang};
    let store = guarded(&[Fail(FaultKind::Unreachable), Fail(FaultKind::Garbage)]);
    assert_eq!(found(&store, 4, later()), 4);
    assert_eq!(store.health().failures(FaultKind::Garbage), 1);
    let store = guarded(&[Hang, Act::Answer(Duration::ZERO)]);
    assert_eq!(found(&store, 4, soon()), 2, "one of two batches");
    assert_eq!((events(&store), store.health().abandoned), (vec![], 1));
}

#[test]
fn a_permanent_fault_is_not_tried_again() {
    let store = guarded_for_good(&[Act::Fail(FaultKind::Refused)]);
    assert_eq!(found(&store, 2, later()), 0);
    assert_eq!(store.backend().calls.load(Ordering::Relaxed), 1);
    assert_eq!(events(&store), ["-refused"]);
    assert_eq!(found(&store, 2, later()), 0);
    assert_eq!(store.backend().calls.load(Ordering::Relaxed), 1, "not asked");
}

#[test]
fn three_calls_that_hang_make_it_unavailable_and_nobody_waits_any_more() {
    let hanging = [Act::Hang, Act::Hang, Act::Hang];
    let fails = |store: &Guarded<Told>| {
        (0..3).for_each(|_| assert_eq!(found(store, 2, soon()), 0));
        assert_eq!(events(store), ["-timedOut"]);
    };
    let store = guarded_for_good(&hanging);
    fails(&store);
    assert_eq!(found(&store, 1000, later()), 0, "at once: the store is not asked, long before the deadline");
    assert_eq!(store.backend().calls.load(Ordering::Relaxed), 3);
    let store = guarded(&hanging);
    fails(&store);
    // The probe and the calls after it are in the same `get`.
    let mut last = 0;
    support::eventually("it is asked again", || {
        last = found(&store, 100, later());
        last > 0
    });
    assert_eq!((last, events(&store)), (100, vec!["+".to_owned()]));
}

#[test]
fn deadlines_that_are_over_say_nothing_of_the_store() {
    let store = guarded(&[]);
    store.backend().pace.store(50, Ordering::Relaxed);
    for _ in 0..20 {
        assert_eq!(found(&store, 2, Instant::now()), 0);
        found(&store, 2, Instant::now() + Duration::from_millis(1));
    }
    assert_eq!((events(&store), store.health().state), (vec![], State::Available));
}

#[test]
fn no_more_is_in_flight_than_the_limits_say() {
    let gate = GateOptions { operations_max: 5, bytes_max: 1000, ..GateOptions::default() };
    let store = Guarded::new(Told::default(), GuardOptions { gate, ..options() }, runtime()).unwrap();
    store.backend().pace.store(1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(found(&store, 100, later()), 100));
        }
    });
    assert_eq!(store.backend().most_in_flight.load(Ordering::Relaxed), 5);
    // A pair of values has 800 bytes at most, so only one pair is read at a time.
    store.backend().most_in_flight.store(0, Ordering::Relaxed);
    assert!(store.get(&keys(10), 400, later()).iter().all(Option::is_some));
    assert_eq!(store.backend().most_in_flight.load(Ordering::Relaxed), 1);
    assert!(store.get(&keys(10), 1001, later()).iter().all(Option::is_none), "never to be had");
}

#[test]
fn a_value_that_is_longer_than_asked_for_is_a_miss_whatever_the_backend_thinks() {
    let store = guarded(&[]);
    assert_eq!(store.get(&keys(2), 4, later()), [None, None]);
}

#[test]
fn panics_of_a_client_and_a_runtime_that_has_ended_are_misses() {
    let store = guarded(&[Act::Panic]);
    assert_eq!(found(&store, 2, later()), 0);
    assert_eq!(found(&store, 2, later()), 2);
    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = Guarded::new(Told::default(), options(), own.handle().clone()).unwrap();
    store.backend().pace.store(1, Ordering::Relaxed);
    drop(own);
    (0..4).for_each(|_| assert_eq!(found(&store, 2, soon()), 0));
    assert_eq!(events(&store), ["-unreachable"]);
}

#[test]
fn it_can_be_called_from_a_thread_of_its_runtime() {
    let store = Arc::new(guarded(&[]));
    let task = runtime().spawn(async move { found(&*store, 4, later()) });
    assert_eq!(runtime().block_on(task).unwrap(), 4);
}

#[test]
fn a_watcher_is_called_once_for_each_change() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let watcher = Box::new(move || _ = counted.fetch_add(1, Ordering::Relaxed));
    let store = Guarded::watched(Told::default(), options(), runtime(), Some(watcher)).unwrap();
    for round in 1..=3 {
        store.backend().is_down.store(true, Ordering::Relaxed);
        (0..5).for_each(|_| assert_eq!(found(&store, 4, later()), 0));
        store.backend().is_down.store(false, Ordering::Relaxed);
        support::eventually("available", || found(&store, 4, later()) == 4);
        assert_eq!(calls.load(Ordering::Relaxed), round * 2);
    }
    assert_eq!(events(&store), ["-unreachable", "+"].repeat(3));
}

#[test]
fn options_that_cannot_work_are_refused() {
    for wrong in [
        GuardOptions { attempts_max: 0, ..options() },
        GuardOptions { attempt_timeout: Duration::ZERO, ..options() },
        GuardOptions { batch_keys: 0, ..options() },
        GuardOptions { batch_bytes: 0, ..options() },
    ] {
        assert!(Guarded::new(Told::default(), wrong, runtime()).is_err());
    }
}
