//! Results and errors of the paged planner.

use kvtide_core::paged::{Append, HeldContent, Identity, Keep, PagedPlanner, Slot, WritePlan, WriteTarget, Writer};
use kvtide_core::{BlockHolders, COUNT_MAX, Error};

/// 4 blocks of 2 tokens and 3 layers.
fn planner() -> PagedPlanner {
    PagedPlanner::new(4, 2, 3).unwrap()
}

/// Too few blocks, beside so many sequences that hold so many.
fn out_of_blocks(needed: u64, free: u64, [sequences, blocks]: [u64; 2]) -> Error {
    Error::OutOfBlocks { needed, free, holders: Some(BlockHolders { sequences, blocks }) }
}

fn write(planner: &mut PagedPlanner, sequence: u64, layer: u32, position: u32) -> Slot {
    let plan = planner.plan_tokens(sequence, layer, position, 1).unwrap();
    planner.commit(&plan, None).unwrap();
    planner.check_invariants(&[]).unwrap();
    first_slot(&plan)
}

fn first_slot(plan: &WritePlan) -> Slot {
    Slot { block: plan.runs()[0].block, index: plan.runs()[0].slot }
}

fn not_written(sequence: u64, layer: u32, position: u64, length: u64) -> Error {
    Error::PositionOutOfRange { sequence, layer, position, length }
}

#[test]
fn an_empty_shape_is_refused() {
    assert_eq!(PagedPlanner::new(4, 0, 3).unwrap_err(), Error::argument("blockSize", 0, "at least 1"));
    assert_eq!(PagedPlanner::new(4, 2, 0).unwrap_err(), Error::argument("numLayers", 0, "at least 1"));
    let over = PagedPlanner::new(COUNT_MAX + 1, 2, 3).unwrap_err();
    assert_eq!(over, Error::argument("capacity", COUNT_MAX + 1, "at most 2147483647"));
}

#[test]
fn an_unknown_sequence_is_refused_and_has_no_length() {
    let mut planner = planner();
    let refusal = Error::SequenceNotFound { sequence: 7 };
    assert_eq!(planner.drop_sequence(7), Err(refusal.clone()));
    assert_eq!(planner.ensure_capacity(&[(7, 1)]), Err(refusal.clone()));
    assert_eq!(planner.plan_tokens(7, 0, 0, 1), Err(refusal.clone()));
    assert_eq!(planner.locate(7, 0, 0), Err(refusal));
    assert_eq!((planner.sequence_length(7), planner.sequence_capacity(7)), (0, 0));
}

#[test]
fn a_layer_or_position_out_of_range_is_refused() {
    let mut planner = planner();
    let sequence = planner.create_sequence().unwrap();
    let refusal = Error::argument("layer", 3, "below 3");
    assert_eq!(planner.plan_tokens(sequence, 3, 0, 1), Err(refusal.clone()));
    assert_eq!(planner.locate(sequence, 3, 0), Err(refusal));
    let refusal = Error::argument("pos", COUNT_MAX, "below 2147483647");
    assert_eq!(planner.plan_tokens(sequence, 0, COUNT_MAX, 1), Err(refusal));
    assert_eq!(planner.locate(sequence, 0, u32::MAX), Err(not_written(sequence, 0, u32::MAX.into(), 0)));
    let refusal = Error::argument("tokens", COUNT_MAX + 1, "at most 2147483647");
    assert_eq!(planner.ensure_capacity(&[(sequence, COUNT_MAX + 1)]), Err(refusal));
}

#[test]
fn ids_count_up_and_are_not_used_again() {
    let mut planner = planner();
    assert_eq!([0; 3].map(|_| planner.create_sequence().unwrap()), [0, 1, 2]);
    planner.drop_sequence(2).unwrap();
    planner.drop_sequence(0).unwrap();
    assert_eq!(planner.create_sequence(), Ok(3));
    assert_eq!(planner.sequence_ids(), [1, 3]);
    assert_eq!(planner.drop_sequence(0), Err(Error::SequenceNotFound { sequence: 0 }));
}

