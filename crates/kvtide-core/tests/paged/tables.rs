//! The tables of a step in the caller's arrays: errors, and the entries that are written.

use kvtide_core::paged::{Append, PagedPlanner, StepTableRows, StepTables, WritePlan, Writer};
use kvtide_core::{Code, Error, Result};

const UNTOUCHED: i32 = -9;

/// Arrays of these lengths.
struct Arrays([Vec<i32>; 5]);

impl Arrays {
    fn new(lengths: [usize; 5]) -> Self {
        Arrays(lengths.map(|length| vec![UNTOUCHED; length]))
    }

    fn fill(&mut self, rows: &mut StepTableRows, planner: &PagedPlanner, plan: &WritePlan) -> Result<()> {
        let [block_tables, slot_mapping, positions, lengths, query_offsets] = &mut self.0;
        rows.fill(planner, plan, StepTables { block_tables, slot_mapping, positions, lengths, query_offsets })
    }

    fn prepare(&mut self, rows: &mut StepTableRows, planner: &PagedPlanner, plan: &WritePlan) -> Result<()> {
        let [block_tables, slot_mapping, positions, lengths, query_offsets] = &mut self.0;
        rows.prepare(planner, plan, &StepTables { block_tables, slot_mapping, positions, lengths, query_offsets })
    }

    fn is_untouched(&self) -> bool {
        self.0.iter().flatten().all(|&number| number == UNTOUCHED)
    }
}

fn planner() -> PagedPlanner {
    let mut planner = PagedPlanner::new(8, 4, 2).unwrap();
    planner.create_sequence().unwrap();
    planner.create_sequence().unwrap();
    planner
}

fn plan(planner: &PagedPlanner, sequences: &[u64], offsets: &[u32]) -> WritePlan {
    let append = Append { sequences, offsets: Some(offsets), parents: None, writer: Writer::Step };
    planner.plan_append(&append).unwrap()
}

fn finish(planner: &mut PagedPlanner, plan: &WritePlan) {
    (0..2).for_each(|layer| planner.mark_layer(plan, layer).unwrap());
    planner.close_step(plan, None).unwrap();
}

#[test]
fn what_is_too_small_for_a_step_is_refused_before_it_is_opened() {
    let planner = planner();
    let plan = plan(&planner, &[0, 1], &[0, 5, 6]);
    let needed = [4, 6, 6, 2, 3];
    let mut rows = StepTableRows::new(2).unwrap();
    Arrays::new(needed).prepare(&mut rows, &planner, &plan).unwrap();
    for at in 0..5 {
        let mut lengths = needed;
        lengths[at] -= 1;
        let refused = Arrays::new(lengths).prepare(&mut rows, &planner, &plan);
        assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument, "array {at}");
    }
    let narrow = Arrays::new(needed).prepare(&mut StepTableRows::new(1).unwrap(), &planner, &plan);
    assert_eq!(narrow.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(planner.sequence_capacity(0), 0);
}

