//! The rule of [`PagedPlanner::retain`], sentence by sentence: the order in which cached blocks are evicted.

use kvtide_core::paged::{EvictionPolicy, Identity, PagedPlanner, RankTable, ReleasedBlock, Window, find_in_groups};

use crate::calls::append;

const PROMPT: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn sequence(planner: &mut PagedPlanner, tokens: &[u32]) -> u64 {
    let sequence = planner.create_sequence().unwrap();
    append(planner, sequence, tokens);
    sequence
}

fn found(planner: &mut PagedPlanner, tokens: &[u32]) -> u32 {
    planner.explain(tokens, &Identity::default()).unwrap().matched
}

/// The cached rests of prompts while one block after another is evicted, until none is left: no cached block follows
/// one that is missing.
fn left(planner: &mut PagedPlanner, prompts: &[&[u32]]) -> Vec<Vec<u32>> {
    planner.check_invariants(&[]).unwrap();
    let taker = planner.create_sequence().unwrap();
    let (free, size) = (planner.pool_stats().free, planner.block_size());
    let mut left = Vec::new();
    for taken in 0..=planner.pool_stats().cached {
        planner.ensure_capacity(&[(taker, (free + taken) * size)]).unwrap();
        let of_each: Vec<u32> = prompts.iter().map(|prompt| found(planner, prompt)).collect();
        assert_eq!(of_each.iter().sum::<u32>() / size, planner.pool_stats().cached, "{of_each:?}");
        left.push(of_each);
    }
    left
}

/// All blocks of one token of a prompt, and one less each time.
fn one_by_one(blocks: u32) -> Vec<[u32; 1]> {
    (0..=blocks).rev().map(|found| [found]).collect()
}

/// The prompt, with a token behind it that is computed in any case.
fn asked(tokens: &[u32]) -> Vec<u32> {
    [tokens, &[0]].concat()
}

#[test]
fn what_a_truncation_cuts_off_hands_its_rank_on_to_what_stays() {
    let mut planner = PagedPlanner::new(8, 1, 1).unwrap();
    let cut = sequence(&mut planner, &PROMPT[..2]);
    planner.retain(cut, 1..2, 90, None).unwrap();
    planner.truncate(cut, 1).unwrap();
    planner.drop_sequence(cut).unwrap();
    assert_eq!(left(&mut planner, &[&asked(&PROMPT[..2])]), [[2], [1], [0]]);
}

/// Deep blocks stay longer.
#[derive(Debug)]
struct TailsLonger;

impl EvictionPolicy for TailsLonger {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        released.depth.map_or(0, |depth| depth as u8)
    }
}

#[test]
fn a_policy_alone_cannot_turn_a_truncated_sequence_round() {
    for table in [false, true] {
        let policy: Box<dyn EvictionPolicy> =
            if table { Box::new(RankTable::of(&TailsLonger)) } else { Box::new(TailsLonger) };
        let mut planner = PagedPlanner::new(12, 2, 1).unwrap().evicting(policy);
        let cut = sequence(&mut planner, &PROMPT);
        planner.truncate(cut, 3).unwrap();
        planner.drop_sequence(cut).unwrap();
        assert_eq!(left(&mut planner, &[&asked(&PROMPT)]), [[8], [6], [4], [2], [0]]);
    }
}

#[test]
fn what_a_restore_lets_go_of_hands_its_rank_on() {
    let mut planner = PagedPlanner::new(100, 1, 1).unwrap();
    let prompt: Vec<u32> = (1..=66).collect();
    let restored = sequence(&mut planner, &prompt[..64]);
    let snapshot = planner.snapshot(restored).unwrap();
    append(&mut planner, restored, &prompt[64..]);
    planner.retain(restored, 65..66, 90, None).unwrap();
    planner.restore(restored, &snapshot).unwrap();
    planner.drop_sequence(restored).unwrap();
    planner.release(snapshot);
    assert_eq!(left(&mut planner, &[&asked(&prompt)]), one_by_one(66));
}

/// A fork of more than 64 blocks shares whole chunks, which stay unchanged when it ends.
#[test]
fn a_fork_that_ends_hands_its_rank_on_to_the_blocks_that_it_shares() {
    let mut planner = PagedPlanner::new(200, 1, 1).unwrap();
    let prompt: Vec<u32> = (1..=129).collect();
    let first = sequence(&mut planner, &prompt[..128]);
    let fork = planner.fork(first).unwrap();
    append(&mut planner, fork, &prompt[128..]);
    planner.retain(fork, 128..129, 90, None).unwrap();
    planner.drop_sequence(fork).unwrap();
    planner.drop_sequence(first).unwrap();
    assert_eq!(left(&mut planner, &[&asked(&prompt)]), one_by_one(129));
}

