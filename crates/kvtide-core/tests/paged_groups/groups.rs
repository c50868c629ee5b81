//! Prefixes over several groups, in hand-written cases.

use kvtide_core::Code;
use kvtide_core::paged::{
    Append, Explanation, HeldContent, Identity, MissReason, PagedPlanner, Window, Writer, can_allocate_in_groups,
    explain_in_groups, find_in_groups,
};

fn append(planner: &mut PagedPlanner, tokens: &[u32]) -> u64 {
    let sequence = planner.create_sequence().unwrap();
    let offsets = [0, tokens.len() as u32];
    let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Direct };
    let plan = planner.plan_append(&append).unwrap();
    planner.commit(&plan, Some(tokens)).unwrap();
    sequence
}

fn sliding(tokens: u32, sinks: u32) -> PagedPlanner {
    PagedPlanner::new(8, 2, 1).unwrap().sliding(Window::new(tokens, sinks).unwrap())
}

#[test]
fn a_window_that_is_gone_ends_a_prefix() {
    let (mut full, mut window) = (PagedPlanner::new(8, 2, 1).unwrap(), sliding(3, 1));
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    append(&mut full, &prompt);
    append(&mut window, &prompt[..6]);
    let identity = Identity::default();
    let held = find_in_groups(&mut [&mut full, &mut window], &prompt, &identity, false).unwrap();
    assert_eq!(held.iter().map(|held| held.length()).collect::<Vec<_>>(), [6, 6]);
    let why = explain_in_groups(&[&full, &window], &prompt, &identity).unwrap();
    assert_eq!(why, Explanation { matched: 6, missing: Some((3, MissReason::WindowGone)) });
    for (planner, held) in [&mut full, &mut window].into_iter().zip(held) {
        let sequence = planner.create_from(held).unwrap();
        assert_eq!(planner.locate(sequence, 0, 5).unwrap().block, 2);
        let hidden = planner.locate(sequence, 0, 2).is_err();
        assert_eq!(hidden, planner.gap(sequence).unwrap() == (2..4));
    }
    // The sinks are needed as well.
    let missing_sinks = [9, 9, 3, 4, 5, 6, 7];
    let mut other = sliding(3, 1);
    append(&mut other, &missing_sinks);
    assert_eq!(find_in_groups(&mut [&mut other], &prompt, &identity, false).unwrap()[0].length(), 0);
}

