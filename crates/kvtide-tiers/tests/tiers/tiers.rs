//! Tiers of a cache: a block that was computed once is found again, to the bit, in whichever tier it is; a damaged
//! block is a miss.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs};

use kvtide_core::paged::BlockKey;
use kvtide_tensor::{PagedKvCache, PromptOptions};
use kvtide_tiers::{
    Access, Envelope, Folder, FormTag, MemoryOptions, Policy, Store, StoreKey, TierOptions, TierSet, Tiers,
    TiersOptions,
};

use crate::world::{Form, Random, append, forms, found, shown};

const PATIENCE: Duration = Duration::from_secs(20);

pub fn later() -> Instant {
    Instant::now() + PATIENCE
}

/// A store in memory that can be made to misbehave.
#[derive(Debug, Default)]
pub struct Toy {
    pub entries: Mutex<HashMap<StoreKey, Vec<u8>>>,
    is_down: AtomicBool,
    /// True if it may be asked although it is down.
    is_due: AtomicBool,
    /// Changes a bit of each value that is read.
    is_broken: AtomicBool,
    pub removed: Mutex<Vec<StoreKey>>,
    /// The keys that were asked for.
    asked: Mutex<Vec<StoreKey>>,
}

fn parsed(key: &str) -> StoreKey {
    StoreKey::parse(key).unwrap()
}

