//! Windows of one group: the blocks kept for the last token with any block size, and the treatment of released blocks
//! in tables and by readers.

use kvtide_core::Code;
use kvtide_core::paged::{
    Append, BlockKey, Explanation, Identity, MissReason, NO_BLOCK, PagedPlanner, StepTableRows, StepTables, Window,
    Writer, can_allocate_in_groups,
};

use crate::calls;

fn sliding(block_size: u32, tokens: u32, sinks: u32) -> PagedPlanner {
    PagedPlanner::new(64, block_size, 1).unwrap().sliding(Window::new(tokens, sinks).unwrap())
}

fn append(planner: &mut PagedPlanner, sequence: u64, tokens: u32) {
    let offsets = [0, tokens];
    let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Direct };
    let plan = planner.plan_append(&append).unwrap();
    planner.commit(&plan, None).unwrap();
}

#[test]
fn the_last_token_finds_its_window_whole_and_no_block_before_it_stays() {
    for (block_size, window, sinks) in (1..5).flat_map(|size| (1..7).flat_map(move |w| [0, 3].map(|s| (size, w, s)))) {
        let mut planner = sliding(block_size, window, sinks);
        let sequence = planner.create_sequence().unwrap();
        for tokens in [1, 1, 5, 1, 2, 1, 7, 1, 1, 1, 1] {
            append(&mut planner, sequence, tokens);
            let (length, gap) = (planner.sequence_length(sequence), planner.gap(sequence).unwrap());
            let first = length.saturating_sub(window);
            let behind_sinks = sinks.div_ceil(block_size) * block_size;
            let end = (first / block_size * block_size).max(behind_sinks);
            assert_eq!(gap.len() as u32, end - behind_sinks, "{block_size} {window} {sinks} {length}");
            assert!(gap.is_empty() || gap == (behind_sinks..end));
            assert_eq!(planner.retained_length(sequence), length - gap.len() as u32);
            // The next token after one was taken back sees its window whole as well.
            planner.check_truncate(sequence, length - 1).unwrap();
        }
        planner.check_invariants(&[]).unwrap();
    }
    assert_eq!(sliding(1, 1, 0).retained_length(7), 0);
}

/// The row of the next token of a sequence.
fn next_row(planner: &mut PagedPlanner, rows: &mut StepTableRows, sequence: u64, row: &mut [i32]) {
    let append = Append { sequences: &[sequence], offsets: None, parents: None, writer: Writer::Step };
    let plan = planner.plan_append(&append).unwrap();
    planner.open_step(&plan).unwrap();
    let [mut slots, mut positions, mut lengths, mut offsets] = [[0; 2]; 4];
    let tables = StepTables {
        block_tables: row,
        slot_mapping: &mut slots,
        positions: &mut positions,
        lengths: &mut lengths,
        query_offsets: &mut offsets,
    };
    rows.fill(planner, &plan, tables).unwrap();
    planner.mark_layer(&plan, 0).unwrap();
    planner.close_step(&plan, None).unwrap();
}

#[test]
fn a_row_has_no_block_where_one_left_the_window_also_when_it_was_written_before() {
    let mut planner = sliding(2, 3, 1);
    let sequence = planner.create_sequence().unwrap();
    let (mut rows, mut row) = (StepTableRows::new(8).unwrap(), [-9; 8]);
    append(&mut planner, sequence, 3);
    next_row(&mut planner, &mut rows, sequence, &mut row);
    assert_eq!(row[..3], [0, 1, -9]);
    append(&mut planner, sequence, 4);
    // The block that went is taken again, for the tokens behind it.
    next_row(&mut planner, &mut rows, sequence, &mut row);
    assert_eq!(row[..6], [0, NO_BLOCK, 2, 3, 1, -9]);
    next_row(&mut planner, &mut rows, sequence, &mut row);
    assert_eq!(row[..6], [0, NO_BLOCK, NO_BLOCK, 3, 1, -9]);
    rows.forget();
    row.fill(-9);
    next_row(&mut planner, &mut rows, sequence, &mut row);
    assert_eq!((planner.gap(sequence).unwrap(), &row[..5]), (2..8, &[0, NO_BLOCK, NO_BLOCK, 3, 1][..]));
}