#[test]
fn room_for_a_prompt_is_that_of_the_scarcest_group_and_a_window_needs_what_it_keeps() {
    let (mut full, mut window) = (PagedPlanner::new(8, 2, 1).unwrap(), sliding(3, 1));
    let prompt: Vec<u32> = (1..14).collect();
    let held = append(&mut full, &prompt[..8]);
    let slid = append(&mut window, &prompt[..8]);
    let room = |full: &PagedPlanner, window: &PagedPlanner, tokens: &[u32], watermark: u32| {
        can_allocate_in_groups(&[full, window], tokens, &Identity::default(), watermark).unwrap()
    };
    // Four blocks are shared, four are left in the full group.
    assert!(room(&full, &window, &prompt, 1) && !room(&full, &window, &prompt, 2));
    // They are no longer held: they are found as before, and count.
    full.drop_sequence(held).unwrap();
    assert!(room(&full, &window, &prompt, 1) && !room(&full, &window, &prompt, 2));
    // Of four blocks the window needs that of the sinks and the last; another sequence takes of the rest.
    window.drop_sequence(slid).unwrap();
    assert!(room(&full, &window, &prompt, 1));
    let other = window.create_sequence().unwrap();
    window.ensure_capacity(&[(other, 4)]).unwrap();
    assert!(room(&full, &window, &prompt, 1));
    window.ensure_capacity(&[(other, 6)]).unwrap();
    assert!(room(&full, &window, &prompt, 0) && !room(&full, &window, &prompt, 1));
    assert!(!room(&full, &window, &[9; 13], 0));
    let refused = can_allocate_in_groups(&[], &prompt, &Identity::default(), 0).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[test]
fn a_window_of_the_token_itself_needs_the_block_of_the_last_token_and_no_other() {
    let (mut full, mut window) = (PagedPlanner::new(8, 2, 1).unwrap(), sliding(1, 0));
    let (prompt, identity) = ([1, 2, 3, 4, 5], Identity::default());
    append(&mut full, &prompt);
    let mut lengths = |window: &mut PagedPlanner| {
        let held = find_in_groups(&mut [&mut full, window], &prompt, &identity, true).unwrap();
        let lengths: Vec<u32> = held.iter().map(HeldContent::length).collect();
        held.into_iter().zip([&mut full, window]).for_each(|(held, planner)| planner.release(held));
        let why = explain_in_groups(&[&full, window], &prompt, &identity).unwrap();
        (lengths, why.missing)
    };
    assert_eq!(lengths(&mut window), (vec![0, 0], Some((0, MissReason::WindowGone))), "its prompt was never there");
    append(&mut window, &prompt[..4]);
    // All that this takes from the prompt is its first block.
    let other = window.create_sequence().unwrap();
    window.ensure_capacity(&[(other, 2 * 7)]).unwrap();
    assert_eq!(window.pool_stats().evictions, 1);
    window.drop_sequence(other).unwrap();
    assert_eq!(lengths(&mut window), (vec![4, 4], None));
    let mut held = find_in_groups(&mut [&mut window], &prompt, &identity, false).unwrap();
    let sequence = window.create_from(held.pop().unwrap()).unwrap();
    assert_eq!(window.gap(sequence).unwrap(), 0..2);
    let more = Append { sequences: &[sequence], offsets: Some(&[0, 3]), parents: None, writer: Writer::Direct };
    let plan = window.plan_append(&more).unwrap();
    window.commit(&plan, Some(&[5, 6, 7])).unwrap();
    window.check_invariants(&[]).unwrap();
    // What is behind the gap has the name that it has in every group.
    let mut wider = sliding(2, 0);
    append(&mut wider, &[1, 2, 3, 4, 5, 6]);
    let mut both = [&mut window, &mut wider];
    assert_eq!(find_in_groups(&mut both, &[1, 2, 3, 4, 5, 6, 7], &identity, false).unwrap()[1].length(), 6);
}

#[test]
fn groups_that_do_not_fit_together_are_refused() {
    let (mut one, mut other) = (PagedPlanner::new(8, 2, 1).unwrap(), PagedPlanner::new(8, 4, 1).unwrap());
    let identity = Identity::default();
    let refused = find_in_groups(&mut [&mut one, &mut other], &[1, 2, 3], &identity, false).unwrap_err();
    assert_eq!(refused.to_string(), "blockSize is 4, expected 2, as in the first group");
    assert_eq!(find_in_groups(&mut [], &[1], &identity, false).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(explain_in_groups(&[], &[1], &identity).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn blocks_that_cannot_be_held_are_refused() {
    let mut planner = PagedPlanner::new(8, 2, 1).unwrap();
    append(&mut planner, &[1, 2, 3, 4, 5]);
    let identity = Identity::default();
    for (blocks, length, code) in [
        (&[Some(0)][..], 4, Code::InvalidArgument),
        (&[Some(0), Some(2)], 4, Code::InvalidBlock),
        (&[Some(0), Some(9)], 4, Code::InvalidBlock),
        (&[Some(0), None], 4, Code::InvalidArgument),
    ] {
        assert_eq!(planner.hold(blocks, length, &identity).unwrap_err().code(), code, "{blocks:?}");
    }
    let held = planner.hold(&[None, Some(1)], 4, &identity).unwrap();
    planner.check_invariants(&[&held]).unwrap();
    planner.release(held);
}

#[test]
fn the_start_of_a_block_counts_as_far_as_all_groups_have_it() {
    let mut groups: [PagedPlanner; 2] = std::array::from_fn(|_| PagedPlanner::new(8, 4, 1).unwrap());
    append(&mut groups[0], &[1, 2, 3, 4, 5, 6, 7, 8]);
    append(&mut groups[1], &[1, 2, 3, 4, 5, 9, 9, 9]);
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    for (first, second) in [(0, 1), (1, 0)] {
        let [one, other] = groups.get_disjoint_mut([first, second]).unwrap();
        let held = find_in_groups(&mut [one, other], &prompt, &Identity::default(), true).unwrap();
        assert!(held.iter().all(|held| held.length() == 5));
        groups[first].check_invariants(&[&held[0]]).unwrap();
        held.into_iter().zip([first, second]).for_each(|(held, of)| groups[of].release(held));
    }
    append(&mut groups[1], &[7, 7, 7, 7]);
    groups[1].forget_prefixes();
    append(&mut groups[1], &[1, 2, 3, 4, 0]);
    let [one, other] = &mut groups;
    let held = find_in_groups(&mut [one, other], &prompt, &Identity::default(), true).unwrap();
    assert!(held.iter().all(|held| held.length() == 4), "the second has nothing behind the first block");
}
