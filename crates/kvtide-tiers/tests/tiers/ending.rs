//! Tiers that end while a store hangs: their memory is freed at once.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use kvtide_tensor::PromptOptions;
use kvtide_tensor::runtime::Budget;
use kvtide_tiers::{MemoryOptions, Policy, Store, TierSet, Tiers, TiersOptions};

use crate::tiers::{Toy, attach, compute, later, lower, memory, small};
use crate::world::forms;

/// A store that does not answer until the test lets it.
#[derive(Debug, Default)]
pub struct Held {
    pub toy: Toy,
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Held {
    pub fn hold(&self, is_held: bool) {
        self.state.lock().unwrap().0 = is_held;
        self.changed.notify_all();
    }

    /// Waits until a call waits for the store.
    pub fn asked(&self) {
        let mut state = self.state.lock().unwrap();
        while state.1 == 0 {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn answer(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            state = self.changed.wait(state).unwrap();
        }
        state.1 -= 1;
        self.changed.notify_all();
    }

    /// Waits until no call waits for the store.
    pub fn idle(&self) {
        let mut state = self.state.lock().unwrap();
        while state.1 > 0 {
            state = self.changed.wait(state).unwrap();
        }
    }
}

impl Store for Held {
    fn get(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        self.answer();
        self.toy.get(keys, bytes_max, deadline)
    }

    fn has(&self, keys: &[String], deadline: Instant) -> Vec<bool> {
        self.answer();
        self.toy.has(keys, deadline)
    }

    fn put(&self, entries: &[(String, &[u8])], deadline: Instant) -> usize {
        self.toy.put(entries, deadline)
    }

    fn remove(&self, keys: &[String], deadline: Instant) {
        self.toy.remove(keys, deadline);
    }
}

#[test]
fn while_a_store_hangs_all_is_given_back_at_once() {
    for (name, form) in forms() {
        for drops_tiers_first in [true, false] {
            let (held, budget) = (Arc::new(Held::default()), Budget::new(None));
            let mut cache = small(&form, 24).cache();
            let tiers = Tiers::attach(
                &mut cache,
                TiersOptions {
                    memory: Some(MemoryOptions { limit_bytes: u64::MAX, policy: Policy::Eviction }),
                    lower: vec![lower(held.clone(), Policy::Commit)],
                    budget: Some(budget.clone()),
                    ..TiersOptions::default()
                },
            )
            .unwrap();
            held.hold(true);
            for first in 0..8 {
                let (sequence, _) = compute(&mut cache, &(first * 100..first * 100 + 41).collect::<Vec<u32>>());
                cache.drop_sequence(sequence).unwrap();
            }
            held.asked();
            assert!(tiers.stats()[0].1.blocks > 0 && budget.used() > 0, "{name}");
            let flush = tiers.flusher();
            let flushing = std::thread::spawn(move || flush(Instant::now() + Duration::from_secs(3600)));
            if drops_tiers_first {
                drop(tiers);
                assert_eq!(budget.used(), 0, "{name}: it hangs still");
                // Blocks that the cache still offloads are not kept.
                compute(&mut cache, &(0..41).collect::<Vec<u32>>());
                assert_eq!(budget.used(), 0, "{name}");
            } else {
                drop(cache);
                tiers.end();
                assert_eq!((budget.used(), tiers.stats()[0].1.blocks), (0, 0), "{name}: it hangs still");
            }
            assert!(!flushing.join().unwrap(), "{name}: flush does not wait for dropped blocks");
            held.hold(false);
            held.idle();
            assert!(held.toy.entries.lock().unwrap().is_empty(), "{name}: nothing is written afterwards");
        }
    }
}

#[test]
fn a_match_that_hangs_ends_with_its_tiers_and_holds_no_blocks() {
    let (_, form) = forms().remove(0);
    let (held, tokens) = (Arc::new(Held::default()), (0..33).collect::<Vec<u32>>());
    let mut cache = form.cache();
    let tiers = attach(&mut cache, None, vec![lower(held.clone(), Policy::Commit)]);
    compute(&mut cache, &tokens);
    assert!(tiers.flush(later()));
    let mut other = form.cache();
    let below = attach(&mut other, memory(u64::MAX), vec![lower(held.clone(), Policy::Commit)]);
    let prompt = PromptOptions::default();
    let mut restore = below.restore(&mut other, &tokens, prompt, TierSet::ALL, later()).unwrap();
    restore.ask(later());
    restore.begin(&mut other).unwrap();
    held.hold(true);
    let fetch = restore.fetcher();
    let fetching = std::thread::spawn(move || fetch(Instant::now() + Duration::from_secs(3600)));
    held.asked();
    assert_eq!(other.free_count(), other.total_count() - 8);
    below.end();
    fetching.join().unwrap();
    // The threads that wait for the store hold nothing.
    drop(restore);
    other.pools().unwrap();
    assert_eq!(other.free_count(), other.total_count());
    held.hold(false);
    held.idle();
    other.check_invariants().unwrap();
}