impl Store for Toy {
    fn get(&self, keys: &[String], bytes_max: usize, _: Instant) -> Vec<Option<Vec<u8>>> {
        let entries = self.entries.lock().unwrap();
        let mut random = Random(keys.len() as u64);
        let mut get = |key: &String| {
            let mut bytes: Vec<u8> = entries.get(&parsed(key)).cloned().filter(|bytes| bytes.len() <= bytes_max)?;
            if self.is_broken.load(Ordering::Relaxed) {
                let at = random.below(bytes.len() as u32) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            Some(bytes)
        };
        if self.is_down.load(Ordering::Relaxed) { vec![None; keys.len()] } else { keys.iter().map(&mut get).collect() }
    }

    fn has(&self, keys: &[String], _: Instant) -> Vec<bool> {
        self.asked.lock().unwrap().extend(keys.iter().map(|key| parsed(key)));
        let entries = self.entries.lock().unwrap();
        keys.iter().map(|key| entries.contains_key(&parsed(key))).collect()
    }

    fn put(&self, entries: &[(String, &[u8])], _: Instant) -> usize {
        if self.is_down.load(Ordering::Relaxed) {
            return 0;
        }
        self.entries.lock().unwrap().extend(entries.iter().map(|(key, bytes)| (parsed(key), bytes.to_vec())));
        entries.len()
    }

    fn remove(&self, keys: &[String], _: Instant) {
        self.removed.lock().unwrap().extend(keys.iter().map(|key| parsed(key)));
    }

    fn unavailable_for(&self) -> Option<Duration> {
        let pause = if self.is_due.load(Ordering::Relaxed) { Duration::ZERO } else { Duration::from_millis(1) };
        self.is_down.load(Ordering::Relaxed).then_some(pause)
    }
}

pub fn lower(store: Arc<dyn Store>, policy: Policy) -> TierOptions {
    TierOptions { name: "store", access: Access::Direct(store), envelope: Envelope::default(), policy }
}

pub fn memory(limit_bytes: u64) -> Option<MemoryOptions> {
    Some(MemoryOptions { limit_bytes, policy: Policy::Eviction })
}

pub fn attach(cache: &mut PagedKvCache, memory: Option<MemoryOptions>, lower: Vec<TierOptions>) -> Tiers {
    Tiers::attach(cache, TiersOptions { memory, lower, ..TiersOptions::default() }).unwrap()
}

/// Restores the blocks of a prompt that the tiers have. Returns the number of blocks from each tier.
pub fn bring(tiers: &Tiers, cache: &mut PagedKvCache, tokens: &[u32]) -> Vec<u32> {
    let prompt = PromptOptions::default();
    let mut restore = tiers.restore(cache, tokens, prompt, TierSet::ALL, later()).unwrap();
    restore.ask(later());
    restore.begin(cache).unwrap();
    restore.fetch(later());
    let arrived = restore.end(cache).unwrap();
    // A look-up with the keys computed at the start finds the same as one with new keys.
    for partial in [false, true] {
        let found = restore.find(cache, partial).unwrap().length();
        assert_eq!(found, cache.find_prefix(tokens, prompt, partial).unwrap().length(), "{tokens:?}");
    }
    arrived
}

/// Opens a sequence for a prompt and computes the missing tokens. Returns the sequence's number, and the length of the
/// cached prefix.
pub fn compute(cache: &mut PagedKvCache, tokens: &[u32]) -> (u64, u32) {
    let prefix = cache.find_prefix(tokens, PromptOptions::default(), false).unwrap();
    let length = prefix.length();
    let sequence = cache.create_sequence_from(prefix).unwrap();
    append(cache, sequence, &tokens[length as usize..], true).unwrap();
    while cache.hand_down(usize::MAX) {}
    (sequence, length)
}

/// Returns a prompt that shares its prefix with others.
pub fn prompt(random: &mut Random) -> Vec<u32> {
    let (kind, length) = (random.below(4), 5 + random.below(36));
    let common = random.below(length);
    (0..length).map(|at| if at < common { kind * 100 + at } else { 1000 + random.below(3) * 50 + at }).collect()
}

/// Returns a form with this few blocks.
pub fn small(form: &Form, blocks: u32) -> Form {
    Form { blocks, ..form.clone() }
}

pub fn temporary(name: &str) -> std::path::PathBuf {
    let folder = env::temp_dir().join(format!("kvtide-tiers-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// Runs random prompts in a cache with few blocks, next to one with room for all: both find the same prefixes.
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
    // Copied once: a block that is known to be in the tier is not copied again.
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
    let mut restore = tiers.restore(&mut cache, &tokens, salted, TierSet::ALL, later()).unwrap();
    restore.ask(later());
    assert!(!restore.is_worth());
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
    // The store is probed, without any key, as soon as it may be asked.
    toy.is_due.store(true, Ordering::Relaxed);
    let question = [StoreKey { block: BlockKey([0; 32]), group: 0, form: FormTag::default() }];
    let started = Instant::now();
    while toy.asked.lock().unwrap().len() < 3 {
        assert!(started.elapsed() < PATIENCE, "the store is not probed");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(toy.asked.lock().unwrap().chunks(1).all(|asked| asked == question));
    // An offload finds out as well, and loses nothing if the store is reachable.
    compute(&mut cache, &[6; 9]);
    assert!(tiers.flush(later()));
    assert_eq!((tiers.stats()[0].1.stored, tiers.stats()[0].1.dropped), (0, 2));
    toy.is_down.store(false, Ordering::Relaxed);
    compute(&mut cache, &[7; 9]);
    assert!(tiers.flush(later()));
    assert_eq!(tiers.stats()[0].1.stored, 2, "it is there again");
}

/// A store that does not answer until the test lets it.
#[derive(Debug, Default)]
struct Stuck(Toy, AtomicBool);

impl Store for Stuck {
    fn get(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        while self.1.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.get(keys, bytes_max, deadline)
    }

    fn has(&self, keys: &[String], deadline: Instant) -> Vec<bool> {
        self.0.has(keys, deadline)
    }

    fn put(&self, entries: &[(String, &[u8])], deadline: Instant) -> usize {
        self.0.put(entries, deadline)
    }

    fn remove(&self, keys: &[String], deadline: Instant) {
        self.0.remove(keys, deadline);
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
    // The first blocks are in memory, the others in a store that does not answer.
    let below = attach(&mut other, memory(u64::MAX), vec![lower(stuck.clone(), Policy::Commit)]);
    stuck.1.store(true, Ordering::Relaxed);
    let options = PromptOptions::default();
    let mut restore = below.restore(&mut other, &tokens, options, TierSet::ALL, later()).unwrap();
    restore.ask(later());
    restore.begin(&mut other).unwrap();
    assert_eq!(restore.length(), 8);
    restore.fetch(Instant::now() + Duration::from_millis(20));
    assert_eq!(restore.end(&mut other).unwrap(), [0, 0]);
    assert_eq!(found(&mut other, &tokens, b""), 0);
    // Late entries go into blocks that no prompt sees; the cache goes on meanwhile.
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
        TiersOptions { lower: vec![lower(Arc::new(Toy::default()), Policy::Commit)], ..TiersOptions::default() };
    let error = Tiers::attach(&mut cache, options).unwrap_err();
    assert!(error.to_string().starts_with("prefixKey is none, expected 32 bytes"), "{error}");
    attach(&mut cache, memory(1 << 20), Vec::new());
    assert!(
        Tiers::attach(&mut cache, TiersOptions::default()).unwrap_err().to_string().starts_with("below is another")
    );
}
