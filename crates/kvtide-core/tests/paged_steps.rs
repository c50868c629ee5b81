//! Steps that are opened for as many tokens as may come, and end with fewer.

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

#[test]
fn a_step_that_is_shortened_ends_as_one_of_fewer_tokens() {
    for (block_size, horizon) in (1..6).flat_map(|size| (0..9).map(move |horizon| (size, horizon))) {
        for (kept, is_marked) in (0..=horizon).flat_map(|kept| [false, true].map(|marked| (kept, marked))) {
            let mut long = planner(block_size, [3, 4]);
            let mut step = plan(&long, &[1, 0], horizon, Writer::Step);
            long.open_step(&step).unwrap();
            if is_marked {
                long.mark_layers(&step, 0..2).unwrap();
            }
            long.shorten_step(&mut step, kept).unwrap();
            assert_eq!(step.tokens(), 2 * kept);
            assert_eq!(step.offsets().collect::<Vec<_>>(), [0, kept, 2 * kept]);
            assert_eq!(step.runs().iter().map(|run| run.len).sum::<u32>(), 2 * kept);
            assert!(
                step.runs()
                    .iter()
                    .scan(0, |at, run| {
                        *at += run.len;
                        Some(*at - run.len == run.token)
                    })
                    .all(|is| is)
            );
            long.mark_layers(&step, 0..2).unwrap();
            let ids: Vec<u32> = (0..2 * kept).collect();
            long.close_step(&step, Some(&ids)).unwrap();
            long.check_invariants(&[]).unwrap();

            let mut short = planner(block_size, [3, 4]);
            let append = plan(&short, &[1, 0], kept, Writer::Direct);
            short.commit(&append, None).unwrap();
            assert_eq!(long.free_count(), short.free_count(), "{block_size} {horizon} {kept}");
            for sequence in [0, 1] {
                assert_eq!(long.sequence_length(sequence), short.sequence_length(sequence));
                assert_eq!(pages(&long, sequence), pages(&short, sequence));
                assert!(long.locate(sequence, 0, 2 + kept).is_ok());
                assert!(long.locate(sequence, 1, 4 + kept).is_err());
            }
            // What was given back can be had again.
            let rest = plan(&long, &[0], 64 * block_size - 2 * (4 + kept).next_multiple_of(block_size), Writer::Direct);
            long.commit(&rest, None).unwrap();
            long.check_invariants(&[]).unwrap();
        }
    }
}

#[test]
fn what_cannot_be_shortened_is_refused_and_stays() {
    let mut planner = planner(4, [3, 4]);
    let mut step = plan(&planner, &[0], 5, Writer::Step);
    let not_open = planner.shorten_step(&mut step, 2).unwrap_err();
    assert_eq!(not_open.code(), Code::StaleStep);
    planner.open_step(&step).unwrap();
    let too_many = planner.shorten_step(&mut step, 6).unwrap_err();
    assert_eq!(too_many.code(), Code::InvalidArgument);
    assert_eq!(too_many.to_string(), "tokens is 6, expected at most 5, as the step has of each sequence");
    assert_eq!(step.tokens(), 5);
    planner.undo_step(&step).unwrap();

    let mut staged = PagedPlanner::new(8, 4, 1).unwrap().staging_pages();
    let sequence = staged.create_sequence().unwrap();
    let mut step = plan(&staged, &[sequence], 5, Writer::Step);
    staged.open_step(&step).unwrap();
    assert_eq!(staged.shorten_step(&mut step, 1).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(step.tokens(), 5);
}

/// A write that failed leaves bytes in slots that nobody marked. However the step ends, they are zeroed before somebody reads the page.
#[test]
fn slots_of_a_step_may_hold_anything_once_it_is_undone() {
    for with_transaction in [false, true] {
        let mut planner = PagedPlanner::new(4, 4, 2).unwrap();
        let sequence = planner.create_sequence().unwrap();
        let token = planner.plan_tokens(sequence, 1, 0, 1).unwrap();
        planner.commit(&token, None).unwrap();
        let block = planner.pages(sequence, 0).unwrap().next().unwrap().block;
        assert!(!planner.exposes(block, 0, 4), "nobody wrote to the page, and it is zeros");
        let draft = planner.begin(sequence, None).unwrap();
        let step = plan(&planner, &[sequence], 2, Writer::Step);
        planner.open_step(&step).unwrap();
        if with_transaction {
            planner.undo(sequence, draft).unwrap();
        } else {
            planner.undo_step(&step).unwrap();
        }
        assert!(planner.exposes(block, 0, 2), "ended by its transaction: {with_transaction}");
        planner.check_invariants(&[]).unwrap();
    }
}
