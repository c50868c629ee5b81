//! Prefixes that are forgotten during offloads and restores: from then on, prompts find none of the earlier blocks.

use std::collections::HashSet;
use std::sync::Arc;

use kvtide_core::paged::BlockKey;
use kvtide_files::{CacheFile, CacheLoad, SequenceFile, Source, Watch, save_cache_bytes, save_sequence_bytes};
use kvtide_tensor::pages::NewBlocks;
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{PagedKvCache, PromptOptions};
use kvtide_tiers::{Policy, Restore, TierSet, Tiers, TiersOptions};

use crate::ending::Held;
use crate::tiers::{Toy, attach, bring, compute, later, lower, memory, prompt, small};
use crate::world::{Form, Random, append, forms, found};

/// A load or restore in progress, each at some stage.
enum Pending {
    Named(Restore),
    Asked(Restore),
    Begun(Restore),
    Fetched(Restore),
    Opened(CacheFile, u64),
    Loading(CacheFile, CacheLoad),
    Read(CacheFile, CacheLoad),
    OpenedSequence(SequenceFile, u64),
    LoadingSequence(SequenceFile, NewBlocks),
    ReadSequence(SequenceFile, NewBlocks),
}

/// A load or restore of a prompt, and how often prefixes had been forgotten when it was requested.
struct Job {
    tokens: Vec<u32>,
    since: u64,
    pending: Pending,
}

/// A cache with memory and a store, and the blocks that prompts may find in it.
struct World {
    random: Random,
    cache: PagedKvCache,
    tiers: Tiers,
    /// The keys of blocks that were computed or requested since prefixes were last forgotten.
    may_be_found: HashSet<BlockKey>,
    forgotten: u64,
    jobs: Vec<Job>,
    /// The sequences, their tokens, and the times at which those were requested or computed.
    sequences: Vec<(u64, Vec<u32>, u64)>,
    /// All prompts, and their files.
    prompts: Vec<Vec<u32>>,
    files: Vec<[Vec<u8>; 2]>,
    /// The number of blocks that arrived although other calls went on meanwhile.
    came: usize,
}

const OPTIONS: PromptOptions<'static> = PromptOptions { salt: &[], salt_from: 0, extra: &[] };

impl World {
    fn new(form: &Form, seed: u64) -> Self {
        let mut random = Random(seed);
        let prompts: Vec<Vec<u32>> = (0..6).map(|_| prompt(&mut random)).collect();
        let files = prompts.iter().map(|tokens| files(form, tokens)).collect();
        let mut cache = small(form, 40).cache();
        let toy = Arc::new(Toy::default());
        // The store has content from the start, which other workers have computed.
        let mut worker = form.cache();
        let below = attach(&mut worker, None, vec![lower(toy.clone(), Policy::Commit)]);
        for tokens in &prompts {
            let (sequence, _) = compute(&mut worker, tokens);
            worker.drop_sequence(sequence).unwrap();
        }
        assert!(below.flush(later()));
        let tiers = attach(&mut cache, memory(u64::MAX), vec![lower(toy, Policy::Commit)]);
        let (jobs, sequences, may_be_found) = (Vec::new(), Vec::new(), HashSet::new());
        World { random, cache, tiers, may_be_found, forgotten: 0, jobs, sequences, prompts, files, came: 0 }
    }

    fn allow(&mut self, tokens: &[u32], since: u64) {
        if since == self.forgotten {
            self.may_be_found.extend(self.cache.keys(tokens, OPTIONS).unwrap());
        }
    }

    /// Begins to load or restore a prompt, in one of three ways.
    fn ask(&mut self) {
        let at = self.random.below(self.prompts.len() as u32) as usize;
        let (tokens, since) = (self.prompts[at].clone(), self.forgotten);
        let bytes = |which: usize| Source::bytes(self.files[at][which].clone());
        let pending = match self.random.below(4) {
            0 => Pending::Opened(CacheFile::open(bytes(0)).unwrap(), since),
            1 => Pending::OpenedSequence(SequenceFile::open(bytes(1)).unwrap(), since),
            _ => Pending::Named(self.tiers.restore(&mut self.cache, &tokens, OPTIONS, TierSet::ALL, later()).unwrap()),
        };
        self.jobs.push(Job { tokens, since, pending });
    }