#[test]
fn arrays_that_are_too_short_are_refused_by_name_and_nothing_is_written() {
    let mut planner = planner();
    let plan = plan(&planner, &[0, 1], &[0, 5, 6]);
    planner.open_step(&plan).unwrap();
    let mut rows = StepTableRows::new(2).unwrap();
    let needed = [4, 6, 6, 2, 3];
    let names =
        ["blockTables.length", "slotMapping.length", "positions.length", "lengths.length", "queryOffsets.length"];
    for (at, name) in names.into_iter().enumerate() {
        let mut lengths = needed;
        lengths[at] -= 1;
        let mut arrays = Arrays::new(lengths);
        let Err(Error::InvalidArgument { argument, expected, .. }) = arrays.fill(&mut rows, &planner, &plan) else {
            panic!("{name}");
        };
        assert_eq!(argument, name);
        assert!(expected.starts_with(&format!("at least {}", needed[at])), "{expected}");
        assert!(arrays.is_untouched());
    }
    let mut arrays = Arrays::new(needed);
    let refused = arrays.fill(&mut StepTableRows::new(1).unwrap(), &planner, &plan).unwrap_err();
    assert_eq!(refused.to_string(), "maxBlocks is 1, expected at least 2, the blocks of the longest");
    assert!(arrays.is_untouched());
    arrays.fill(&mut rows, &planner, &plan).unwrap();
    assert_eq!(arrays.0[0], [0, 1, 2, UNTOUCHED]);
    assert_eq!(arrays.0[1..], [vec![0, 1, 2, 3, 4, 8], vec![0, 1, 2, 3, 4, 0], vec![5, 1], vec![0, 5, 6]]);
    assert_eq!(StepTableRows::new(0).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn only_what_was_added_is_written_again() {
    let mut planner = planner();
    let (mut rows, mut arrays) = (StepTableRows::new(4).unwrap(), Arrays::new([8, 8, 8, 2, 3]));
    for (tokens, expected) in [(4, [0, UNTOUCHED]), (4, [UNTOUCHED, 1])] {
        let plan = plan(&planner, &[0], &[0, tokens]);
        planner.open_step(&plan).unwrap();
        arrays.0[0].fill(UNTOUCHED);
        arrays.fill(&mut rows, &planner, &plan).unwrap();
        assert_eq!(arrays.0[0][..2], expected);
        finish(&mut planner, &plan);
    }
    // Another array of the same numbers knows nothing, and neither does one that was forgotten.
    let plan = plan(&planner, &[0], &[0, 1]);
    planner.open_step(&plan).unwrap();
    let mut other = Arrays::new([8, 8, 8, 2, 3]);
    other.fill(&mut rows, &planner, &plan).unwrap();
    assert_eq!(other.0[0][..3], [0, 1, 2]);
    other.0[0].fill(UNTOUCHED);
    rows.forget();
    other.fill(&mut rows, &planner, &plan).unwrap();
    assert_eq!(other.0[0][..3], [0, 1, 2]);
}

#[test]
fn a_step_that_has_ended_is_stale_though_another_looks_alike() {
    let mut planner = planner();
    let first = plan(&planner, &[0], &[0, 1]);
    planner.open_step(&first).unwrap();
    planner.undo_step(&first).unwrap();
    let second = plan(&planner, &[0], &[0, 1]);
    planner.open_step(&second).unwrap();
    let mut arrays = Arrays::new([4, 1, 1, 1, 2]);
    let mut rows = StepTableRows::new(4).unwrap();
    assert_eq!(arrays.fill(&mut rows, &planner, &first).unwrap_err().code(), Code::StaleStep);
    assert_eq!(planner.mark_layer(&first, 0).unwrap_err().code(), Code::StaleStep);
    assert_eq!(planner.close_step(&first, None).unwrap_err().code(), Code::StaleStep);
    assert_eq!(planner.mark_layer(&second, 2).unwrap_err().code(), Code::InvalidArgument);
    finish(&mut planner, &second);
    assert_eq!(planner.close_step(&second, None).unwrap_err().code(), Code::StaleStep);
    assert_eq!(planner.sequence_length(0), 1);
}

/// Cuts a sequence, or takes back what it was; another sequence takes what is free then, so that its next block is another one.
#[test]
fn a_row_whose_blocks_were_replaced_is_written_anew() {
    let changes: [fn(&mut PagedPlanner); 2] = [
        |planner| planner.truncate(0, 4).unwrap(),
        |planner| {
            let snapshot = planner.snapshot(1).unwrap();
            planner.restore(0, &snapshot).unwrap();
            planner.release(snapshot);
        },
    ];
    for change in changes {
        let mut planner = planner();
        let (mut rows, mut arrays) = (StepTableRows::new(4).unwrap(), Arrays::new([8, 8, 8, 2, 3]));
        let first = plan(&planner, &[0], &[0, 8]);
        planner.open_step(&first).unwrap();
        arrays.fill(&mut rows, &planner, &first).unwrap();
        finish(&mut planner, &first);
        planner.ensure_capacity(&[(1, 1)]).unwrap();
        change(&mut planner);
        planner.ensure_capacity(&[(1, 12)]).unwrap();
        let second = plan(&planner, &[0], &[0, 4]);
        planner.open_step(&second).unwrap();
        arrays.fill(&mut rows, &planner, &second).unwrap();
        finish(&mut planner, &second);
        let end = planner.sequence_length(0);
        for position in end - 4..end {
            let block = planner.locate(0, 0, position).unwrap().block;
            assert_eq!(arrays.0[0][position as usize / 4], block as i32, "position {position}");
        }
    }
}
