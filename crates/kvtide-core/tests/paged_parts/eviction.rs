//! The order of eviction: misuse, and single cases.

use kvtide_core::paged::parts::{Blocks, RankChain, Release};
use kvtide_core::paged::{EvictionPolicy, PRIORITY_DEFAULT, RankTable, ReleasedBlock};
use kvtide_core::{Code, Error};

use super::policies::Scattered;

fn taken(capacity: u32) -> Blocks {
    let mut blocks = Blocks::new(capacity).unwrap();
    blocks.reserve(capacity).unwrap();
    (0..capacity).for_each(|block| assert_eq!(blocks.take().unwrap().block, block));
    blocks
}

fn release(blocks: &mut Blocks, tail_first: &[u32]) {
    let mut chain = RankChain::default();
    for (depth, &block) in (0..tail_first.len() as u32).rev().zip(tail_first) {
        blocks.release(block, Release { cached: true, depth }, &mut chain);
    }
}

fn order(blocks: &Blocks) -> Vec<u32> {
    blocks.upcoming().map(|taken| taken.block).collect()
}

#[test]
fn a_priority_that_is_none_is_refused() {
    let mut blocks = taken(1);
    assert_eq!(blocks.set_priority(0, 101, None), Err(Error::argument("priority", 101u32, "0 to 100")));
    let refused = blocks.set_priority(1, 10, None).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidBlock);
    assert_eq!(blocks.priority(0), PRIORITY_DEFAULT);
}

#[test]
fn a_head_that_others_hold_keeps_the_rank_of_its_tail() {
    let mut blocks = taken(3);
    blocks.retain(0);
    blocks.set_priority(1, 90, None).unwrap();
    release(&mut blocks, &[1, 0]);
    release(&mut blocks, &[2, 0]);
    assert_eq!(order(&blocks), [2, 1, 0]);
}

#[test]
fn a_tail_of_high_priority_goes_before_its_head_and_both_where_they_were_released_once_it_is_over() {
    let mut blocks = taken(4);
    blocks.set_priority(3, 90, Some(10)).unwrap();
    release(&mut blocks, &[3, 2]);
    release(&mut blocks, &[1, 0]);
    assert_eq!(order(&blocks), [1, 0, 3, 2]);
    blocks.advance(10);
    assert_eq!(order(&blocks), [3, 2, 1, 0]);
    blocks.set_priority(1, 51, None).unwrap();
    assert_eq!(order(&blocks), [3, 2, 0, 1]);
}

#[test]
fn a_low_priority_ends_as_well_and_its_block_goes_where_it_was_released() {
    let mut blocks = taken(3);
    blocks.set_priority(2, 10, Some(5)).unwrap();
    release(&mut blocks, &[0]);
    release(&mut blocks, &[2]);
    release(&mut blocks, &[1]);
    assert_eq!(order(&blocks), [2, 0, 1]);
    blocks.advance(4);
    assert_eq!(order(&blocks), [2, 0, 1]);
    blocks.advance(5);
    assert_eq!(order(&blocks), [0, 2, 1]);
}

#[test]
fn limits_that_end_in_any_order_leave_the_order_of_release() {
    let mut blocks = taken(6);
    for (block, priority, until) in [(0, 90, 9), (1, 10, 4), (2, 50, 7), (3, 60, 2), (4, 0, 9), (5, 50, 1)] {
        blocks.set_priority(block, priority, Some(until)).unwrap();
        release(&mut blocks, &[block]);
    }
    assert_eq!(order(&blocks), [4, 1, 2, 5, 3, 0]);
    blocks.advance(2);
    assert_eq!(order(&blocks), [4, 1, 2, 3, 5, 0]);
    // One that was used in the meantime was released later.
    blocks.retain(1);
    release(&mut blocks, &[1]);
    blocks.advance(9);
    assert_eq!(order(&blocks), [0, 2, 3, 4, 5, 1]);
    blocks.check_invariants().unwrap();
}

/// Deep blocks first, with ranks over the highest.
#[derive(Debug)]
struct ShallowLonger;