    /// Advances one of the jobs by one step.
    fn go_on(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let at = self.random.below(self.jobs.len() as u32) as usize;
        let Job { tokens, since, pending } = self.jobs.swap_remove(at);
        let (cache, watch) = (&mut self.cache, Watch::default());
        let next = match pending {
            Pending::Named(mut restore) => {
                restore.ask(later());
                Pending::Asked(restore)
            }
            Pending::Asked(mut restore) => {
                restore.begin(cache).unwrap();
                Pending::Begun(restore)
            }
            Pending::Begun(restore) => {
                restore.fetch(later());
                Pending::Fetched(restore)
            }
            Pending::Fetched(mut restore) => {
                self.came += restore.end(cache).unwrap().iter().sum::<u32>() as usize;
                // After that, stores are no longer asked, and memory has nothing that the cache could not find before.
                if self.forgotten == 0 {
                    self.allow(&tokens, since);
                }
                return;
            }
            Pending::Opened(file, since) => match file.begin(cache) {
                Ok(load) => Pending::Loading(file, load.since(since)),
                Err(_) => return,
            },
            Pending::Loading(file, load) => {
                file.read(&load, &watch).unwrap();
                Pending::Read(file, load)
            }
            Pending::Read(file, load) => {
                let is_found = file.end(cache, &load).unwrap();
                assert_eq!(is_found, since == self.forgotten);
                return self.allow(&tokens, since);
            }
            Pending::OpenedSequence(file, since) => match file.begin(cache) {
                Ok(new) => Pending::LoadingSequence(file, new.since(since)),
                Err(_) => return,
            },
            Pending::LoadingSequence(file, new) => {
                file.read(cache, &new, &watch).unwrap();
                Pending::ReadSequence(file, new)
            }
            Pending::ReadSequence(file, new) => {
                let sequence = file.end(cache, &new, OPTIONS).unwrap();
                assert_eq!(cache.sequence_length(sequence) as usize, tokens.len());
                self.sequences.push((sequence, tokens.clone(), since));
                return self.allow(&tokens, since);
            }
        };
        self.jobs.push(Job { tokens, since, pending: next });
    }

    /// Computes the rest of a prompt after its cached prefix, or goes on with a sequence.
    fn compute(&mut self) {
        if !self.sequences.is_empty() && self.random.below(2) == 0 {
            let at = self.random.below(self.sequences.len() as u32) as usize;
            let (sequence, mut tokens, since) = self.sequences[at].clone();
            let more: Vec<u32> = (0..1 + self.random.below(6)).map(|at| 5000 + at).collect();
            if append(&mut self.cache, sequence, &more, true).is_ok() {
                tokens.extend(more);
                self.sequences[at].1.clone_from(&tokens);
                self.allow(&tokens, since);
            }
            return;
        }
        let at = self.random.below(self.prompts.len() as u32) as usize;
        let tokens = self.prompts[at].clone();
        let prefix = self.cache.find_prefix(&tokens, OPTIONS, false).unwrap();
        let length = prefix.length();
        let sequence = self.cache.create_sequence_from(prefix).unwrap();
        match append(&mut self.cache, sequence, &tokens[length as usize..], true) {
            Ok(()) => {
                self.sequences.push((sequence, tokens.clone(), self.forgotten));
                self.allow(&tokens, self.forgotten);
            }
            Err(_) => self.cache.drop_sequence(sequence).unwrap(),
        }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0 => {
                self.cache.forget_prefixes().unwrap();
                self.forgotten += 1;
                assert_eq!(self.cache.forgotten(), self.forgotten);
                self.may_be_found.clear();
            }
            1..=4 => self.ask(),
            5..=15 => self.go_on(),
            16..=18 => self.compute(),
            19 | 20 if !self.sequences.is_empty() => {
                let at = self.random.below(self.sequences.len() as u32) as usize;
                let (sequence, ..) = self.sequences.swap_remove(at);
                self.cache.drop_sequence(sequence).unwrap();
            }
            21 => assert!(self.tiers.flush(later())),
            _ => _ = self.cache.hand_down(usize::MAX),
        }
    }

    fn check(&mut self, seed: u64, turn: u32) {
        self.cache.check_invariants().unwrap();
        for at in 0..self.prompts.len() {
            let tokens = [&self.prompts[at][..], &[9999]].concat();
            let keys = self.cache.keys(&tokens, OPTIONS).unwrap();
            let most = keys.iter().take_while(|key| self.may_be_found.contains(key)).count();
            let length = found(&mut self.cache, &tokens, b"");
            let size = self.cache.block_size();
            assert!(
                length <= most as u32 * size,
                "seed {seed}, turn {turn}: {length} tokens of a forgotten prompt are found, of {} at most",
                most as u32 * size
            );
        }
    }
}

