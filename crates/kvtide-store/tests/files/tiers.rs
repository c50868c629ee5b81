//! Tiers below a cache: whatever was computed once is found again, to the bit, wherever it lies meanwhile; and what is damaged is a miss.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs};

use kvtide_core::paged::BlockKey;
use kvtide_store::{
    EntryStore, Folder, LowerOptions, LowerPlace, MemoryOptions, Policy, StoreKey, TierOptions, TierSet, Tiers,
};
use kvtide_tensor::{PagedKvCache, PromptOptions};

use crate::world::{Form, Random, append, forms, found, shown};

const PATIENCE: Duration = Duration::from_secs(20);

fn later() -> Instant {
    Instant::now() + PATIENCE
}

/// A store in memory that can be made to misbehave.
#[derive(Debug, Default)]
struct Toy {
    entries: Mutex<HashMap<StoreKey, Vec<u8>>>,
    is_down: AtomicBool,
    /// Whether it may be asked although it is down.
    is_due: AtomicBool,
    /// Changes a bit of each value that is read.
    is_broken: AtomicBool,
    removed: Mutex<Vec<StoreKey>>,
    /// The keys that were asked for.
    asked: Mutex<Vec<StoreKey>>,
}

impl EntryStore for Toy {
    fn get_many(&self, keys: &[StoreKey], bytes_max: usize, _: Instant) -> Vec<Option<Vec<u8>>> {
        let entries = self.entries.lock().unwrap();
        let mut random = Random(keys.len() as u64);
        let mut get = |key| {
            let mut bytes: Vec<u8> = entries.get(key).cloned().filter(|bytes| bytes.len() <= bytes_max)?;
            if self.is_broken.load(Ordering::Relaxed) {
                let at = random.below(bytes.len() as u32) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            Some(bytes)
        };
        if self.is_down.load(Ordering::Relaxed) { vec![None; keys.len()] } else { keys.iter().map(&mut get).collect() }
    }

    fn has_many(&self, keys: &[StoreKey], _: Instant) -> Vec<bool> {
        self.asked.lock().unwrap().extend(keys);
        let entries = self.entries.lock().unwrap();
        keys.iter().map(|key| entries.contains_key(key)).collect()
    }

    fn put_many(&self, entries: &[(StoreKey, Vec<u8>)], _: Instant) -> usize {
        if self.is_down.load(Ordering::Relaxed) {
            return 0;
        }
        self.entries.lock().unwrap().extend(entries.iter().cloned());
        entries.len()
    }

    fn remove_many(&self, keys: &[StoreKey], _: Instant) {
        self.removed.lock().unwrap().extend(keys);
    }

    fn unavailable_for(&self) -> Option<Duration> {
        let pause = if self.is_due.load(Ordering::Relaxed) { Duration::ZERO } else { Duration::from_millis(1) };
        self.is_down.load(Ordering::Relaxed).then_some(pause)
    }
}

fn lower(store: Arc<dyn EntryStore>, policy: Policy) -> LowerOptions {
    LowerOptions { name: "store", place: LowerPlace::Store(store), policy }
}

fn memory(limit_bytes: u64) -> Option<MemoryOptions> {
    Some(MemoryOptions { limit_bytes, policy: Policy::Eviction })
}

fn attach(cache: &mut PagedKvCache, memory: Option<MemoryOptions>, lower: Vec<LowerOptions>) -> Tiers {
    Tiers::attach(cache, TierOptions { memory, lower, ..TierOptions::default() }).unwrap()
}

/// Brings what the tiers have of a prompt. Answers how many blocks came from each.
fn bring(tiers: &Tiers, cache: &mut PagedKvCache, tokens: &[u32]) -> Vec<u32> {
    let prompt = PromptOptions::default();
    let mut lookup = tiers.look_up(cache, tokens, prompt, TierSet::ALL).unwrap();
    lookup.ask(later());
    let bring = lookup.begin(cache, tokens, prompt).unwrap();
    bring.fetch(later());
    bring.end(cache).unwrap()
}

/// Opens a sequence for a prompt and computes what was not found. Answers its number, and how much was found.
fn compute(cache: &mut PagedKvCache, tokens: &[u32]) -> (u64, u32) {
    let prefix = cache.find_prefix(tokens, PromptOptions::default(), false).unwrap();
    let length = prefix.length();
    let sequence = cache.create_sequence_from(prefix).unwrap();
    append(cache, sequence, &tokens[length as usize..], true).unwrap();
    while cache.hand_down(usize::MAX) {}
    (sequence, length)
}

/// A prompt that begins like others.
fn prompt(random: &mut Random) -> Vec<u32> {
    let (kind, length) = (random.below(4), 5 + random.below(36));
    let common = random.below(length);
    (0..length).map(|at| if at < common { kind * 100 + at } else { 1000 + random.below(3) * 50 + at }).collect()
}

/// Blocks of a sequence of so many tokens, in a cache that has room for few.
fn small(form: &Form, blocks: u32) -> Form {
    Form { blocks, ..form.clone() }
}

fn temporary(name: &str) -> std::path::PathBuf {
    let folder = env::temp_dir().join(format!("kvtide-tiers-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// Random prompts in a cache with few blocks, beside one with room for all: what was computed once is found as far there.
fn trace(name: &str, form: &Form, seed: u64, mut tiers: impl FnMut(&mut PagedKvCache) -> Tiers, restarts: bool) {
    let mut random = Random(seed);
    let mut cache = small(form, 24).cache();
    let mut below = tiers(&mut cache);
    let mut all = small(form, 4096).cache();
    let mut came = 0;
    for turn in 0..40 {
        let tokens = prompt(&mut random);
        let there = found(&mut all, &tokens, b"");
        came += bring(&below, &mut cache, &tokens).iter().sum::<u32>();
        cache.check_invariants().unwrap();
        let (sequence, length) = compute(&mut cache, &tokens);
        assert_eq!(length, there, "{name}, seed {seed}, turn {turn}: {tokens:?}");
        let (whole, _) = compute(&mut all, &tokens);
        assert_eq!(shown(&mut cache, sequence), shown(&mut all, whole), "{name}, seed {seed}, turn {turn}");
        cache.drop_sequence(sequence).unwrap();
        if restarts && random.below(8) == 0 {
            assert!(below.flush(later()));
            cache = small(form, 24).cache();
            below = tiers(&mut cache);
        }
        assert!(below.flush(later()));
    }
    assert!(came > 0, "{name}: nothing came back");
}

#[test]
fn what_memory_keeps_is_found_again() {
    for (name, form) in forms() {
        for seed in 0..6 {
            trace(name, &form, seed, |cache| attach(cache, memory(u64::MAX), Vec::new()), false);
        }
    }
}

#[test]
fn what_a_folder_keeps_is_found_by_the_next_process() {
    for (name, form) in forms() {
        for seed in 0..2 {
            let place = temporary(&format!("{seed}"));
            let open = |cache: &mut PagedKvCache| {
                let folder = Folder::open(&place, u64::MAX).unwrap();
                attach(cache, None, vec![lower(Arc::new(folder), Policy::Commit)])
            };
            trace(name, &form, seed, open, true);
            fs::remove_dir_all(place).unwrap();
        }
    }
}

#[test]
fn what_makes_room_in_memory_goes_further_down() {
    for (name, form) in forms() {
        let toy = Arc::new(Toy::default());
        let tiers = |cache: &mut PagedKvCache| attach(cache, memory(5000), vec![lower(toy.clone(), Policy::Eviction)]);
        trace(name, &form, 7, tiers, false);
        assert!(!toy.entries.lock().unwrap().is_empty(), "{name}");
    }
}

#[test]
fn a_shared_store_takes_what_is_found_the_second_time() {
    let (_, form) = forms().remove(0);
    let (toy, tokens) = (Arc::new(Toy::default()), (0..17).collect::<Vec<u32>>());
    let mut cache = form.cache();
    let tiers = attach(&mut cache, None, vec![lower(toy.clone(), Policy::SecondUse)]);
    let (first, _) = compute(&mut cache, &tokens);
    assert!(tiers.flush(later()) && toy.entries.lock().unwrap().is_empty());
    let (second, length) = compute(&mut cache, &tokens);
    assert!(tiers.flush(later()));
    assert_eq!((length, toy.entries.lock().unwrap().len()), (16, 4));
    // Once: what is known to be there is not copied again.
    compute(&mut cache, &tokens);
    assert!(tiers.flush(later()));
    assert_eq!(tiers.stats()[0].1.stored, 4);
    [first, second].into_iter().for_each(|sequence| cache.drop_sequence(sequence).unwrap());
    let mut other = form.cache();
    let below = attach(&mut other, None, vec![lower(toy, Policy::SecondUse)]);
    assert_eq!(bring(&below, &mut other, &tokens), [0, 4]);
    assert_eq!(found(&mut other, &tokens, b""), 16);
}

#[test]
fn what_is_damaged_is_a_miss_and_is_removed() {
    for (name, form) in forms() {
        let toy = Arc::new(Toy::default());
        let tokens: Vec<u32> = (0..33).collect();
        let mut cache = form.cache();
        let tiers = attach(&mut cache, None, vec![lower(toy.clone(), Policy::Commit)]);
        compute(&mut cache, &tokens);
        assert!(tiers.flush(later()));
        toy.is_broken.store(true, Ordering::Relaxed);
        let mut other = form.cache();
        let below = attach(&mut other, None, vec![lower(toy.clone(), Policy::Commit)]);
        let came = bring(&below, &mut other, &tokens);
        assert_eq!((came[1], found(&mut other, &tokens, b"")), (0, 0), "{name}");
        let damaged = below.stats()[0].1.damaged;
        assert_eq!(damaged as usize, toy.removed.lock().unwrap().len(), "{name}");
        assert!(damaged > 0 && other.free_count() == other.total_count(), "{name}: blocks that did not come are free");
        toy.is_broken.store(false, Ordering::Relaxed);
        assert!(bring(&below, &mut other, &tokens)[1] > 0, "{name}");
        assert_eq!(found(&mut other, &tokens, b""), 32, "{name}");
    }
}

#[test]
fn of_another_model_or_salt_nothing_comes() {
    let (toy, tokens) = (Arc::new(Toy::default()), (0..33).collect::<Vec<u32>>());
    let mut forms = forms();
    let mut cache = forms[0].1.cache();
    let tiers = attach(&mut cache, None, vec![lower(toy.clone(), Policy::Commit)]);
    compute(&mut cache, &tokens);
    assert!(tiers.flush(later()));
    for (name, form) in forms.drain(1..) {
        let mut other = form.cache();
        let below = attach(&mut other, None, vec![lower(toy.clone(), Policy::Commit)]);
        assert_eq!(bring(&below, &mut other, &tokens).iter().sum::<u32>(), 0, "{name}");
    }
    let salted = PromptOptions { salt: b"a tenant", ..PromptOptions::default() };
    let mut lookup = tiers.look_up(&mut cache, &tokens, salted, TierSet::ALL).unwrap();
    lookup.ask(later());
    assert!(!lookup.is_worth());
}

#[test]
fn a_store_that_is_down_costs_no_copy_and_is_a_miss() {
    let (_, form) = forms().remove(0);
    let (toy, tokens) = (Arc::new(Toy::default()), (0..33).collect::<Vec<u32>>());
    toy.is_down.store(true, Ordering::Relaxed);
    let mut cache = form.cache();
    let tiers = attach(&mut cache, None, vec![lower(toy.clone(), Policy::Commit)]);
    compute(&mut cache, &tokens);
    assert!(tiers.flush(later()));
    let stats = tiers.stats()[0].1;
    assert_eq!((stats.stored, stats.dropped), (0, 0), "nothing was copied for it");
    // It is asked, about no block, as soon as it may be.
    toy.is_due.store(true, Ordering::Relaxed);
    let question = [StoreKey { block: BlockKey([0; 32]), group: 0 }];
    let started = Instant::now();
    while toy.asked.lock().unwrap().len() < 3 {
        assert!(started.elapsed() < PATIENCE, "nobody asks");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(toy.asked.lock().unwrap().chunks(1).all(|asked| asked == question));
    // Who has something for it finds out as well, and loses nothing if it is there.
    compute(&mut cache, &[6; 9]);
    assert!(tiers.flush(later()));
    assert_eq!((tiers.stats()[0].1.stored, tiers.stats()[0].1.dropped), (0, 2));
    toy.is_down.store(false, Ordering::Relaxed);
    compute(&mut cache, &[7; 9]);
    assert!(tiers.flush(later()));
    assert_eq!(tiers.stats()[0].1.stored, 2, "it is there again");
}

#[test]
fn a_tier_that_only_the_caller_reaches_takes_nothing_while_it_cannot_be_reached() {
    let (_, form) = forms().remove(0);
    let mut cache = form.cache();
    let tiers = attach(
        &mut cache,
        None,
        vec![LowerOptions { name: "store", place: LowerPlace::Caller, policy: Policy::Commit }],
    );
    tiers.set_reachable(false);
    compute(&mut cache, &[1; 9]);
    assert!(tiers.take_pending().is_none());
    tiers.set_reachable(true);
    compute(&mut cache, &[2; 9]);
    assert_eq!(tiers.take_pending().unwrap().encode().len(), 2);
}

/// A store that answers only when it is let go.
#[derive(Debug, Default)]
struct Stuck(Toy, AtomicBool);

impl EntryStore for Stuck {
    fn get_many(&self, keys: &[StoreKey], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        while self.1.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.get_many(keys, bytes_max, deadline)
    }

    fn has_many(&self, keys: &[StoreKey], deadline: Instant) -> Vec<bool> {
        self.0.has_many(keys, deadline)
    }

    fn put_many(&self, entries: &[(StoreKey, Vec<u8>)], deadline: Instant) -> usize {
        self.0.put_many(entries, deadline)
    }

    fn remove_many(&self, keys: &[StoreKey], deadline: Instant) {
        self.0.remove_many(keys, deadline);
    }
}

#[test]
fn at_the_deadline_it_goes_on_with_what_is_there() {
    let (_, form) = forms().remove(0);
    let (stuck, tokens) = (Arc::new(Stuck::default()), (0..33).collect::<Vec<u32>>());
    let mut cache = form.cache();
    let tiers = attach(&mut cache, None, vec![lower(stuck.clone(), Policy::Commit)]);
    compute(&mut cache, &tokens);
    assert!(tiers.flush(later()));
    let mut other = form.cache();
    // The first blocks lie in memory, the others where nobody answers.
    let below = attach(&mut other, memory(u64::MAX), vec![lower(stuck.clone(), Policy::Commit)]);
    stuck.1.store(true, Ordering::Relaxed);
    let options = PromptOptions::default();
    let mut lookup = below.look_up(&mut other, &tokens, options, TierSet::ALL).unwrap();
    lookup.ask(later());
    let bring = lookup.begin(&mut other, &tokens, options).unwrap();
    assert_eq!(bring.length(), 8);
    bring.fetch(Instant::now() + Duration::from_millis(20));
    assert_eq!(bring.end(&mut other).unwrap(), [0, 0]);
    assert_eq!(found(&mut other, &tokens, b""), 0);
    // What comes late goes into blocks that nobody sees; the cache goes on meanwhile.
    let (sequence, length) = compute(&mut other, &tokens);
    stuck.1.store(false, Ordering::Relaxed);
    let (whole, _) = compute(&mut cache, &tokens);
    assert_eq!((length, shown(&mut other, sequence)), (0, shown(&mut cache, whole)));
}

#[test]
fn what_is_forgotten_comes_from_nowhere() {
    let (_, form) = forms().remove(0);
    let (toy, tokens) = (Arc::new(Toy::default()), (0..33).collect::<Vec<u32>>());
    let mut cache = small(&form, 16).cache();
    let tiers = attach(&mut cache, memory(u64::MAX), vec![lower(toy, Policy::Commit)]);
    let (sequence, _) = compute(&mut cache, &tokens);
    cache.drop_sequence(sequence).unwrap();
    let other: Vec<u32> = (100..163).collect();
    let (sequence, _) = compute(&mut cache, &other);
    cache.drop_sequence(sequence).unwrap();
    assert!(tiers.flush(later()) && tiers.stats()[0].1.blocks > 0);
    cache.forget_prefixes().unwrap();
    assert_eq!(bring(&tiers, &mut cache, &tokens), [0, 0]);
    assert_eq!(tiers.stats()[0].1.blocks, 0);
}

#[test]
fn fewer_blocks_than_a_prompt_has_bring_its_start() {
    let (_, form) = forms().remove(0);
    let (toy, tokens) = (Arc::new(Toy::default()), (0..65).collect::<Vec<u32>>());
    let mut cache = form.cache();
    let tiers = attach(&mut cache, None, vec![lower(toy.clone(), Policy::Commit)]);
    compute(&mut cache, &tokens);
    assert!(tiers.flush(later()));
    let mut tiny = small(&form, 6).cache();
    let below = attach(&mut tiny, None, vec![lower(toy, Policy::Commit)]);
    assert_eq!(bring(&below, &mut tiny, &tokens), [0, 6]);
    assert_eq!(found(&mut tiny, &tokens, b""), 24);
    assert_eq!(bring(&below, &mut tiny, &tokens), [0, 0]);
    assert_eq!(found(&mut tiny, &tokens, b""), 24, "what is there is not let go of for what is not");
}

#[test]
fn names_that_nobody_else_can_make_are_refused_below_memory() {
    let (_, form) = forms().remove(0);
    let mut cache = Form { prefix_key: None, ..form }.cache();
    let options =
        TierOptions { lower: vec![lower(Arc::new(Toy::default()), Policy::Commit)], ..TierOptions::default() };
    let error = Tiers::attach(&mut cache, options).unwrap_err();
    assert!(error.to_string().starts_with("prefixKey is none, expected 32 bytes"), "{error}");
    attach(&mut cache, memory(1 << 20), Vec::new());
    assert!(Tiers::attach(&mut cache, TierOptions::default()).unwrap_err().to_string().starts_with("below is another"));
}
