//! Blocks that prompts find, in cases that random traces seldom reach.

use kvtide_core::Code;
use kvtide_core::paged::{
    Append, BlockKey, Extra, Extras, Identity, Keep, MissReason, PagedPlanner, Writer, explain_in_groups,
};

use crate::calls::{append, found, write};

const PROMPT: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

fn append_by(planner: &mut PagedPlanner, sequence: u64, tokens: &[u32], writer: Writer, parents: Option<&[i32]>) {
    let offsets = [0, tokens.len() as u32];
    write(planner, &Append { sequences: &[sequence], offsets: Some(&offsets), parents, writer }, Some(tokens));
}

#[test]
fn of_two_blocks_filled_side_by_side_the_one_that_is_left_is_found() {
    let mut planner = PagedPlanner::new(6, 2, 1).unwrap();
    let [first, second] = [(); 2].map(|()| planner.create_sequence().unwrap());
    append(&mut planner, first, &PROMPT[..4]);
    append(&mut planner, second, &PROMPT[..4]);
    planner.drop_sequence(first).unwrap();
    // Two blocks are free, and two are cached; this takes them all, so that what the first had is evicted.
    let other = planner.create_sequence().unwrap();
    append(&mut planner, other, &[0; 8]);
    assert_eq!(planner.pool_stats().evictions, 2);
    assert_eq!(found(&mut planner, &PROMPT), 4);
    planner.drop_sequence(second).unwrap();
    assert_eq!(found(&mut planner, &PROMPT), 4);
    assert_eq!(planner.pool_stats().cached, 2);
}

/// A token that was appended without an id has none, even if the id at its place was known once.
#[test]
fn a_path_over_a_node_without_an_id_is_found_up_to_there() {
    let mut planner = PagedPlanner::new(8, 1, 1).unwrap();
    let sequence = planner.create_sequence().unwrap();
    let draft = planner.begin(sequence, None).unwrap();
    append_by(&mut planner, sequence, &[1, 2, 3], Writer::Draft(draft), Some(&[-1, -1, 0]));
    let offsets = [0, 1];
    let nameless =
        Append { sequences: &[sequence], offsets: Some(&offsets), parents: Some(&[0]), writer: Writer::Draft(draft) };
    let plan = planner.plan_append(&nameless).unwrap();
    planner.commit(&plan, None).unwrap();
    let end = planner.plan_end(sequence, draft, Keep::Path(&[0, 3])).unwrap();
    planner.end(&end).unwrap();
    assert_eq!(planner.sequence_length(sequence), 2);
    assert_eq!(found(&mut planner, &[1, 2, 3]), 1);
    assert_eq!(planner.identify(sequence, &[1, 9]), Ok(2));
    assert_eq!(found(&mut planner, &[1, 9, 3]), 2);
}

#[test]
fn what_is_drafted_is_said_not_to_be_committed() {
    let mut planner = PagedPlanner::new(6, 2, 1).unwrap();
    let why = |planner: &PagedPlanner| {
        let alone = planner.explain(&PROMPT, &Identity::default()).unwrap();
        assert_eq!(explain_in_groups(&[planner], &PROMPT, &Identity::default()).unwrap(), alone);
        alone.missing
    };
    let sequence = planner.create_sequence().unwrap();
    append(&mut planner, sequence, &PROMPT[..3]);
    assert_eq!(why(&planner), Some((1, MissReason::NeverSeen)));
    let draft = planner.begin(sequence, None).unwrap();
    append_by(&mut planner, sequence, &PROMPT[3..6], Writer::Draft(draft), None);
    assert_eq!(why(&planner), Some((1, MissReason::NotCommitted)));
    let end = planner.plan_end(sequence, draft, Keep::First(1)).unwrap();
    planner.end(&end).unwrap();
    assert_eq!(why(&planner), Some((2, MissReason::NeverSeen)), "what was dropped");
    // Of a tree the tokens follow each other in no order that a prompt has.
    let draft = planner.begin(sequence, None).unwrap();
    append_by(&mut planner, sequence, &PROMPT[4..6], Writer::Draft(draft), Some(&[-1, -1]));
    assert_eq!(why(&planner), Some((2, MissReason::NeverSeen)));
}

