//! Traces that failed once, or would fail if a line were missing, in the form that a failing run prints.

use super::calls::Call::*;
use super::calls::Shape;
use super::policies::Policy::Default;
use super::replay;

/// A row of a step's tables whose block was replaced between two steps: cut off, taken by another, and another one in its place.
#[test]
fn a_row_of_tables_after_a_cut() {
    replay((
        Shape { capacity: 6, block_size: 2, layers: 1, low_bit: false, window: None, policy: Default },
        vec![
            Create(0),
            Create(0),
            OpenStep(vec![(0, vec![1, 1, 0, 0])], true),
            WriteLayer(0),
            EndStep(true),
            Append(vec![(1, vec![0])], false),
            Truncate(0, 2),
            Ensure(1, 8),
            OpenStep(vec![(0, vec![1])], true),
            WriteLayer(0),
            EndStep(true),
        ],
    ));
}

const SMALL: Shape = Shape { capacity: 12, block_size: 2, layers: 1, low_bit: false, window: None, policy: Default };

/// Rows that move bring the ids of their tokens along.
#[test]
fn an_accepted_path_is_found_by_its_own_tokens() {
    let chosen = vec![false, true, true];
    let tree = DraftAppend(0, vec![0, 1, 1], Some(vec![0, 1, 0]));
    for tokens in [vec![0, 1, 0], vec![1, 1, 0]] {
        let find = Find(tokens, 0, false, true);
        replay((SMALL, vec![Create(0), Begin(0), tree.clone(), CommitPath(0, chosen.clone()), find]));
    }
}

/// Siblings that are kept side by side are no prompt.
#[test]
fn what_is_left_of_a_tree_is_not_found() {
    let tree = DraftAppend(0, vec![0, 1], Some(vec![0, 1]));
    let find = Find(vec![0, 1, 0], 0, false, true);
    replay((SMALL, vec![Create(0), Begin(0), tree.clone(), Commit(0, 2), find.clone()]));
    let fork = vec![Create(0), Begin(0), tree, Fork(0), Append(vec![(1, vec![0])], true), find];
    replay((SMALL, fork));
}

/// Tokens that were cut off a block while a fork held it too must not become visible again once the fork is gone.
#[test]
fn a_tail_that_was_cut_off_while_it_was_shared() {
    let shape = Shape { block_size: 4, ..SMALL };
    let calls =
        vec![Create(0), Append(vec![(0, vec![1, 1, 1])], false), Fork(0), Truncate(0, 1), Drop(1), Write(0, 0, 3, 1)];
    replay((shape, calls));
}

/// Tokens behind a kept path are found by their ids.
#[test]
fn what_follows_a_kept_path_is_found() {
    for salt in [0, 1] {
        let find = Find(vec![1, 1, 0], salt, false, true);
        let draft = DraftAppend(0, vec![1], None);
        let append = Append(vec![(0, vec![1])], true);
        replay((SMALL, vec![Create(salt), Begin(0), draft, CommitPath(0, vec![true]), append, find]));
    }
}