#[test]
fn capacity_is_taken_whole_or_not_at_all() {
    let mut planner = planner();
    let [a, b] = [0; 2].map(|_| planner.create_sequence().unwrap());
    planner.ensure_capacity(&[(a, 3)]).unwrap();
    assert_eq!((planner.sequence_capacity(a), planner.sequence_length(a), planner.free_count()), (4, 0, 2));
    planner.ensure_capacity(&[(a, 4)]).unwrap();
    planner.ensure_capacity(&[(a, 0)]).unwrap();
    assert_eq!((planner.sequence_capacity(a), 2 * planner.free_count()), (4, planner.total_count()));
    assert_eq!(planner.ensure_capacity(&[(b, 5)]), Err(out_of_blocks(3, 2, [2, 2])));
    assert_eq!(planner.ensure_capacity(&[(a, 9)]), Err(out_of_blocks(3, 2, [2, 2])));
    assert_eq!((planner.sequence_capacity(a), planner.sequence_capacity(b), planner.free_count()), (4, 0, 2));
    planner.ensure_capacity(&[(b, 4)]).unwrap();
    planner.check_invariants(&[]).unwrap();
}

#[test]
fn the_layers_of_a_token_share_a_block_and_a_slot() {
    let mut planner = planner();
    let sequence = planner.create_sequence().unwrap();
    assert_eq!(write(&mut planner, sequence, 0, 0), Slot { block: 0, index: 0 });
    assert_eq!(write(&mut planner, sequence, 2, 0), Slot { block: 0, index: 0 });
    assert_eq!(write(&mut planner, sequence, 0, 3), Slot { block: 1, index: 1 });
    assert_eq!(planner.locate(sequence, 2, 0), Ok(Slot { block: 0, index: 0 }));
    assert_eq!(planner.locate(sequence, 1, 0), Err(not_written(sequence, 1, 0, 4)));
    assert_eq!(planner.locate(sequence, 0, 2), Err(not_written(sequence, 0, 2, 4)));
    assert_eq!(planner.locate(sequence, 0, 4), Err(not_written(sequence, 0, 4, 4)));
    assert_eq!((planner.sequence_length(sequence), planner.free_count()), (4, 2));
}

#[test]
fn a_write_takes_the_blocks_that_it_skips() {
    let mut planner = planner();
    let sequence = planner.create_sequence().unwrap();
    let plan = planner.plan_tokens(sequence, 1, 7, 1).unwrap();
    assert_eq!((plan.new_blocks(), first_slot(&plan)), (4, Slot { block: 3, index: 1 }));
    assert_eq!(planner.free_count(), 4, "a plan takes nothing");
    assert_eq!(planner.locate(sequence, 1, 7), Err(not_written(sequence, 1, 7, 0)));
    planner.commit(&plan, None).unwrap();
    assert_eq!((planner.sequence_length(sequence), planner.sequence_capacity(sequence)), (8, 8));
    assert_eq!(planner.plan_tokens(sequence, 1, 8, 1), Err(out_of_blocks(1, 0, [1, 4])));
    let other = planner.create_sequence().unwrap();
    assert_eq!(planner.plan_tokens(other, 0, COUNT_MAX - 1, 1), Err(out_of_blocks(1 << 30, 0, [2, 4])));
}

#[test]
fn a_slot_can_be_written_again_at_no_cost() {
    let mut planner = planner();
    let sequence = planner.create_sequence().unwrap();
    let first = write(&mut planner, sequence, 0, 1);
    let plan = planner.plan_tokens(sequence, 0, 1, 1).unwrap();
    assert_eq!((plan.new_blocks(), first_slot(&plan)), (0, first));
    planner.commit(&plan, None).unwrap();
    assert_eq!((planner.sequence_length(sequence), planner.free_count()), (2, 3));
}