#[test]
fn a_block_that_was_written_over_was_not_evicted() {
    let mut planner = PagedPlanner::new(2, 2, 1).unwrap();
    let sequence = planner.create_sequence().unwrap();
    append(&mut planner, sequence, &PROMPT[..4]);
    planner.truncate(sequence, 3).unwrap();
    append(&mut planner, sequence, &[99]);
    let why = planner.explain(&PROMPT, &Identity::default()).unwrap();
    assert_eq!(why.missing, Some((1, MissReason::NeverSeen)));
}

#[test]
fn what_a_snapshot_holds_is_forgotten_with_everything_else() {
    for from_snapshot in [true, false] {
        let mut planner = PagedPlanner::new(20, 2, 1).unwrap();
        let old = planner.create_sequence().unwrap();
        append(&mut planner, old, &PROMPT[..4]);
        let held = match from_snapshot {
            true => planner.snapshot(old).unwrap(),
            false => planner.find(&PROMPT, &Identity::default(), false).unwrap(),
        };
        planner.forget_prefixes();
        let sequence = planner.create_from(held).unwrap();
        append(&mut planner, sequence, &PROMPT[4..8]);
        // The same prompt, written anew: what was computed before is not found behind it.
        let new = planner.create_sequence().unwrap();
        append(&mut planner, new, &PROMPT[..4]);
        assert_eq!(found(&mut planner, &PROMPT), 4);
    }
    let mut planner = PagedPlanner::new(20, 2, 1).unwrap();
    let old = planner.create_sequence().unwrap();
    append(&mut planner, old, &PROMPT[..4]);
    let snapshot = planner.snapshot(old).unwrap();
    planner.forget_prefixes();
    planner.restore(old, &snapshot).unwrap();
    planner.release(snapshot);
    append(&mut planner, old, &PROMPT[4..8]);
    let new = planner.create_sequence().unwrap();
    append(&mut planner, new, &PROMPT[..4]);
    assert_eq!(found(&mut planner, &PROMPT), 4);
}

#[test]
fn a_sequence_named_twice_gets_no_blocks() {
    let mut planner = PagedPlanner::new(6, 2, 1).unwrap();
    let sequence = planner.create_sequence().unwrap();
    let refused = planner.ensure_capacity(&[(sequence, 4), (sequence, 4)]).unwrap_err();
    assert_eq!(refused.to_string(), "sequences is 0, expected each sequence once");
    assert_eq!((planner.sequence_capacity(sequence), planner.free_count()), (0, 6));
    assert!(planner.retain(sequence, 0..0, 101, None).is_err());
}

#[test]
fn a_step_that_is_undone_leaves_a_prompt_where_there_was_a_block_to_write_beside_it() {
    // Without one, the step goes on in the block that the prompt lies in, and it is no longer found.
    for (blocks, left) in [(3, 4), (2, 2)] {
        let mut planner = PagedPlanner::new(blocks, 2, 1).unwrap();
        let sequence = planner.create_sequence().unwrap();
        append(&mut planner, sequence, &PROMPT[..4]);
        planner.truncate(sequence, 3).unwrap();
        assert_eq!(found(&mut planner, &PROMPT), 4);
        let step = Append { sequences: &[sequence], offsets: None, parents: None, writer: Writer::Step };
        let (copies, mut plan) = planner.plan_write(planner.check_append(&step).unwrap()).unwrap();
        planner.commit_copies_before(&copies, &mut plan).unwrap();
        planner.open_step(&plan).unwrap();
        planner.undo_step(&plan).unwrap();
        assert_eq!((found(&mut planner, &PROMPT), planner.sequence_length(sequence)), (left, 3));
        append(&mut planner, sequence, &PROMPT[3..4]);
        assert_eq!(found(&mut planner, &PROMPT), 4);
    }
}