impl EvictionPolicy for ShallowLonger {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        255 - released.depth.map_or(255, |depth| depth as u8 * 200)
    }
}

#[test]
fn a_policy_can_be_replaced_but_not_turn_a_chain_round() {
    let mut blocks = taken(4).with_policy(Box::new(ShallowLonger));
    release(&mut blocks, &[1, 0]);
    release(&mut blocks, &[3, 2]);
    assert_eq!(order(&blocks), [1, 3, 0, 2]);
    blocks.set_priority(2, 50, None).unwrap();
    assert_eq!(order(&blocks), [2, 1, 3, 0]);
    blocks.check_invariants().unwrap();
}

#[test]
fn the_largest_pool_costs_nothing_until_it_is_used() {
    let mut blocks = Blocks::new(i32::MAX as u32).unwrap();
    assert!(blocks.bytes() < 2000);
    blocks.reserve(1000).unwrap();
    assert!((0..1000).all(|block| blocks.take().unwrap().block == block));
    assert!(blocks.bytes() < 70_000, "{}", blocks.bytes());
}

#[test]
fn a_table_answers_as_the_policy_that_it_was_made_of() {
    for seed in 0..20 {
        let policy = Scattered(seed);
        let table = RankTable::of(&policy);
        let mut ranks = Vec::new();
        for priority in 0..=100 {
            let asked = |depth| policy.rank(&ReleasedBlock { priority, depth: Some(depth) }).min(127);
            ranks.extend((0..256).map(asked));
            for (depth, as_if) in
                [(None, 0), (Some(0), 0), (Some(1), 1), (Some(255), 255), (Some(256), 255), (Some(u32::MAX), 255)]
            {
                assert_eq!(table.rank(&ReleasedBlock { priority, depth }), asked(as_if), "{priority}, {depth:?}");
            }
        }
        assert_eq!(RankTable::new(&ranks).unwrap(), table);
    }
}

#[test]
fn a_table_that_is_none_is_refused() {
    let mut ranks = vec![127; RankTable::RANKS];
    assert_eq!(format!("{:?}", RankTable::new(&ranks).unwrap()), "RankTable of 25856");
    for length in [0, RankTable::RANKS - 1, RankTable::RANKS + 1] {
        let expected = "25856, one for each priority and depth";
        let refused = Error::argument("ranks.length", length as u64, expected);
        assert_eq!(RankTable::new(&vec![0; length]), Err(refused));
    }
    ranks[RankTable::RANKS - 1] = 128;
    assert_eq!(RankTable::new(&ranks), Err(Error::argument("ranks", 128u32, "0 to 127 each")));
}

#[test]
fn a_head_keeps_the_highest_rank_of_two_tails_for_good() {
    let mut blocks = taken(4);
    (0..2).for_each(|_| blocks.retain(0));
    blocks.set_priority(1, 90, Some(9)).unwrap();
    release(&mut blocks, &[1, 0]);
    blocks.set_priority(2, 95, None).unwrap();
    release(&mut blocks, &[2, 0]);
    blocks.set_priority(3, 92, None).unwrap();
    release(&mut blocks, &[3]);
    release(&mut blocks, &[0]);
    assert_eq!(order(&blocks), [1, 3, 2, 0]);
    blocks.check_invariants().unwrap();
}

#[test]
fn a_rank_that_is_over_is_not_prolonged_by_another_tail() {
    let mut blocks = taken(4);
    (0..2).for_each(|_| blocks.retain(0));
    blocks.set_priority(1, 90, Some(5)).unwrap();
    release(&mut blocks, &[1, 0]);
    blocks.advance(9);
    blocks.set_priority(2, 60, Some(20)).unwrap();
    release(&mut blocks, &[2, 0]);
    blocks.set_priority(3, 70, None).unwrap();
    release(&mut blocks, &[3]);
    release(&mut blocks, &[0]);
    assert_eq!(order(&blocks), [1, 2, 0, 3]);
    blocks.check_invariants().unwrap();
}
