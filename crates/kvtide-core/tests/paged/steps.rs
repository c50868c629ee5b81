//! Steps, and the ways in which they end.

use kvtide_core::Code;
use kvtide_core::paged::{Append, PagedPlanner, WritePlan, Writer};

fn plan(planner: &PagedPlanner, sequences: &[u64], tokens: u32, writer: Writer) -> WritePlan {
    let offsets: Vec<u32> = (0..=sequences.len() as u32).map(|at| at * tokens).collect();
    planner.plan_append(&Append { sequences, offsets: Some(&offsets), parents: None, writer }).unwrap()
}

/// Two sequences of unequal length in a planner of two layers.
fn planner(block_size: u32, lengths: [u32; 2]) -> PagedPlanner {
    let mut planner = PagedPlanner::new(64, block_size, 2).unwrap();
    for length in lengths {
        let sequence = planner.create_sequence().unwrap();
        let plan = plan(&planner, &[sequence], length, Writer::Direct);
        planner.commit(&plan, None).unwrap();
    }
    planner
}

fn pages(planner: &PagedPlanner, sequence: u64) -> Vec<u32> {
    planner.pages(sequence, 1).unwrap().map(|page| page.tokens).collect()
}

/// A failed write leaves bytes in unmarked slots. However the step ends, they are zeroed before the page is read.
#[test]
fn slots_of_a_step_may_hold_anything_once_it_is_undone() {
    for end in ["undone", "with its transaction", "with its sequence, of which there is a fork"] {
        let mut planner = PagedPlanner::new(4, 4, 2).unwrap();
        let sequence = planner.create_sequence().unwrap();
        let token = planner.plan_tokens(sequence, 1, 0, 1).unwrap();
        planner.commit(&token, None).unwrap();
        let block = planner.pages(sequence, 0).unwrap().next().unwrap().block;
        assert!(!planner.exposes(block, 0, 4), "the page was never written, and it is zeros");
        let draft = planner.begin(sequence, None).unwrap();
        let step = plan(&planner, &[sequence], 2, Writer::Step);
        planner.open_step(&step).unwrap();
        match end {
            "undone" => planner.undo_step(&step).unwrap(),
            "with its transaction" => planner.undo(sequence, draft).unwrap(),
            _ => {
                planner.fork(sequence).unwrap();
                planner.drop_sequence(sequence).unwrap();
            }
        }
        assert!(planner.exposes(block, 0, 2), "{end}");
        planner.check_invariants(&[]).unwrap();
    }
}

#[test]
fn a_fork_keeps_what_was_there_before_a_step_in_whatever_way_that_ends() {
    for (block_size, horizon) in (1..6).flat_map(|size| (0..9).map(move |horizon| (size, horizon))) {
        for end in 0..3 {
            let mut planner = planner(block_size, [3, 4]);
            let step = plan(&planner, &[1, 0], horizon, Writer::Step);
            planner.open_step(&step).unwrap();
            let fork = planner.fork(0).unwrap();
            let held = planner.snapshot(1).unwrap();
            assert_eq!((planner.sequence_length(fork), held.length()), (3, 4));
            assert_eq!(planner.sequence_capacity(fork), u64::from(3u32.next_multiple_of(block_size)));
            assert_eq!(pages(&planner, fork).iter().sum::<u32>(), 3);
            match end {
                0 => {
                    (0..2).for_each(|layer| planner.mark_layer(&step, layer).unwrap());
                    planner.close_step(&step, None).unwrap();
                }
                1 => planner.undo_step(&step).unwrap(),
                _ => {
                    planner.drop_sequence(0).unwrap();
                    assert_eq!(planner.check_step(&step).unwrap_err().code(), Code::StaleStep);
                    planner.undo_step(&step).unwrap();
                }
            }
            planner.check_invariants(&[&held]).unwrap();
            assert_eq!((planner.sequence_length(fork), held.length()), (3, 4));
            planner.restore(fork, &held).unwrap();
            assert_eq!(pages(&planner, fork).iter().sum::<u32>(), 4);
            planner.release(held);
            planner.sequence_ids().into_iter().for_each(|id| planner.drop_sequence(id).unwrap());
            planner.check_invariants(&[]).unwrap();
            assert_eq!(planner.free_count(), 64);
        }
    }
}

#[test]
fn pages_that_a_step_fills_are_quantised_also_where_others_hold_the_table_before_them() {
    for (length, tokens) in [(4, 4), (4, 9), (3, 1), (3, 9), (0, 8), (256, 4), (255, 6)] {
        let mut planner = PagedPlanner::new(128, 4, 2).unwrap().staging_pages();
        let sequence = planner.create_sequence().unwrap();
        let before = plan(&planner, &[sequence], length, Writer::Direct);
        planner.commit(&before, None).unwrap();
        let held = planner.snapshot(sequence).unwrap();
        let offsets = [0, tokens];
        let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Step };
        let write = planner.check_append(&append).unwrap();
        let (copies, mut step) = planner.plan_write(write).unwrap();
        planner.commit_copies_before(&copies, &mut step).unwrap();
        planner.open_step(&step).unwrap();
        (0..2).for_each(|layer| planner.mark_layer(&step, layer).unwrap());
        assert!(!planner.fills_shared(&step));
        planner.close_step(&step, None).unwrap();
        let in_part = |tokens: u32| 2 * u32::from(!tokens.is_multiple_of(4));
        let own = in_part(length + tokens) + in_part(length);
        assert_eq!(planner.staged_count(), own, "{tokens} behind {length}");
        planner.check_invariants(&[&held]).unwrap();
        planner.release(held);
    }
}
