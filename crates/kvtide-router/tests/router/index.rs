//! Compares the index with a naive model: one set of keys per worker and tier, and one of states.

use std::collections::{HashMap, HashSet};

use kvtide_router::{Choice, Policy, Tier, WORKERS_MAX, WorkerId, WorkerIndex, WorkerPrefix};
use proptest::prelude::*;

use crate::support::{mix, run};

/// The naive model: sets of keys, searched with loops.
#[derive(Default)]
struct Oracle {
    workers: HashMap<WorkerId, Worker>,
}

#[derive(Default)]
struct Worker {
    held: HashSet<(u64, Tier)>,
    states: HashSet<(u64, Tier)>,
    keeps: Keeps,
    load: f64,
}

#[derive(Clone, Copy, Debug, Default)]
enum Keeps {
    #[default]
    Tokens,
    Both,
    States,
}

impl Oracle {
    fn tier(&self, worker: WorkerId, key: u64) -> Option<Tier> {
        Tier::ALL.into_iter().find(|&tier| self.workers[&worker].held.contains(&(key, tier)))
    }

    /// The blocks of a prompt from which a worker can continue.
    fn length(&self, worker: WorkerId, keys: &[u64]) -> usize {
        let held = keys.iter().take_while(|&&key| self.tier(worker, key).is_some()).count();
        let Worker { states, keeps, .. } = &self.workers[&worker];
        let has_state = |&blocks: &usize| Tier::ALL.iter().any(|&tier| states.contains(&(keys[blocks - 1], tier)));
        let deepest = |blocks: usize| (1..=blocks).rev().find(has_state).unwrap_or(0);
        match keeps {
            Keeps::Tokens => held,
            Keeps::Both => deepest(held),
            Keeps::States => deepest(keys.len()),
        }
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
    StoreStates { worker: usize, tier: usize, keys: Vec<usize> },
    RemoveStates { worker: usize, tier: usize, keys: Vec<usize> },
    Keep { worker: usize, keeps: Keeps },
    Clear { worker: usize },
    Leave { worker: usize },
    Join,
    Load { worker: usize, load: u8 },
}

/// Random steps; with a weight of 0, no worker keeps states.
fn steps(states: u32) -> impl Strategy<Value = Vec<Step>> {
    let worker = 0..8usize;
    let keys = || prop::collection::vec(0..40usize, 1..6);
    let keeps = prop_oneof![1 => Just(Keeps::Tokens), 2 => Just(Keeps::Both), 1 => Just(Keeps::States)];
    let of_states = prop_oneof![
        4 => (worker.clone(), 0..3usize, keys())
            .prop_map(|(worker, tier, keys)| Step::StoreStates { worker, tier, keys }),
        2 => (worker.clone(), 0..3usize, keys())
            .prop_map(|(worker, tier, keys)| Step::RemoveStates { worker, tier, keys }),
        2 => (worker.clone(), keeps).prop_map(|(worker, keeps)| Step::Keep { worker, keeps }),
    ];
    let step = prop_oneof![
        8 => (worker.clone(), 0..3usize, 0..6usize, 0..40usize)
            .prop_map(|(worker, tier, from, to)| Step::Store { worker, tier, from, to }),
        6 => (worker.clone(), 0..3usize, keys())
            .prop_map(|(worker, tier, keys)| Step::Remove { worker, tier, keys }),
        states => of_states,
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
        Step::StoreStates { worker, tier, keys } => {
            let Some(worker) = pick(worker) else { return };
            let keys: Vec<u64> = keys.into_iter().map(key).collect();
            index.store_states(worker, Tier::ALL[tier], &keys).unwrap();
            let states = &mut oracle.workers.get_mut(&worker).unwrap().states;
            states.extend(keys.iter().map(|&key| (key, Tier::ALL[tier])));
        }
        Step::RemoveStates { worker, tier, keys } => {
            let Some(worker) = pick(worker) else { return };
            let keys: Vec<u64> = keys.into_iter().map(key).collect();
            index.remove_states(worker, Tier::ALL[tier], &keys).unwrap();
            let states = &mut oracle.workers.get_mut(&worker).unwrap().states;
            states.retain(|&(key, of)| of != Tier::ALL[tier] || !keys.contains(&key));
        }
        Step::Keep { worker, keeps } => {
            let Some(worker) = pick(worker) else { return };
            let (tokens, states) = (!matches!(keeps, Keeps::States), !matches!(keeps, Keeps::Tokens));
            index.keep(worker, tokens, states).unwrap();
            oracle.workers.get_mut(&worker).unwrap().keeps = keeps;
        }
        Step::Clear { worker } => {
            let Some(worker) = pick(worker) else { return };
            index.clear(worker).unwrap();
            let of = oracle.workers.get_mut(&worker).unwrap();
            of.held.clear();
            of.states.clear();
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
    run("index", 300, (any::<u64>(), steps(0)), |(shape, steps)| follow(0, shape, steps));
}

#[test]
fn workers_with_states_continue_where_a_state_is() {
    run("states", 300, (any::<u64>(), steps(8)), |(shape, steps)| follow(0, shape, steps));
}

#[test]
fn finds_the_same_with_numbers_over_several_words() {
    let wide = (any::<u64>(), prop_oneof![steps(0), steps(8)], 60..200usize);
    run("wide index", 60, wide, |(shape, steps, first)| follow(first, shape, steps));
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
fn a_state_before_the_longest_prefix_decides() {
    let keys: Vec<u64> = (0..1000).map(|block| mix(block + 1)).collect();
    let mut index = WorkerIndex::new();
    let [plain, hybrid, lone] = std::array::from_fn(|_| index.add_worker().unwrap());
    index.keep(hybrid, true, true).unwrap();
    index.keep(lone, false, true).unwrap();
    index.store(hybrid, Tier::Gpu, None, &keys).unwrap();
    assert_eq!(index.find(&keys).blocks, 0, "nothing to continue from");
    index.store_states(hybrid, Tier::Cpu, &[keys[699], keys[6]]).unwrap();
    index.store_states(lone, Tier::Gpu, &[keys[99]]).unwrap();
    index.store(plain, Tier::Gpu, None, &keys[..100]).unwrap();
    let mut lengths = Vec::new();
    index.lengths(&keys, &mut lengths);
    let of = |worker, blocks| WorkerPrefix { worker, blocks };
    assert_eq!(lengths, [of(hybrid, 700), of(plain, 100), of(lone, 100)]);
    assert_eq!(index.find(&keys[..699]).workers.collect::<Vec<_>>(), [plain, lone]);
    // A hole in the blocks hides the states behind it.
    index.remove(hybrid, Tier::Gpu, &keys[6..7]).unwrap();
    index.lengths(&keys, &mut lengths);
    assert_eq!(lengths, [of(plain, 100), of(lone, 100)]);
    let usage = index.usage();
    assert_eq!((usage.blocks, usage.states), (1000, 3));
    for worker in [plain, hybrid, lone] {
        index.remove_worker(worker).unwrap();
    }
    let usage = index.usage();
    assert_eq!((usage.blocks, usage.states, usage.sets), (0, 0, 1));
    let again = index.add_worker().unwrap();
    index.store(again, Tier::Gpu, None, &keys).unwrap();
    assert_eq!(index.find(&keys).blocks, 1000, "a new worker keeps tokens alone");
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
fn parents_that_no_block_follows_are_not_kept() {
    let mut index = WorkerIndex::new();
    let worker = index.add_worker().unwrap();
    index.store(worker, Tier::Gpu, Some(1), &[2, 3]).unwrap();
    for parent in 10..10_010 {
        index.store(worker, Tier::Gpu, Some(parent), &[2]).unwrap();
        index.store(worker, Tier::Gpu, Some(parent), &[3]).unwrap();
    }
    index.check_invariants();
    assert_eq!(index.usage().blocks, 3);
    index.store(worker, Tier::Gpu, None, &[1]).unwrap();
    assert_eq!(index.find(&[1, 2, 3]).blocks, 3);
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
        index.store_states(unknown, Tier::Gpu, &[1]),
        index.remove_states(unknown, Tier::Gpu, &[1]),
        index.keep(unknown, true, true),
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