#[test]
fn what_is_only_drafted_is_found_by_nobody_whoever_goes_on_from_it() {
    for from_snapshot in [true, false] {
        let mut planner = PagedPlanner::new(20, 2, 1).unwrap();
        let sequence = planner.create_sequence().unwrap();
        append(&mut planner, sequence, &PROMPT[..2]);
        let draft = planner.begin(sequence, None).unwrap();
        let drafted =
            Append { sequences: &[sequence], offsets: Some(&[0, 2]), parents: None, writer: Writer::Draft(draft) };
        let plan = planner.plan_append(&drafted).unwrap();
        planner.commit(&plan, Some(&PROMPT[2..4])).unwrap();
        let other = match from_snapshot {
            true => {
                let snapshot = planner.snapshot(sequence).unwrap();
                planner.create_from(snapshot).unwrap()
            }
            false => planner.fork(sequence).unwrap(),
        };
        append(&mut planner, other, &PROMPT[4..8]);
        assert_eq!((planner.sequence_length(other), found(&mut planner, &PROMPT)), (8, 2));
        planner.drop_sequence(other).unwrap();
        planner.undo(sequence, draft).unwrap();
        assert_eq!(found(&mut planner, &PROMPT), 2);
    }
}

#[test]
fn an_empty_sequence_is_renamed_and_found_under_its_new_names_only() {
    let root = |salt: u8| BlockKey::root(&[7; 32], b"model", &[salt]);
    let identity = |salt: u8| Identity { root: root(salt), extra: Default::default() };
    let mut planner = PagedPlanner::new(20, 2, 1).unwrap();
    let sequence = planner.create_sequence_of(identity(1)).unwrap();
    append(&mut planner, sequence, &PROMPT[..4]);
    assert_eq!(planner.rename(sequence, identity(2)).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(planner.sequence_length(sequence), 4);
    let snapshot = planner.snapshot(sequence).unwrap();
    planner.truncate(sequence, 0).unwrap();
    let draft = planner.begin(sequence, None).unwrap();
    assert_eq!(planner.rename(sequence, identity(2)).unwrap_err().code(), Code::TransactionOpen);
    planner.undo(sequence, draft).unwrap();
    planner.rename(sequence, identity(2)).unwrap();
    assert_eq!(planner.restore(sequence, &snapshot).unwrap_err().code(), Code::SnapshotInvalid);
    append(&mut planner, sequence, &PROMPT[..4]);
    planner.release(snapshot);
    planner.drop_sequence(sequence).unwrap();
    assert_eq!(planner.check_invariants(&[]), Ok(()));
}

#[test]
fn a_sequence_is_not_given_what_another_tenant_computed() {
    let root = |salt: u8| BlockKey::root(&[7; 32], b"model", &[salt]);
    let extra = Extras::new(vec![Extra { start: 0, end: 2, key: vec![1] }]).unwrap();
    let other_salt = Identity { root: root(2), extra: Default::default() };
    let other_extra = Identity { root: root(1), extra: extra.into() };
    let own = Identity { root: root(1), extra: Default::default() };
    let mut planner = PagedPlanner::new(20, 2, 1).unwrap();
    let source = planner.create_sequence_of(own.clone()).unwrap();
    append(&mut planner, source, &PROMPT[..4]);
    let snapshot = planner.snapshot(source).unwrap();
    for identity in [other_salt, other_extra] {
        let target = planner.create_sequence_of(identity).unwrap();
        append(&mut planner, target, &PROMPT[..1]);
        assert_eq!(planner.restore(target, &snapshot).unwrap_err().code(), Code::SnapshotInvalid);
        assert_eq!(planner.sequence_length(target), 1);
        planner.begin(target, None).unwrap();
        assert_eq!(planner.restore(target, &snapshot).unwrap_err().code(), Code::TransactionOpen);
    }
    let target = planner.create_sequence_of(own).unwrap();
    planner.restore(target, &snapshot).unwrap();
    assert_eq!(planner.sequence_length(target), 4);
    planner.release(snapshot);
}
