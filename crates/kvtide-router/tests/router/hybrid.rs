//! Events of hybrid models, as vLLM and kvtide send them, from several workers at once. A naive model keeps what each worker
//! has, and cuts prompts at the last state.

use std::collections::BTreeSet;

use kvtide_router::{Batch, BlockHash, Event, RemovedBlocks, StoredBlocks, WorkerFeed, WorkerIndex, decode, encode};

use crate::support::{Numbers, mix, seed};

const BLOCKS: u64 = 12;

/// The groups of a worker's model, in the publisher's order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Groups {
    /// Full attention, and recurrent layers behind it.
    AttentionFirst,
    /// Recurrent layers, a sliding window, full attention, as vLLM may number them.
    StatesFirst,
    /// Recurrent layers alone.
    States,
    /// Full attention alone, without a group.
    Plain,
}

impl Groups {
    /// The number and the kind of the group of tokens, and of the group of states.
    fn tokens(self) -> Option<(Option<u32>, Option<&'static str>)> {
        match self {
            Groups::AttentionFirst => Some((Some(0), Some("full_attention"))),
            Groups::StatesFirst => Some((Some(2), Some("mla_attention"))),
            Groups::Plain => Some((None, None)),
            Groups::States => None,
        }
    }

    fn states(self) -> Option<(Option<u32>, Option<&'static str>)> {
        match self {
            Groups::AttentionFirst => Some((Some(1), Some("mamba"))),
            Groups::StatesFirst | Groups::States => Some((Some(0), Some("mamba"))),
            Groups::Plain => None,
        }
    }
}

struct Worker {
    groups: Groups,
    feed: WorkerFeed,
    tokens: BTreeSet<u64>,
    states: BTreeSet<u64>,
}

/// Prompts are paths in a tree with three branches at every third block.
fn prompt(numbers: &mut Numbers) -> Vec<u64> {
    let mut key = 7;
    let blocks = 1 + numbers.below(BLOCKS);
    let mut keys = Vec::new();
    for block in 0..blocks {
        let branch = if block % 3 == 0 { numbers.below(3) } else { 0 };
        key = mix(key ^ (block << 8) ^ branch);
        keys.push(key);
    }
    keys
}