#[test]
fn a_plan_that_came_out_of_date_is_refused() {
    let mut planner = planner();
    let [a, b] = [0; 2].map(|_| planner.create_sequence().unwrap());
    let plan = planner.plan_tokens(a, 0, 0, 1).unwrap();
    write(&mut planner, b, 0, 0);
    let refusal = Error::argument("plan", "one made before the last change", "a plan made after it");
    assert_eq!(planner.commit(&plan, None), Err(refusal.clone()));
    assert_eq!((planner.sequence_length(a), planner.sequence_capacity(a), planner.free_count()), (0, 0, 3));
    planner.drop_sequence(a).unwrap();
    assert_eq!(planner.commit(&plan, None), Err(refusal));
    planner.check_invariants(&[]).unwrap();
}

/// A block that one sequence held when a plan was made may have other holders when the plan is carried out.
#[test]
fn a_plan_from_before_a_block_was_shared_is_refused() {
    let refusal = Error::argument("plan", "one made before the last change", "a plan made after it");
    let shares: [fn(&mut PagedPlanner, u64) -> Option<HeldContent>; 3] = [
        |planner, sequence| Some(planner.snapshot(sequence).unwrap()),
        |planner, sequence| planner.fork(sequence).map(|_| None).unwrap(),
        |planner, _| Some(planner.find(&[0, 1, 2], &Identity::default(), false).unwrap()),
    ];
    for share in shares {
        let mut planner = planner();
        let sequence = planner.create_sequence().unwrap();
        let append = |tokens| Append {
            sequences: &[0],
            offsets: Some(if tokens == 2 { &[0, 2] } else { &[0, 1] }),
            parents: None,
            writer: Writer::Direct,
        };
        let plan = planner.plan_append(&append(2)).unwrap();
        planner.commit(&plan, Some(&[0, 1])).unwrap();
        let (written, checked) = (planner.plan_tokens(sequence, 0, 1, 1), planner.check_append(&append(1)));
        let (mut written, checked) = (written.unwrap(), checked.unwrap());
        let step = planner.plan_append(&Append { writer: Writer::Step, ..append(1) }).unwrap();
        let targets = [WriteTarget { sequence, position: 1, tokens: 1 }];
        let copies = planner.plan_copies(&targets).unwrap();

        let held = share(&mut planner, sequence);
        assert_eq!(planner.commit(&written, None), Err(refusal.clone()));
        assert_eq!(planner.reserve_after(&copies, &written), Err(refusal.clone()));
        assert_eq!(planner.commit_copies_before(&copies, &mut written), Err(refusal.clone()));
        assert_eq!(planner.open_step(&step), Err(refusal.clone()));
        assert_eq!(planner.plan_write(checked).map(drop), Err(refusal.clone()));
        assert_eq!(planner.plan_copies(&targets).unwrap().copies().len(), 1, "the block is shared now");
        planner.check_invariants(held.as_ref().as_slice()).unwrap();
        held.into_iter().for_each(|held| planner.release(held));
    }
}

#[test]
fn the_end_of_a_draft_from_before_a_block_was_shared_is_refused() {
    let refusal = Error::argument("plan", "one made before the last change", "a plan made after it");
    let mut planner = planner();
    let sequence = planner.create_sequence().unwrap();
    let id = planner.begin(sequence, None).unwrap();
    let parents = Some(&[-1, -1][..]);
    let append = Append { sequences: &[sequence], offsets: Some(&[0, 2]), parents, writer: Writer::Draft(id) };
    let plan = planner.plan_append(&append).unwrap();
    planner.commit(&plan, None).unwrap();
    let mut end = planner.plan_end(sequence, id, Keep::Path(&[1])).unwrap();
    let copies = planner.plan_copies(&[]).unwrap();
    let held = planner.snapshot(sequence).unwrap();
    assert_eq!(planner.reserve_end(&copies, &mut end), Err(refusal.clone()));
    assert_eq!(planner.end(&end), Err(refusal));
    assert_eq!(planner.sequence_length(sequence), 2);
    planner.release(held);
    planner.check_invariants(&[]).unwrap();
}

