//! Compares the order of eviction by usefulness with a list that is sorted again for every block taken.

use std::sync::Arc;

use kvtide_core::paged::parts::{BlockState, Blocks, RankChain, Release};
use kvtide_core::paged::{EvictionPolicy, LeastUseful, PRIORITY_DEFAULT, PagedPlanner, ReleasedBlock};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{Done, support};

const BLOCKS: u32 = 7;

#[derive(Clone, Debug)]
enum Call {
    Take,
    Note(u32, u32, u32),
    Retain(u32),
    Release(u32, bool),
    Priority(u32, u8, Option<u64>),
    Advance(u64),
    Forget(u32),
}

fn call() -> impl Strategy<Value = Call> {
    let block = || 0..BLOCKS;
    prop_oneof![
        6 => Just(Call::Take),
        4 => (block(), 0..6u32, 0..70u32).prop_map(|(block, tokens, asked)| Call::Note(block, tokens * 256, asked)),
        4 => block().prop_map(Call::Retain),
        8 => (block(), prop::bool::weighted(0.9)).prop_map(|(block, cached)| Call::Release(block, cached)),
        2 => (block(), 48..52u8, prop::option::of(0..30u64))
            .prop_map(|(block, priority, until)| Call::Priority(block, priority, until)),
        2 => (0..4u64).prop_map(Call::Advance),
        1 => block().prop_map(Call::Forget),
    ]
}

/// A block that is held or cached.
#[derive(Clone, Copy, Debug)]
struct Known {
    block: u32,
    count: u32,
    tokens: u64,
    requests: u64,
    priority: (u8, Option<u64>),
    /// Its score when it was released last, and the number of that release.
    score: u64,
    released: u64,
}

#[derive(Default)]
struct Model {
    known: Vec<Known>,
    free: Vec<u32>,
    touched: u32,
    age: u64,
    releases: u64,
    now: u64,
}

impl Model {
    fn rank(&self, known: &Known) -> u8 {
        let (priority, until) = known.priority;
        if until.is_some_and(|until| until <= self.now) { PRIORITY_DEFAULT } else { priority }
    }

    /// The cached blocks, the least useful first.
    fn cached(&self) -> Vec<Known> {
        let mut cached: Vec<Known> = self.known.iter().filter(|known| known.count == 0).copied().collect();
        cached.sort_by_key(|known| (self.rank(known), known.score, known.released));
        cached
    }

    fn order(&self) -> Vec<u32> {
        let new = self.free.iter().copied().chain(self.touched..BLOCKS);
        new.chain(self.cached().into_iter().map(|known| known.block)).collect()
    }

    fn at(&mut self, block: u32) -> Option<&mut Known> {
        self.known.iter_mut().find(|known| known.block == block)
    }

    fn take(&mut self) -> Option<u32> {
        let block = *self.order().first()?;
        if block >= self.touched {
            self.touched += 1;
        } else if self.free.contains(&block) {
            self.free.retain(|&free| free != block);
        } else {
            self.age = self.age.max(self.cached()[0].score);
            self.known.retain(|known| known.block != block);
        }
        let priority = (PRIORITY_DEFAULT, None);
        self.known.push(Known { block, count: 1, tokens: 512, requests: 1, priority, score: 0, released: 0 });
        Some(block)
    }

    fn list(&mut self, block: u32) {
        let (age, now) = (self.age, self.releases);
        self.releases += 1;
        if let Some(known) = self.at(block) {
            (known.score, known.released) = (age + known.tokens * known.requests, now);
        }
    }
}

fn apply(blocks: &mut Blocks, model: &mut Model, call: &Call) -> Done {
    let count = |model: &mut Model, block| model.at(block).map(|known| known.count);
    match *call {
        Call::Take => {
            blocks.reserve(1).unwrap();
            prop_assert_eq!(blocks.take().map(|taken| taken.block), model.take());
        }
        Call::Note(block, tokens, requests) => {
            if let Some(known) = model.at(block).filter(|known| known.count > 0) {
                (known.tokens, known.requests) = (tokens.into(), requests.clamp(1, 64).into());
                blocks.note_use(block, tokens, requests);
            }
        }
        Call::Retain(block) => {
            if let Some(known) = model.at(block) {
                known.requests = (known.requests + u64::from(known.count == 0)).min(64);
                known.count += 1;
                blocks.retain(block);
            }
        }
        Call::Release(block, cached) => {
            if count(model, block).is_none_or(|count| count == 0) {
                return Ok(());
            }
            blocks.release(block, Release { cached, depth: 0 }, &mut RankChain::default());
            let known = model.at(block).unwrap();
            known.count -= 1;
            match (known.count, cached) {
                (0, true) => model.list(block),
                (0, false) => {
                    model.known.retain(|known| known.block != block);
                    model.free.push(block);
                }
                _ => {}
            }
        }
        Call::Priority(block, priority, until) => {
            if let Some(known) = model.at(block) {
                known.priority = (priority, until);
                let is_cached = known.count == 0;
                blocks.set_priority(block, priority, until).unwrap();
                if is_cached {
                    model.list(block);
                }
            }
        }
        Call::Advance(time) => {
            model.now += time;
            blocks.advance(model.now);
        }
        Call::Forget(block) => {
            if count(model, block) == Some(0) {
                blocks.forget(block);
                model.known.retain(|known| known.block != block);
                model.free.push(block);
            }
        }
    }
    Ok(())
}