fn stored(of: (Option<u32>, Option<&'static str>), parent: Option<u64>, keys: &[u64]) -> Event {
    Event::Stored(StoredBlocks {
        hashes: keys.iter().copied().map(BlockHash::Number).collect(),
        parent: parent.map(BlockHash::Number),
        block_size: 4,
        medium: Some("GPU".to_owned()),
        group: of.0,
        spec_kind: of.1.map(str::to_owned),
        ..StoredBlocks::default()
    })
}

/// vLLM names the group of removed blocks, and not its kind.
fn removed(of: (Option<u32>, Option<&'static str>), key: u64) -> Event {
    let hashes = vec![BlockHash::Number(key)];
    Event::Removed(RemovedBlocks { hashes, medium: Some("GPU".to_owned()), group: of.0, spec_kind: None })
}

impl Worker {
    /// Computes a prompt: all blocks, and states at some of them, in one event with holes.
    fn compute(&mut self, numbers: &mut Numbers) -> Vec<Event> {
        let (keys, mut events) = (prompt(numbers), Vec::new());
        if let Some(of) = self.groups.tokens() {
            let cached = keys.iter().take_while(|key| self.tokens.contains(key)).count();
            let new = &keys[cached..];
            self.tokens.extend(new);
            events.push(stored(of, (cached > 0).then(|| keys[cached - 1]), new));
        }
        if let Some(of) = self.groups.states() {
            let some: Vec<u64> = keys.iter().copied().filter(|_| numbers.below(3) == 0).collect();
            self.states.extend(&some);
            events.push(stored(of, None, &some));
        }
        if self.groups == Groups::StatesFirst {
            // A group with a window has other blocks, which do not count.
            events.push(stored((Some(1), Some("sliding_window")), None, &keys));
            events.push(removed((Some(1), None), keys[0]));
            events.swap(0, 1);
        }
        events
    }

    fn evict(&mut self, numbers: &mut Numbers) -> Vec<Event> {
        let is_state = numbers.below(2) == 0;
        let (held, of) = match (is_state, self.groups.tokens(), self.groups.states()) {
            (true, _, Some(of)) | (_, None, Some(of)) => (&mut self.states, of),
            (_, Some(of), _) => (&mut self.tokens, of),
            (_, None, None) => unreachable!("a model without layers"),
        };
        let count = held.len() as u64;
        if count == 0 {
            return Vec::new();
        }
        let key = *held.iter().nth(numbers.below(count) as usize).expect("a block that is there");
        held.remove(&key);
        vec![removed(of, key)]
    }

    /// The blocks of a prompt from which the worker can continue.
    fn length(&self, keys: &[u64]) -> usize {
        let held = match self.groups.tokens() {
            Some(_) => keys.iter().take_while(|key| self.tokens.contains(key)).count(),
            None => keys.len(),
        };
        match self.groups.states() {
            Some(_) => (1..=held).rev().find(|&blocks| self.states.contains(&keys[blocks - 1])).unwrap_or(0),
            None => held,
        }
    }
}

#[test]
fn a_router_promises_what_workers_can_continue_from() {
    let seed = seed();
    println!("seed {seed}");
    let numbers = &mut Numbers(seed);
    let mut hits = 0;
    for _ in 0..60 {
        let mut index = WorkerIndex::new();
        let kinds = [Groups::AttentionFirst, Groups::StatesFirst, Groups::States, Groups::Plain];
        let mut workers: Vec<Worker> = (0..6)
            .map(|place| {
                let feed = WorkerFeed::new(index.add_worker().expect("room for a worker"));
                Worker { groups: kinds[place % 4], feed, tokens: BTreeSet::new(), states: BTreeSet::new() }
            })
            .collect();
        for _ in 0..60 {
            let worker = &mut workers[numbers.below(6) as usize];
            let events = match numbers.below(20) {
                0 => {
                    worker.tokens.clear();
                    worker.states.clear();
                    vec![Event::Cleared]
                }
                1 => {
                    worker.tokens.clear();
                    worker.states.clear();
                    worker.feed.lost(&mut index).expect("a worker");
                    Vec::new()
                }
                2..10 => worker.evict(numbers),
                _ => worker.compute(numbers),
            };
            let bytes = encode(&Batch { time: 1.0, events, rank: None });
            worker.feed.apply(&mut index, &decode(&bytes).expect("a batch")).expect("a worker");
            index.check_invariants();
            let keys = prompt(numbers);
            let mut lengths = Vec::new();
            index.lengths(&keys, &mut lengths);
            for worker in &workers {
                let known = lengths.iter().find(|of| of.worker == worker.feed.worker()).map_or(0, |of| of.blocks);
                assert_eq!(known, worker.length(&keys), "{:?} of seed {seed}", worker.groups);
                hits += known;
            }
        }
    }
    assert!(hits > 1000, "{hits} blocks were found");
}

#[test]
fn a_group_that_is_announced_counts_before_its_first_block() {
    let mut index = WorkerIndex::new();
    let mut feed = WorkerFeed::new(index.add_worker().unwrap());
    let mut apply = |index: &mut WorkerIndex, event: Event| feed.apply_event(index, &event).unwrap();
    apply(&mut index, stored((Some(0), Some("full_attention")), None, &[1, 2, 3]));
    assert_eq!(index.find(&[1, 2, 3]).blocks, 3);
    apply(&mut index, stored((Some(1), Some("mamba")), None, &[]));
    assert_eq!(index.find(&[1, 2, 3]).blocks, 0, "no state to continue from");
    apply(&mut index, stored((Some(1), Some("mamba")), None, &[2]));
    assert_eq!(index.find(&[1, 2, 3]).blocks, 2);
    // A kind that a removal names does not overrule the known one: newer publishers have other texts at this place.
    let removal = RemovedBlocks { spec_kind: Some("LOCAL".to_owned()), group: Some(1), ..RemovedBlocks::default() };
    apply(&mut index, Event::Removed(RemovedBlocks { hashes: vec![BlockHash::Number(2)], ..removal }));
    assert_eq!(index.find(&[1, 2, 3]).blocks, 0);
}

#[test]
fn a_worker_keeps_states_after_events_were_lost() {
    let mut index = WorkerIndex::new();
    let mut feed = WorkerFeed::new(index.add_worker().unwrap());
    let tokens = || stored((Some(0), Some("full_attention")), None, &[1, 2, 3]);
    feed.apply_event(&mut index, &tokens()).unwrap();
    feed.apply_event(&mut index, &stored((Some(1), Some("mamba")), None, &[2])).unwrap();
    feed.lost(&mut index).unwrap();
    feed.apply_event(&mut index, &tokens()).unwrap();
    assert_eq!(index.find(&[1, 2, 3]).blocks, 0, "its states are unknown");
    feed.apply_event(&mut index, &stored((Some(1), None), None, &[2])).unwrap();
    assert_eq!(index.find(&[1, 2, 3]).blocks, 2);
}