#[test]
fn a_table_says_what_left_the_window_in_one_run_up_to_the_last_token() {
    let planner = sliding(2, 3, 1);
    let gap = |blocks: &[i32], length| planner.check_table(0, 0, blocks, length).map_err(|error| error.code());
    assert_eq!(gap(&[0, -1, -1, 3], 7), Ok(2..6));
    assert_eq!(gap(&[-1, 5, 6], 6), Ok(0..2));
    assert_eq!(gap(&[4, 5, -1], 4), Ok(0..0), "what is behind the last token is not looked at");
    assert_eq!(gap(&[0, -1, -1, 9], 6), Ok(2..6), "the next token may see nothing of it");
    assert_eq!([gap(&[0, -1], 3), gap(&[-1], 1), gap(&[-1, -1], 4)], [Ok(2..3), Ok(0..1), Ok(0..4)]);
    for (blocks, length) in [(&[-1, 0, -1, 0][..], 8), (&[-1, 0, -1], 6), (&[0, -2, 3], 6), (&[0, -1, 64], 6)] {
        assert_eq!(gap(blocks, length), Err(Code::InvalidBlock), "{blocks:?}");
    }
    let all = PagedPlanner::new(8, 2, 1).unwrap();
    assert_eq!(all.check_table(0, 0, &[-1, 0], 4).unwrap_err().code(), Code::InvalidBlock);
}

#[test]
fn a_prefix_needs_its_sinks_and_what_the_next_token_sees() {
    let prompt: Vec<u32> = (1..14).collect();
    let identity = Identity::default();
    for (window, sinks, needed) in [(3, 1, 2), (4, 0, 2), (64, 0, 4)] {
        let mut planner = PagedPlanner::new(8, 2, 1).unwrap().sliding(Window::new(window, sinks).unwrap());
        let sequence = planner.create_sequence().unwrap();
        for token in prompt[..8].chunks(1) {
            let append = Append { sequences: &[sequence], offsets: None, parents: None, writer: Writer::Direct };
            let plan = planner.plan_append(&append).unwrap();
            planner.commit(&plan, Some(token)).unwrap();
        }
        planner.drop_sequence(sequence).unwrap();
        // Others take what the prefix does not need.
        let other = planner.create_sequence().unwrap();
        planner.ensure_capacity(&[(other, 2 * (8 - 4))]).unwrap();
        let held = planner.find(&prompt, &identity, true).unwrap();
        assert_eq!(held.length(), 8, "{window} {sinks}");
        let sequence = planner.create_from(held).unwrap();
        assert_eq!((8 - planner.gap(sequence).unwrap().len() as u32) / 2, needed, "{window} {sinks}");
        let why = planner.explain(&prompt, &identity).unwrap();
        assert_eq!(why, Explanation { matched: 8, missing: Some((4, MissReason::NeverSeen)) });
        assert!(can_allocate_in_groups(&[&planner], &prompt[..9], &identity, 0).unwrap() == (planner.free_count() > 0));
        planner.check_invariants(&[]).unwrap();
    }
}

#[test]
fn a_prefix_whose_head_has_gone_is_found_by_a_window() {
    let (prompt, identity): (Vec<u32>, _) = ((1..10).collect(), Identity::default());
    let mut planner = sliding(2, 3, 0);
    let sequence = planner.create_sequence().unwrap();
    let offsets = [0, 8];
    let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Direct };
    let plan = planner.plan_append(&append).unwrap();
    planner.commit(&plan, Some(&prompt[..8])).unwrap();
    // Its first blocks left the window, and are evicted before the others.
    let other = planner.create_sequence().unwrap();
    planner.ensure_capacity(&[(other, 2 * 62)]).unwrap();
    assert_eq!(planner.pool_stats().evictions, 2);
    let held = planner.find(&prompt, &identity, false).unwrap();
    assert_eq!(held.length(), 8);
    planner.release(held);
    assert_eq!(planner.explain(&prompt, &identity).unwrap(), Explanation { matched: 8, missing: None });
    assert_eq!(planner.explain(&prompt[..6], &identity).unwrap().matched, 0, "the window before is gone");
}

fn append_known(planner: &mut PagedPlanner, sequence: u64, tokens: &[u32]) {
    calls::append(planner, sequence, tokens);
    planner.check_invariants(&[]).unwrap();
}

#[test]
fn what_follows_a_truncation_is_found_also_where_the_block_before_it_left_the_window() {
    let prompt: Vec<u32> = (1..32).collect();
    for (block_size, window, sinks) in (1..5).flat_map(|size| (1..7).flat_map(move |w| [0, 3].map(|s| (size, w, s)))) {
        for (length, cut) in (1..16).flat_map(|length| (0..=length).map(move |cut| (length, cut))) {
            let mut planner = sliding(block_size, window, sinks);
            let sequence = planner.create_sequence().unwrap();
            append_known(&mut planner, sequence, &prompt[..length]);
            if planner.truncate(sequence, cut as u32).is_err() {
                continue;
            }
            append_known(&mut planner, sequence, &prompt[cut..30]);
            let why = planner.explain(&prompt, &Identity::default()).unwrap();
            let whole = 30 / block_size * block_size;
            let case = format!("{block_size} {window} {sinks}, {length} cut at {cut}");
            assert_eq!(why, Explanation { matched: whole, missing: None }, "{case}");
        }
    }
}

