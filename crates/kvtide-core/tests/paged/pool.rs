//! The block pool: misuse, single cases, and a comparison of random calls with a list of sets.

use std::collections::{HashMap, VecDeque};

use kvtide_core::Error;
use kvtide_core::paged::{BlockHandle, BlockPool};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::support;

fn refusal(block: BlockHandle, reason: &'static str) -> Error {
    Error::InvalidBlock { block: block.raw() as i64, reason }
}

fn pool(capacity: u32) -> BlockPool {
    BlockPool::new(capacity).unwrap()
}

#[test]
fn a_block_freed_twice_is_refused() {
    let mut pool = pool(2);
    let block = pool.allocate().unwrap();
    pool.free(block).unwrap();
    assert_eq!(pool.free(block), Err(refusal(block, "it is already free")));
    assert_eq!(pool.free_count(), 2);
}

#[test]
fn a_handle_of_an_earlier_life_is_refused() {
    let mut pool = pool(1);
    let old = pool.allocate().unwrap();
    pool.free(old).unwrap();
    let new = pool.allocate().unwrap();
    assert_eq!((old.index(), new.index()), (0, 0));
    assert_eq!(pool.free(old), Err(refusal(old, "it was freed, and this handle is of an older generation")));
    assert_eq!(pool.check(new), Ok(0));
}

#[test]
fn a_handle_that_was_never_handed_out_is_refused() {
    let mut pool = pool(3);
    pool.allocate().unwrap();
    for raw in [1, 2, 3, 1 << 32, 1 << 53, u64::MAX] {
        let block = BlockHandle::from_raw(raw);
        assert_eq!(pool.check(block), Err(refusal(block, "not a block of this pool")));
        assert_eq!(pool.free(block), Err(refusal(block, "not a block of this pool")));
    }
    pool.check_invariants().unwrap();
}

#[test]
fn a_batch_with_a_bad_handle_is_refused_whole() {
    let mut pool = pool(4);
    let blocks = pool.allocate_many(3).unwrap();
    pool.free(blocks[2]).unwrap();
    assert_eq!(pool.free_many(&blocks), Err(refusal(blocks[2], "it is already free")));
    assert_eq!(
        pool.free_many(&[blocks[0], blocks[1], blocks[0]]),
        Err(refusal(blocks[0], "it is in the batch more often than it is held"))
    );
    assert_eq!(pool.free_count(), 2);
    pool.check_invariants().unwrap();
    pool.free_many(&blocks[..2]).unwrap();
    assert_eq!(pool.free_count(), 4);
}

#[test]
fn a_block_is_free_when_nobody_holds_it_any_more() {
    let mut pool = pool(2);
    let block = pool.allocate().unwrap();
    pool.retain(block).unwrap();
    assert_eq!(pool.count(block), Ok(2));
    assert_eq!(
        pool.free_many(&[block, block, block]),
        Err(refusal(block, "it is in the batch more often than it is held"))
    );
    assert_eq!(pool.count(block), Ok(2));
    pool.free(block).unwrap();
    assert_eq!((pool.count(block), pool.free_count()), (Ok(1), 1));
    pool.retain(block).unwrap();
    pool.free_many(&[block, block]).unwrap();
    assert_eq!(pool.free_count(), 2);
    assert_eq!(pool.retain(block), Err(refusal(block, "it is already free")));
    assert_eq!(pool.count(block), Err(refusal(block, "it is already free")));
    pool.check_invariants().unwrap();
}

#[test]
fn a_watermark_is_kept_back_when_asked_and_binds_nobody() {
    let mut pool = pool(4);
    assert!(pool.can_allocate(4) && !pool.can_allocate(5));
    pool.set_watermark(3).unwrap();
    assert!(pool.can_allocate(1) && !pool.can_allocate(2) && !pool.can_allocate(u32::MAX));
    assert_eq!(pool.allocate_many(4).unwrap().len(), 4);
    assert!(!pool.can_allocate(0));
    assert_eq!(pool.set_watermark(1 << 31), Err(Error::argument("watermark", 1u32 << 31, "at most 2147483647")));
    assert_eq!(pool.watermark(), 3);
}