fn the_least_useful_goes_first(calls: Vec<Call>) -> Result<(), TestCaseError> {
    let policy = Box::new(LeastUseful::default());
    // Turns are renumbered often.
    let mut blocks = Blocks::new(BLOCKS).unwrap().with_last_turn(BLOCKS + 2).with_policy(policy);
    let mut model = Model::default();
    for call in &calls {
        apply(&mut blocks, &mut model, call)?;
        prop_assert_eq!(blocks.upcoming().map(|taken| taken.block).collect::<Vec<_>>(), model.order());
        blocks.check_invariants().map_err(TestCaseError::fail)?;
    }
    Ok(())
}

#[test]
fn the_order_of_usefulness_is_that_of_a_list_that_is_sorted_again() {
    support::run("usefulness", 2000, prop::collection::vec(call(), 1..120), the_least_useful_goes_first);
}

/// Fills a pool with checkpoints: tokens saved, and prompts that found them.
fn pool(uses: &[(u32, u32)]) -> Blocks {
    let mut blocks = Blocks::new(uses.len() as u32).unwrap().with_policy(Box::new(LeastUseful::default()));
    blocks.reserve(uses.len() as u32).unwrap();
    for &(tokens, found) in uses {
        let block = blocks.take().unwrap().block;
        blocks.note_use(block, tokens, 1);
        release(&mut blocks, block);
        for _ in 0..found {
            blocks.retain(block);
            release(&mut blocks, block);
        }
    }
    blocks
}

fn release(blocks: &mut Blocks, block: u32) {
    blocks.release(block, Release { cached: true, depth: 0 }, &mut RankChain::default());
}

fn order(blocks: &Blocks) -> Vec<u32> {
    blocks.upcoming().map(|taken| taken.block).collect()
}

#[test]
fn few_tokens_for_many_prompts_are_worth_many_tokens_for_few() {
    assert_eq!(order(&pool(&[(100, 3), (1000, 0), (64, 1), (500, 1), (128, 0)])), [2, 4, 0, 1, 3]);
}

#[test]
fn a_block_that_was_popular_is_overtaken_once_others_are_evicted() {
    let mut blocks = pool(&[(512, 20), (512, 0)]);
    for round in 1..=20 {
        let block = blocks.take().unwrap().block;
        assert_eq!(block, 1, "{round}");
        blocks.note_use(block, 512, 1);
        release(&mut blocks, block);
    }
    // 21 requests of 512 tokens each, as 21 evictions of 512 tokens each.
    assert_eq!(blocks.take().unwrap().block, 0);
}

#[test]
fn a_priority_goes_before_usefulness() {
    let mut blocks = pool(&[(16, 0), (4096, 9)]);
    blocks.set_priority(0, 60, Some(5)).unwrap();
    assert_eq!(order(&blocks), [1, 0]);
    blocks.advance(5);
    assert_eq!(order(&blocks), [0, 1]);
    assert_eq!(blocks.set(0), BlockState::Cached);
}

/// All blocks alike.
#[derive(Debug)]
struct Alike;

impl EvictionPolicy for Alike {
    fn rank(&self, _: &ReleasedBlock) -> u8 {
        7
    }
}

#[test]
fn ranks_of_another_policy_go_before_usefulness() {
    let alike: Arc<dyn EvictionPolicy> = Arc::new(Alike);
    assert!(!alike.orders_by_usefulness());
    let shared: Arc<dyn EvictionPolicy> = Arc::new(LeastUseful::ranked_by(Box::new(alike)));
    assert!(shared.orders_by_usefulness());
    assert_eq!(shared.rank(&ReleasedBlock { priority: 90, depth: None }), 7);
    let planner = PagedPlanner::new(4, 16, 1).unwrap().evicting(Box::new(shared));
    assert_eq!(planner.pool_stats().total, 4);
}