#[test]
fn a_block_that_its_writer_got_a_copy_of_hands_its_rank_on() {
    let mut planner = PagedPlanner::new(12, 2, 1).unwrap();
    let writer = sequence(&mut planner, &PROMPT[..6]);
    planner.retain(writer, 4..6, 90, None).unwrap();
    planner.truncate(writer, 5).unwrap();
    append(&mut planner, writer, &[99]);
    planner.truncate(writer, 4).unwrap();
    planner.drop_sequence(writer).unwrap();
    let other: Vec<u32> = [1, 2, 3, 4, 5, 99, 0].into();
    let mut order = Vec::new();
    let taker = planner.create_sequence().unwrap();
    for taken in 0..5 {
        planner.ensure_capacity(&[(taker, 2 * (12 - 4 + taken))]).unwrap();
        order.push([found(&mut planner, &asked(&PROMPT[..6])), found(&mut planner, &other)]);
    }
    assert_eq!(order, [[6, 6], [6, 4], [4, 4], [2, 2], [0, 0]]);
}

#[test]
fn what_left_a_window_hands_its_rank_on_to_the_sinks() {
    let mut planner = PagedPlanner::new(8, 1, 1).unwrap().sliding(Window::new(2, 1).unwrap());
    let slid = sequence(&mut planner, &PROMPT[..3]);
    planner.retain(slid, 1..3, 90, None).unwrap();
    append(&mut planner, slid, &PROMPT[3..5]);
    planner.truncate(slid, 4).unwrap();
    planner.drop_sequence(slid).unwrap();
    // Without the first block nothing is found, so of all five it goes behind what was kept longer.
    let taker = planner.create_sequence().unwrap();
    planner.ensure_capacity(&[(taker, 3 + 3)]).unwrap();
    let held = find_in_groups(&mut [&mut planner], &asked(&PROMPT[..3]), &Identity::default(), false).unwrap();
    assert_eq!(held[0].length(), 2);
    held.into_iter().for_each(|held| planner.release(held));
}

/// Sequences of one block each, dropped one after another with their priorities.
fn dropped(planner: &mut PagedPlanner, priorities: &[(u8, Option<u64>)]) -> Vec<Vec<u32>> {
    let prompts: Vec<Vec<u32>> = (0..priorities.len() as u32).map(|at| vec![100 + at]).collect();
    for (prompt, &(priority, until)) in prompts.iter().zip(priorities) {
        let of = sequence(planner, prompt);
        planner.retain(of, 0..1, priority, until).unwrap();
        planner.drop_sequence(of).unwrap();
    }
    prompts
}

/// The numbers of these prompts of one block, in the order in which they go.
fn order(planner: &mut PagedPlanner, prompts: &[Vec<u32>]) -> Vec<usize> {
    let prompts: Vec<Vec<u32>> = prompts.iter().map(|prompt| asked(prompt)).collect();
    let left = left(planner, &prompts.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let gone = |pair: &[Vec<u32>]| pair[0].iter().zip(&pair[1]).position(|(before, after)| before > after).unwrap();
    left.windows(2).map(gone).collect()
}

#[test]
fn the_lowest_rank_goes_first_and_of_equal_ones_what_was_let_go_of_first() {
    let mut planner = PagedPlanner::new(8, 1, 1).unwrap();
    let prompts = dropped(&mut planner, &[(50, None), (90, None), (10, None), (50, None), (90, None)]);
    assert_eq!(order(&mut planner, &prompts), [2, 0, 3, 1, 4]);
}

#[test]
fn a_limit_that_is_over_leaves_a_block_where_it_was_let_go_of() {
    let limits = [(90, Some(5)), (50, None), (10, Some(3)), (50, None), (70, Some(9))];
    for (now, expected) in [(0, [2, 1, 3, 4, 0]), (4, [1, 2, 3, 4, 0]), (8, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])] {
        let mut planner = PagedPlanner::new(8, 1, 1).unwrap();
        let prompts = dropped(&mut planner, &limits);
        planner.advance_clock(now);
        assert_eq!(order(&mut planner, &prompts), expected, "at {now}");
    }
    // The limit passed before the release, so it has no effect.
    let mut planner = PagedPlanner::new(8, 1, 1).unwrap();
    planner.advance_clock(5);
    let prompts = dropped(&mut planner, &[(50, None), (0, Some(5)), (100, Some(2))]);
    assert_eq!(order(&mut planner, &prompts), [0, 1, 2]);
}