#[test]
fn a_sequence_whose_window_has_slid_can_be_cut_to_its_sinks_or_to_nothing() {
    for (block_size, window, sinks) in
        (1..5u32).flat_map(|size| (1..7).flat_map(move |w| [0, 3u32].map(|s| (size, w, s))))
    {
        for length in 0..=sinks.div_ceil(block_size) * block_size {
            let mut planner = sliding(block_size, window, sinks);
            let sequence = planner.create_sequence().unwrap();
            append(&mut planner, sequence, 30);
            let gap = planner.gap(sequence).unwrap();
            assert!(!gap.is_empty() && length <= gap.start);
            planner.truncate(sequence, length).unwrap();
            assert_eq!((planner.sequence_length(sequence), planner.retained_length(sequence)), (length, length));
            assert_eq!(planner.free_count(), 64 - length.div_ceil(block_size));
            append(&mut planner, sequence, 1);
            assert!((0..=length).all(|position| planner.locate(sequence, 0, position).is_ok()));
            assert!(planner.gap(sequence).unwrap().is_empty());
            planner.check_invariants(&[]).unwrap();
        }
    }
    let mut planner = sliding(2, 4, 0);
    let sequence = planner.create_sequence().unwrap();
    append(&mut planner, sequence, 12);
    let refused = planner.truncate(sequence, 9).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "cannot roll back from 12 tokens to 9: tokens right before it have left the window"
    );
}

#[test]
fn what_follows_a_truncation_of_a_prefix_that_was_found_is_found() {
    let prompt: Vec<u32> = (1..32).collect();
    let identity = Identity::default();
    for (block_size, window) in [(3, 2), (2, 1), (4, 3), (1, 1)] {
        let mut planner = sliding(block_size, window, 0);
        let first = planner.create_sequence().unwrap();
        append_known(&mut planner, first, &prompt[..13]);
        let held = planner.find(&prompt[..14], &identity, false).unwrap();
        let length = held.length();
        let second = planner.create_from(held).unwrap();
        planner.truncate(second, length - 1).unwrap();
        let snapshot = planner.snapshot(second).unwrap();
        let third = planner.create_from(snapshot).unwrap();
        planner.drop_sequence(second).unwrap();
        append_known(&mut planner, third, &prompt[length as usize - 1..30]);
        assert_eq!(planner.explain(&prompt, &identity).unwrap().matched, 30 / block_size * block_size);
    }
}

#[test]
fn a_prompt_that_nobody_computed_is_not_found_whatever_the_window() {
    let prompt = [1, 2, 3, 4, 5, 6, 7];
    let identity = Identity::default();
    let other = Identity { root: BlockKey::root(&[7; 32], b"model", &[1]), extra: Default::default() };
    for (window, sinks) in [(1, 0), (1, 1), (2, 0), (9, 3)] {
        let mut planner = sliding(2, window, sinks);
        let found = |planner: &mut PagedPlanner, identity: &Identity| {
            let held = planner.find(&prompt, identity, true).unwrap();
            let length = held.length();
            planner.release(held);
            assert_eq!(planner.explain(&prompt, identity).unwrap().matched, length);
            length
        };
        assert_eq!(found(&mut planner, &identity), 0, "{window} {sinks}");
        let why = planner.explain(&prompt, &identity).unwrap();
        assert_eq!(why.missing, Some((0, MissReason::NeverSeen)), "{window} {sinks}");
        // Room for none of it, since nothing of it is there.
        let mut small = PagedPlanner::new(3, 2, 1).unwrap().sliding(Window::new(window, sinks).unwrap());
        assert!(!can_allocate_in_groups(&[&small], &prompt, &identity, 0).unwrap());
        assert_eq!(small.find(&prompt, &identity, false).unwrap().length(), 0);
        let sequence = planner.create_sequence().unwrap();
        append_known(&mut planner, sequence, &prompt[..4]);
        assert_eq!([found(&mut planner, &identity), found(&mut planner, &other)], [4, 0], "{window} {sinks}");
    }
}