#[test]
fn an_empty_pool_has_nothing_and_is_not_used() {
    let mut pool = pool(0);
    assert_eq!(pool.allocate(), Err(Error::OutOfBlocks { needed: 1, free: 0, holders: None }));
    assert_eq!(pool.try_allocate(), None);
    assert_eq!(pool.allocate_many(0), Ok(vec![]));
    assert_eq!((pool.free_count(), pool.total_count(), pool.utilization()), (0, 0, 0.0));
    assert_eq!(pool.upcoming().next(), None);
    pool.check_invariants().unwrap();
}

#[test]
fn many_are_all_or_none() {
    let mut pool = pool(3);
    assert_eq!(pool.allocate_many(4), Err(Error::OutOfBlocks { needed: 4, free: 3, holders: None }));
    assert_eq!(pool.free_count(), 3);
    assert_eq!(pool.allocate_many(3).unwrap().len(), 3);
    assert_eq!(pool.utilization(), 1.0);
}

#[test]
fn a_fresh_pool_counts_up_and_used_blocks_come_before_new_ones() {
    let mut pool = pool(8);
    let blocks = pool.allocate_many(4).unwrap();
    assert_eq!(blocks.iter().map(|block| block.raw()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    pool.free_many(&[blocks[2], blocks[0]]).unwrap();
    assert_eq!([0, 1, 2, 5, 6].map(|ahead| pool.upcoming().nth(ahead)), [Some(2), Some(0), Some(4), Some(7), None]);
    let next = pool.allocate_many(3).unwrap();
    assert_eq!(next.iter().map(|block| block.index()).collect::<Vec<_>>(), [2, 0, 4]);
    assert_eq!(next.iter().map(|block| block.generation()).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!(pool.utilization(), 5.0 / 8.0);
}

#[test]
fn a_block_is_retired_after_its_last_generation() {
    let mut pool = pool(2);
    let mut last = BlockHandle::from_raw(0);
    let other = pool.allocate_many(2).unwrap()[1];
    for generation in 0..1 << 21 {
        last = BlockHandle::from_raw(generation << 32);
        assert_eq!(pool.check(last), Ok(0));
        pool.free(last).unwrap();
        assert_eq!(pool.try_allocate().is_some(), generation + 1 < 1 << 21);
    }
    assert_eq!(last.raw() >> 53, 0);
    assert_eq!((pool.free_count(), pool.total_count(), pool.utilization()), (0, 1, 1.0));
    assert_eq!((pool.retired_count(), pool.capacity()), (1, 2));
    assert_eq!(pool.free(last), Err(refusal(last, "it is already free")));
    assert_eq!(pool.allocate(), Err(Error::OutOfBlocks { needed: 1, free: 0, holders: None }));
    pool.check_invariants().unwrap();
    pool.free(other).unwrap();
    assert_eq!((pool.free_count(), pool.utilization()), (1, 0.0));
}

#[test]
fn the_largest_pool_costs_nothing_until_it_is_used() {
    let most = i32::MAX as u32;
    let mut pool = pool(most);
    assert_eq!(pool.allocate_many(3).unwrap()[2].raw(), 2);
    assert_eq!((pool.free_count(), pool.total_count()), (most - 3, most));
    let over = BlockPool::new(most + 1).unwrap_err();
    assert_eq!(over, Error::argument("capacity", most + 1, "at most 2147483647"));
}

/// A call, with numbers that stand for handles seen so far.
#[derive(Clone, Debug)]
enum Call {
    Allocate(u32),
    Free(Vec<usize>),
    Retain(usize),
}

/// The expected content of the pool: sets instead of links and generations.
#[derive(Default)]
struct Model {
    /// The reference count of each block.
    used: HashMap<BlockHandle, u32>,
    /// Indices given back, longest free first.
    free: VecDeque<u32>,
    fresh: u32,
    seen: Vec<BlockHandle>,
}

impl Model {
    /// A handle that was seen, or none of this pool.
    fn pick(&self, pick: usize) -> BlockHandle {
        self.seen.get(pick).copied().unwrap_or(BlockHandle::from_raw(1 << 40))
    }
}

fn allocate(pool: &mut BlockPool, model: &mut Model, n: u32) -> Result<(), TestCaseError> {
    let announced: Vec<_> = pool.upcoming().take(n as usize).map(Some).collect();
    let free = pool.total_count() - model.used.len() as u32;
    match pool.allocate_many(n) {
        Ok(blocks) => {
            prop_assert!(n <= free);
            for (block, announced) in blocks.iter().zip(announced) {
                let expected = model.free.pop_front().unwrap_or(model.fresh);
                model.fresh += u32::from(expected == model.fresh);
                prop_assert_eq!(block.index(), expected);
                prop_assert_eq!(announced, Some(expected));
                prop_assert!(!model.seen.contains(block), "a handle came twice");
                model.used.insert(*block, 1);
                model.seen.push(*block);
            }
        }
        Err(refusal) => {
            prop_assert_eq!(refusal, Error::OutOfBlocks { needed: n.into(), free: free.into(), holders: None });
            prop_assert!(n > free);
        }
    }
    Ok(())
}

fn free(pool: &mut BlockPool, model: &mut Model, picks: &[usize]) -> Result<(), TestCaseError> {
    let batch: Vec<_> = picks.iter().map(|&pick| model.pick(pick)).collect();
    let mut left = model.used.clone();
    let usable = batch.iter().all(|block| left.get_mut(block).is_some_and(take_one));
    let freed = pool.free_many(&batch);
    prop_assert_eq!(freed.is_ok(), usable, "{:?}", freed);
    if usable {
        for block in batch {
            if left.get(&block) == Some(&0) {
                left.remove(&block);
                model.free.push_back(block.index());
            }
        }
        model.used = left;
    }
    Ok(())
}

fn take_one(held: &mut u32) -> bool {
    let some = *held > 0;
    *held -= u32::from(some);
    some
}

fn retain(pool: &mut BlockPool, model: &mut Model, pick: usize) -> Result<(), TestCaseError> {
    let block = model.pick(pick);
    let retained = pool.retain(block);
    prop_assert_eq!(retained.is_ok(), model.used.contains_key(&block));
    if let Some(held) = model.used.get_mut(&block) {
        *held += 1;
    }
    Ok(())
}

fn pool_follows_the_model((capacity, calls): (u32, Vec<Call>)) -> Result<(), TestCaseError> {
    let (mut pool, mut model) = (pool(capacity), Model::default());
    for call in calls {
        match call {
            Call::Allocate(n) => allocate(&mut pool, &mut model, n)?,
            Call::Free(picks) => free(&mut pool, &mut model, &picks)?,
            Call::Retain(pick) => retain(&mut pool, &mut model, pick)?,
        }
        pool.check_invariants().map_err(TestCaseError::fail)?;
        prop_assert_eq!(pool.free_count(), capacity - model.used.len() as u32);
        for block in &model.seen {
            prop_assert_eq!(pool.count(*block).ok(), model.used.get(block).copied());
        }
    }
    Ok(())
}

#[test]
fn random_calls_against_sets() {
    let allocate = (0..4u32).prop_map(Call::Allocate);
    let free = prop::collection::vec(0..12usize, 0..4).prop_map(Call::Free);
    let retain = (0..12usize).prop_map(Call::Retain);
    let call = prop_oneof![allocate, free, retain];
    let calls = (0..8u32, prop::collection::vec(call, 0..30));
    support::run("pool", 20_000, calls, pool_follows_the_model);
}
