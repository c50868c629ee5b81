//! Compares the index with a naive model: one set of keys per worker and tier.

mod support;

use std::collections::{HashMap, HashSet};

use kvtide_router::{Choice, Policy, Tier, WORKERS_MAX, WorkerId, WorkerIndex, WorkerPrefix};
use proptest::prelude::*;
use support::{mix, run};

/// The naive model: sets of keys, searched with loops.
#[derive(Default)]
struct Oracle {
    workers: HashMap<WorkerId, Worker>,
}

#[derive(Default)]
struct Worker {
    held: HashSet<(u64, Tier)>,
    load: f64,
}

impl Oracle {
    fn tier(&self, worker: WorkerId, key: u64) -> Option<Tier> {
        Tier::ALL.into_iter().find(|&tier| self.workers[&worker].held.contains(&(key, tier)))
    }

    fn length(&self, worker: WorkerId, keys: &[u64]) -> usize {
        keys.iter().take_while(|&&key| self.tier(worker, key).is_some()).count()
    }

    fn ids(&self) -> Vec<WorkerId> {
        let mut ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        ids.sort();
        ids
    }

    /// All choices that are equally good.
    fn choices(&self, keys: &[u64], policy: Policy) -> Vec<Choice> {
        let rate = |worker| {
            let (blocks, load) = (self.length(worker, keys), self.workers[&worker].load);
            let computed = (keys.len() - blocks) as f64;
            match policy {
                Policy::LongestPrefix => ((computed, load), Choice { worker, blocks, cost: computed }),
                Policy::Cost { load_weight } => {
                    let cost = computed + load_weight * load;
                    ((cost, computed), Choice { worker, blocks, cost })
                }
            }
        };
        let rated: Vec<_> = self.ids().into_iter().map(rate).collect();
        let best = rated.iter().map(|(rating, _)| *rating).min_by(|a, b| a.partial_cmp(b).expect("numbers"));
        rated.into_iter().filter(|(rating, _)| Some(*rating) == best).map(|(_, choice)| choice).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Store { worker: usize, tier: usize, from: usize, to: usize },
    Remove { worker: usize, tier: usize, keys: Vec<usize> },
    Clear { worker: usize },
    Leave { worker: usize },
    Join,
    Load { worker: usize, load: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let worker = 0..8usize;
    let step = prop_oneof![
        8 => (worker.clone(), 0..3usize, 0..6usize, 0..40usize)
            .prop_map(|(worker, tier, from, to)| Step::Store { worker, tier, from, to }),
        6 => (worker.clone(), 0..3usize, prop::collection::vec(0..40usize, 1..6))
            .prop_map(|(worker, tier, keys)| Step::Remove { worker, tier, keys }),
        1 => worker.clone().prop_map(|worker| Step::Clear { worker }),
        1 => worker.clone().prop_map(|worker| Step::Leave { worker }),
        1 => Just(Step::Join),
        2 => (worker, 0..20u8).prop_map(|(worker, load)| Step::Load { worker, load }),
    ];
    prop::collection::vec(step, 1..60)
}

/// A forest: each block follows one of the earlier blocks, or begins a prompt.
fn forest(shape: u64) -> Vec<Option<usize>> {
    let parent = |block: u64| {
        let drawn = mix(shape ^ mix(block));
        // Mostly the previous block, so that paths are long.
        match drawn % 8 {
            _ if block == 0 => None,
            0 => None,
            1 | 2 => Some((drawn >> 8) as usize % block as usize),
            _ => Some(block as usize - 1),
        }
    };
    (0..40).map(parent).collect()
}

fn path(forest: &[Option<usize>], block: usize) -> Vec<usize> {
    let mut path: Vec<usize> = std::iter::successors(Some(block), |&block| forest[block]).collect();
    path.reverse();
    path
}

fn key(block: usize) -> u64 {
    mix(block as u64)
}

fn compare(index: &WorkerIndex, oracle: &Oracle, keys: &[u64]) -> Result<(), TestCaseError> {
    let mut expected: Vec<WorkerPrefix> = (oracle.ids().into_iter())
        .map(|worker| WorkerPrefix { worker, blocks: oracle.length(worker, keys) })
        .filter(|prefix| prefix.blocks > 0)
        .collect();
    expected.sort_by_key(|prefix| (usize::MAX - prefix.blocks, prefix.worker));
    let longest = expected.first().map_or(0, |prefix| prefix.blocks);
    let holders: Vec<WorkerId> =
        expected.iter().filter(|prefix| prefix.blocks == longest).map(|prefix| prefix.worker).collect();
    let found = index.find(keys);
    prop_assert_eq!(found.blocks, longest);
    prop_assert_eq!(found.workers.count_all(), holders.len());
    prop_assert_eq!(found.workers.collect::<Vec<_>>(), holders);
    let mut lengths = Vec::new();
    index.lengths(keys, &mut lengths);
    prop_assert_eq!(lengths, expected);
    for worker in oracle.ids() {
        let held: Vec<Tier> = keys.iter().map_while(|&key| oracle.tier(worker, key)).collect();
        let counts = index.tiers(keys, worker);
        let count = |tier| held.iter().filter(|&&of| of == tier).count();
        prop_assert_eq!((counts.gpu, counts.cpu, counts.disk), (count(Tier::Gpu), count(Tier::Cpu), count(Tier::Disk)));
    }
    for policy in [Policy::LongestPrefix, Policy::Cost { load_weight: 0.5 }, Policy::Cost { load_weight: 3.0 }] {
        let (choice, choices) = (index.choose(keys, policy).unwrap(), oracle.choices(keys, policy));
        prop_assert!(choice.map_or(choices.is_empty(), |choice| choices.contains(&choice)), "{policy:?}: {choice:?}");
    }
    Ok(())
}

/// Runs steps with workers whose numbers start at `first`.
fn follow(first: usize, shape: u64, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let forest = forest(shape);
    let (mut index, mut oracle) = (WorkerIndex::new(), Oracle::default());
    let mut all: Vec<WorkerId> = (0..first + 4).map(|_| index.add_worker().unwrap()).collect();
    for worker in all.drain(..first) {
        index.remove_worker(worker).unwrap();
    }
    oracle.workers.extend(all.iter().map(|&worker| (worker, Worker::default())));
    for step in steps {
        let ids = oracle.ids();
        let pick = |worker: usize| (!ids.is_empty()).then(|| ids[worker % ids.len()]);
        take(&mut index, &mut oracle, &forest, pick, step);
        index.check_invariants();
        for block in 0..forest.len() {
            let keys: Vec<u64> = path(&forest, block).into_iter().map(key).collect();
            compare(&index, &oracle, &keys)?;
        }
    }
    Ok(())
}

fn take(
    index: &mut WorkerIndex,
    oracle: &mut Oracle,
    forest: &[Option<usize>],
    pick: impl Fn(usize) -> Option<WorkerId>,
    step: Step,
) {
    match step {
        Step::Store { worker, tier, from, to } => {
            let Some(worker) = pick(worker) else { return };
            let path = path(forest, to);
            let from = from.min(path.len() - 1);
            let keys: Vec<u64> = path[from..].iter().map(|&block| key(block)).collect();
            let parent = (from > 0).then(|| key(path[from - 1]));
            index.store(worker, Tier::ALL[tier], parent, &keys).unwrap();
            let held = &mut oracle.workers.get_mut(&worker).unwrap().held;
            held.extend(keys.iter().map(|&key| (key, Tier::ALL[tier])));
        }
        Step::Remove { worker, tier, keys } => {
            let Some(worker) = pick(worker) else { return };
            let keys: Vec<u64> = keys.into_iter().map(key).collect();
            index.remove(worker, Tier::ALL[tier], &keys).unwrap();
            let held = &mut oracle.workers.get_mut(&worker).unwrap().held;
            held.retain(|&(key, of)| of != Tier::ALL[tier] || !keys.contains(&key));
        }
        Step::Clear { worker } => {
            let Some(worker) = pick(worker) else { return };
            index.clear(worker).unwrap();
            oracle.workers.get_mut(&worker).unwrap().held.clear();
        }
        Step::Leave { worker } => {
            let Some(worker) = pick(worker) else { return };
            index.remove_worker(worker).unwrap();
            oracle.workers.remove(&worker);
        }
        Step::Join => {
            let worker = index.add_worker().unwrap();
            oracle.workers.insert(worker, Worker::default());
        }
        Step::Load { worker, load } => {
            let Some(worker) = pick(worker) else { return };
            index.set_load(worker, load.into()).unwrap();
            oracle.workers.get_mut(&worker).unwrap().load = load.into();
        }
    }
}

#[test]
fn finds_what_loops_over_sets_find() {
    run("index", 300, (any::<u64>(), steps()), |(shape, steps)| follow(0, shape, steps));
}

#[test]
fn finds_the_same_with_numbers_over_several_words() {
    run("wide index", 60, (any::<u64>(), steps(), 60..200usize), |(shape, steps, first)| follow(first, shape, steps));
}

#[test]
fn takes_1024_workers_and_no_more() {
    let mut index = WorkerIndex::new();
    let workers: Vec<WorkerId> = (0..WORKERS_MAX).map(|_| index.add_worker().unwrap()).collect();
    let error = index.add_worker().unwrap_err();
    assert_eq!(error.code().as_str(), "INVALID_ARGUMENT");
    for (place, &worker) in workers.iter().enumerate() {
        index.store(worker, Tier::Gpu, None, &[1, 2, 3][..place % 3 + 1]).unwrap();
    }
    index.check_invariants();
    let found = index.find(&[1, 2, 3]);
    assert_eq!((found.blocks, found.workers.count_all()), (3, 341));
    assert_eq!(found.workers.last(), Some(WorkerId::of_index(1022)));
    assert_eq!(index.find(&[1]).workers.count_all(), WORKERS_MAX);
    for worker in workers {
        index.remove_worker(worker).unwrap();
    }
    let usage = index.usage();
    assert_eq!((usage.workers, usage.blocks, usage.sets), (0, 0, 1));
}

#[test]
fn a_hole_hides_what_is_behind_it_until_it_is_filled() {
    let mut index = WorkerIndex::new();
    let worker = index.add_worker().unwrap();
    let keys: Vec<u64> = (0..1000).map(|block| mix(block + 1)).collect();
    index.store(worker, Tier::Gpu, None, &keys).unwrap();
    assert_eq!(index.find(&keys).blocks, 1000);
    index.remove(worker, Tier::Gpu, &keys[10..11]).unwrap();
    assert_eq!(index.find(&keys).blocks, 10);
    index.store(worker, Tier::Disk, Some(keys[9]), &keys[10..11]).unwrap();
    assert_eq!(index.find(&keys).blocks, 1000);
    assert_eq!(index.tiers(&keys, worker).disk, 1);
}

#[test]
fn each_length_of_a_long_prompt_is_found() {
    let keys: Vec<u64> = (0..700).map(|block| mix(block + 1)).collect();
    for (long, short) in (0..700).map(|length| (length, length * 7 % 700)) {
        let mut index = WorkerIndex::new();
        let ids = [index.add_worker().unwrap(), index.add_worker().unwrap()];
        for (worker, length) in ids.into_iter().zip([long, short]) {
            index.store(worker, Tier::Gpu, None, &keys[..length]).unwrap();
        }
        assert_eq!(index.find(&keys).blocks, long.max(short));
        assert_eq!(index.find(&keys[..long]).blocks, long);
        let mut lengths = Vec::new();
        index.lengths(&keys, &mut lengths);
        let expected: Vec<usize> =
            [long.max(short), long.min(short)].into_iter().filter(|&length| length > 0).collect();
        assert_eq!(lengths.iter().map(|prefix| prefix.blocks).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn blocks_may_come_before_their_parents() {
    let mut index = WorkerIndex::new();
    let worker = index.add_worker().unwrap();
    index.store(worker, Tier::Gpu, Some(20), &[30, 40]).unwrap();
    assert_eq!(index.find(&[10, 20, 30, 40]).blocks, 0);
    index.store(worker, Tier::Gpu, Some(10), &[20]).unwrap();
    index.store(worker, Tier::Gpu, None, &[10]).unwrap();
    assert_eq!(index.find(&[10, 20, 30, 40]).blocks, 4);
    index.check_invariants();
}

#[test]
fn blocks_in_a_circle_are_nobodys_and_are_freed() {
    let mut index = WorkerIndex::new();
    let worker = index.add_worker().unwrap();
    index.store(worker, Tier::Gpu, Some(1), &[1]).unwrap();
    index.store(worker, Tier::Gpu, Some(3), &[2]).unwrap();
    index.store(worker, Tier::Gpu, Some(2), &[3]).unwrap();
    index.check_invariants();
    assert_eq!((index.find(&[1]).blocks, index.find(&[2, 3]).blocks), (0, 0));
    index.clear(worker).unwrap();
    assert_eq!(index.usage().blocks, 0);
}

#[test]
fn prompts_spread_over_workers_that_are_alike_and_those_that_begin_alike_do_not() {
    let mut index = WorkerIndex::new();
    let workers: Vec<WorkerId> = (0..8).map(|_| index.add_worker().unwrap()).collect();
    for policy in [Policy::LongestPrefix, Policy::Cost { load_weight: 1.0 }] {
        let chosen = |keys: &[u64]| index.choose(keys, policy).unwrap().unwrap().worker;
        let mut counts = [0; 8];
        for prompt in 0..8000 {
            let worker = chosen(&[key(prompt), 1]);
            assert_eq!(worker, chosen(&[key(prompt), 2, 3]));
            counts[worker.index()] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
    // The less loaded worker is still preferred.
    index.set_load(workers[5], -1.0).unwrap();
    assert_eq!(index.choose(&[key(1)], Policy::LongestPrefix).unwrap().unwrap().worker, workers[5]);
}

#[test]
fn refuses_workers_that_are_not_there() {
    let mut index = WorkerIndex::new();
    let worker = index.add_worker().unwrap();
    let unknown = WorkerId::of_index(7);
    let outcomes = [
        index.store(unknown, Tier::Gpu, None, &[1]),
        index.remove(unknown, Tier::Gpu, &[1]),
        index.clear(unknown),
        index.remove_worker(unknown),
        index.set_load(unknown, 1.0),
        index.set_load(worker, f64::NAN),
        index.choose(&[1], Policy::Cost { load_weight: -1.0 }).map(drop),
    ];
    for outcome in outcomes {
        assert_eq!(outcome.unwrap_err().code().as_str(), "INVALID_ARGUMENT");
    }
    assert_eq!(index.usage().blocks, 0);
    index.remove_worker(worker).unwrap();
    assert_eq!(index.choose(&[1], Policy::LongestPrefix).unwrap(), None);
}