/// Nothing of the kind makes a plan stale that it is made from.
#[test]
fn a_plan_outlasts_what_it_was_not_made_from() {
    let mut planner = planner();
    let sequence = planner.create_sequence().unwrap();
    write(&mut planner, sequence, 0, 0);
    let plan = planner.plan_tokens(sequence, 0, 1, 1).unwrap();
    planner.create_sequence().unwrap();
    planner.retain(sequence, 0..1, 90, None).unwrap();
    planner.keep_events(3);
    planner.commit(&plan, None).unwrap();
    planner.check_invariants(&[]).unwrap();
}

#[test]
fn a_block_never_shows_what_another_sequence_wrote() {
    let mut planner = PagedPlanner::new(1, 2, 3).unwrap();
    let first = planner.create_sequence().unwrap();
    for layer in 0..3 {
        write(&mut planner, first, layer, 0);
        write(&mut planner, first, layer, 1);
    }
    planner.drop_sequence(first).unwrap();
    planner.check_invariants(&[]).unwrap();
    let second = planner.create_sequence().unwrap();
    planner.ensure_capacity(&[(second, 2)]).unwrap();
    write(&mut planner, second, 1, 1);
    assert_eq!(planner.locate(second, 1, 1), Ok(Slot { block: 0, index: 1 }));
    for (layer, position) in [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)] {
        assert_eq!(planner.locate(second, layer, position), Err(not_written(second, layer, position.into(), 2)));
    }
}

#[test]
fn a_cache_without_blocks_has_sequences_all_the_same() {
    let mut planner = PagedPlanner::new(0, 2, 3).unwrap();
    let sequence = planner.create_sequence().unwrap();
    planner.ensure_capacity(&[(sequence, 0)]).unwrap();
    assert_eq!(planner.ensure_capacity(&[(sequence, 1)]), Err(out_of_blocks(1, 0, [1, 0])));
    assert_eq!((planner.free_count(), planner.total_count()), (0, 0));
    planner.drop_sequence(sequence).unwrap();
}

#[test]
fn the_room_that_a_transaction_took_outlasts_its_children() {
    let mut planner = planner();
    let sequence = planner.create_sequence().unwrap();
    let parent = planner.begin(sequence, None).unwrap();
    planner.reserve_draft(sequence, 5).unwrap();
    assert_eq!(planner.begin(sequence, None), Err(Error::TransactionOpen { object: "sequence" }));
    for undone in [true, false] {
        let child = planner.begin(sequence, Some(parent)).unwrap();
        match undone {
            true => planner.undo(sequence, child).unwrap(),
            false => {
                let plan = planner.plan_end(sequence, child, Keep::All).unwrap();
                planner.end(&plan).unwrap();
            }
        }
        assert_eq!((planner.sequence_capacity(sequence), planner.free_count()), (6, 1));
        planner.check_invariants(&[]).unwrap();
    }
    planner.undo(sequence, parent).unwrap();
    assert_eq!((planner.sequence_capacity(sequence), planner.free_count()), (0, 4));
}

#[test]
fn a_refusal_says_what_holds_the_blocks() {
    let mut planner = planner();
    let held = |planner: &PagedPlanner, sequence| planner.plan_tokens(sequence, 0, 9, 1).unwrap_err().to_string();
    let [a, b] = [0; 2].map(|_| planner.create_sequence().unwrap());
    assert_eq!(held(&planner, a), "5 blocks are needed, 4 are free: the pool has no more, and none is held");
    write(&mut planner, b, 0, 5);
    let both = "2 sequences are open; sequences, snapshots, matches and loads hold 3 blocks";
    assert_eq!(held(&planner, a), format!("5 blocks are needed, 1 is free: {both}"));
    planner.drop_sequence(a).unwrap();
    let one = "1 sequence is open; sequences, snapshots, matches and loads hold 3 blocks";
    assert_eq!(held(&planner, b), format!("2 blocks are needed, 1 is free: {one}"));
    let none = BlockHolders { sequences: 0, blocks: 1 }.to_string();
    assert_eq!(none, "no sequence is open; snapshots, matches and loads hold 1 block");
}