/// Returns the files of a prompt: of the prefix cache, and of its sequence.
fn files(form: &Form, tokens: &[u32]) -> [Vec<u8>; 2] {
    let mut cache = form.cache();
    let (sequence, _) = compute(&mut cache, tokens);
    let bytes = save_sequence_bytes(&mut cache, sequence, &Watch::default()).unwrap();
    [save_cache_bytes(&mut cache, &Watch::default()).unwrap(), bytes]
}

#[test]
fn what_is_forgotten_at_any_point_is_found_no_more() {
    let cases = std::env::var("KVTIDE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
    let mut came = 0;
    for (name, form) in forms() {
        for seed in 0..cases {
            let mut world = World::new(&form, seed);
            for turn in 0..60 {
                world.step();
                world.check(seed, turn);
            }
            came += world.came;
        }
        assert!(came > 0, "{name}: nothing came");
    }
}

#[test]
fn each_way_into_the_cache_is_cut_off_at_each_of_its_steps() {
    let (_, form) = forms().remove(0);
    let (toy, tokens) = (Arc::new(Toy::default()), (0..33).collect::<Vec<u32>>());
    let mut worker = form.cache();
    let below = attach(&mut worker, None, vec![lower(toy.clone(), Policy::Commit)]);
    compute(&mut worker, &tokens);
    assert!(below.flush(later()));
    for forgets_at in 0..5 {
        let mut cache = form.cache();
        let tiers = attach(&mut cache, None, vec![lower(toy.clone(), Policy::Commit)]);
        let forget_at = |cache: &mut PagedKvCache, at| {
            if at == forgets_at {
                cache.forget_prefixes().unwrap()
            }
        };
        let mut restore = tiers.restore(&mut cache, &tokens, OPTIONS, TierSet::ALL, later()).unwrap();
        forget_at(&mut cache, 0);
        restore.ask(later());
        forget_at(&mut cache, 1);
        restore.begin(&mut cache).unwrap();
        forget_at(&mut cache, 2);
        restore.fetch(later());
        forget_at(&mut cache, 3);
        let came = restore.end(&mut cache).unwrap();
        let expected = if forgets_at < 4 { 0 } else { 8 };
        assert_eq!((came[1], found(&mut cache, &tokens, b"")), (expected, expected * 4), "at {forgets_at}");
        assert_eq!(tiers.stats()[0].1.found, u64::from(expected));
        drop(restore);
        assert_eq!(cache.pools().unwrap()[0].active, 0);
    }
}

#[test]
fn what_is_forgotten_is_not_restored_from_memory() {
    let (_, form) = forms().remove(0);
    let mut cache = small(&form, 12).cache();
    let tiers = attach(&mut cache, memory(u64::MAX), Vec::new());
    let prompts = [0, 100].map(|first| (first..first + 33).collect::<Vec<u32>>());
    for tokens in &prompts {
        let (sequence, _) = compute(&mut cache, tokens);
        cache.drop_sequence(sequence).unwrap();
    }
    assert!(tiers.stats()[0].1.blocks > 0);
    cache.forget_prefixes().unwrap();
    assert_eq!(tiers.stats()[0].1.blocks, 0);
    let came = bring(&tiers, &mut cache, &prompts[0]);
    assert_eq!((came, found(&mut cache, &prompts[0], b"")), (vec![0], 0));
}

#[test]
fn what_is_forgotten_while_a_store_is_asked_is_not_written_there() {
    let (_, form) = forms().remove(0);
    let held = Arc::new(Held::default());
    let mut cache = form.cache();
    let budget = Budget::new(None);
    let options = TiersOptions {
        memory: memory(u64::MAX),
        lower: vec![lower(held.clone(), Policy::Commit)],
        budget: Some(budget.clone()),
        ..TiersOptions::default()
    };
    let tiers = Tiers::attach(&mut cache, options).unwrap();
    held.hold(true);
    compute(&mut cache, &(0..33).collect::<Vec<u32>>());
    held.asked();
    // These are queued while the store is asked for the others.
    compute(&mut cache, &(200..233).collect::<Vec<u32>>());
    assert!(budget.used() > 0);
    cache.forget_prefixes().unwrap();
    assert_eq!(budget.used(), 0, "the store hangs still");
    held.hold(false);
    assert!(tiers.flush(later()));
    compute(&mut cache, &(100..133).collect::<Vec<u32>>());
    assert!(tiers.flush(later()));
    assert!(held.toy.entries.lock().unwrap().is_empty());
    // Blocks that are computed afterwards are offloaded to memory, and restored from there.
    assert_eq!(bring(&tiers, &mut cache, &(0..33).collect::<Vec<u32>>()), [0, 0]);
}