#[test]
fn ranks_with_limits_are_joined() {
    // A head and its tail, against a block of rank 70 that was released before them.
    let go_first = |head: (u8, Option<u64>), tail: (u8, Option<u64>), now: u64| {
        let mut planner = PagedPlanner::new(8, 1, 1).unwrap();
        let other = dropped(&mut planner, &[(70, None)]);
        let pair = sequence(&mut planner, &PROMPT[..2]);
        for (at, (priority, until)) in (0..).zip([head, tail]) {
            planner.retain(pair, at..at + 1, priority, until).unwrap();
        }
        planner.drop_sequence(pair).unwrap();
        planner.advance_clock(now);
        let left = left(&mut planner, &[&asked(&PROMPT[..2]), &asked(&other[0])]);
        // How many of the two go before the other one does.
        2 - left.iter().rev().find(|left| left[1] > 0).unwrap()[0]
    };
    // A fall, at the later of two limits.
    for (now, expected) in [(0, 0), (5, 1), (8, 1), (9, 2)] {
        assert_eq!(go_first((80, Some(9)), (90, Some(5)), now), expected, "at {now}");
        assert_eq!(go_first((90, Some(5)), (80, Some(9)), now), if now == 9 { 2 } else { 0 }, "at {now}");
    }
    // A limited rank and one that stays: the highest of each time.
    assert_eq!([0, 5].map(|now| go_first((90, Some(5)), (60, None), now)), [1, 2]);
    assert_eq!([0, 5].map(|now| go_first((10, Some(5)), (80, None), now)), [0, 0]);
    // A rise, at the earlier: against 70 both go first at any time, so the order among the two says it.
    let mut planner = PagedPlanner::new(8, 1, 1).unwrap();
    let low = dropped(&mut planner, &[(20, None)]);
    let pair = sequence(&mut planner, &PROMPT[..2]);
    planner.retain(pair, 0..1, 10, Some(5)).unwrap();
    planner.retain(pair, 1..2, 15, Some(9)).unwrap();
    planner.drop_sequence(pair).unwrap();
    planner.advance_clock(5);
    let left = left(&mut planner, &[&asked(&PROMPT[..2]), &asked(&low[0])]);
    assert_eq!(left, [[2, 1], [1, 1], [1, 0], [0, 0]], "the tail, then the other one, then the head that has risen");
}

#[test]
fn a_new_priority_takes_away_what_was_handed_on_to_that_block_alone() {
    let mut planner = PagedPlanner::new(8, 1, 1).unwrap();
    let cut = sequence(&mut planner, &PROMPT[..3]);
    planner.retain(cut, 2..3, 90, None).unwrap();
    planner.truncate(cut, 2).unwrap();
    planner.retain(cut, 1..2, 20, None).unwrap();
    let other = dropped(&mut planner, &[(70, None)]);
    planner.drop_sequence(cut).unwrap();
    // The second block goes first of all. The others are not found behind it, and wait for their time: the first one keeps its 90.
    let taker = planner.create_sequence().unwrap();
    let (mut of_cut, mut of_other) = (Vec::new(), Vec::new());
    for taken in 0..5 {
        planner.ensure_capacity(&[(taker, 4 + taken)]).unwrap();
        of_cut.push(found(&mut planner, &asked(&PROMPT[..3])));
        of_other.push(found(&mut planner, &asked(&other[0])));
    }
    assert_eq!((of_cut, of_other), (vec![3, 1, 1, 1, 0], vec![1, 1, 0, 0, 0]));
}

#[test]
fn a_copy_begins_with_no_priority() {
    let mut planner = PagedPlanner::new(8, 2, 1).unwrap();
    let first = sequence(&mut planner, &PROMPT[..1]);
    planner.retain(first, 0..1, 90, None).unwrap();
    let fork = planner.fork(first).unwrap();
    append(&mut planner, fork, &PROMPT[2..3]);
    append(&mut planner, first, &PROMPT[1..2]);
    planner.drop_sequence(first).unwrap();
    planner.drop_sequence(fork).unwrap();
    let prompts = [vec![PROMPT[0], PROMPT[1]], vec![PROMPT[0], PROMPT[2]]];
    assert_eq!(order(&mut planner, &prompts), [1, 0]);
}

#[test]
fn no_tokens_are_no_block() {
    let mut planner = PagedPlanner::new(4, 4, 1).unwrap();
    let [first, second] = [0, 4].map(|from| sequence(&mut planner, &PROMPT[from..from + 4]));
    for at in 0..=4 {
        planner.retain(first, at..at, 0, None).unwrap();
        planner.retain(second, 3..at.min(2), 100, None).unwrap();
    }
    assert!(planner.retain(first, 2..2, 101, None).is_err(), "what is wrong is refused still");
    planner.drop_sequence(second).unwrap();
    planner.drop_sequence(first).unwrap();
    let prompts = [&asked(&PROMPT[..4])[..], &asked(&PROMPT[4..])];
    assert_eq!(left(&mut planner, &prompts), [[4, 4], [4, 0], [0, 0]], "both have the priority of all others");
}
