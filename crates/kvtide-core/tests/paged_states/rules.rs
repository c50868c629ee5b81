//! The rules of checkpoints, one by one.

use kvtide_core::Error;
use kvtide_core::paged::{
    Append, Explanation, Growth, GrowthRequest, Identity, Keep, LeastUseful, MissReason, PagedPlanner, WritePlan,
    Writer, explain_in_groups, find_in_groups, prompt_states, shortage_in_groups,
};

/// Full layers and states, in blocks of four tokens.
struct Groups([PagedPlanner; 2]);

impl Groups {
    fn new(slots: u32) -> Self {
        let full = PagedPlanner::new(64, 4, 1).unwrap();
        let states = PagedPlanner::new(slots, 4, 1).unwrap().keeping_states();
        Groups([full, states.evicting(Box::new(LeastUseful::default()))])
    }

    fn sequence(&mut self) -> u64 {
        self.0.iter_mut().map(|planner| planner.create_sequence().unwrap()).max().unwrap()
    }

    fn step(&mut self, sequence: u64, ids: &[u32]) {
        for planner in &mut self.0 {
            let plan = opened(planner, sequence, ids.len() as u32);
            planner.mark_layer(&plan, 0).unwrap();
            planner.close_step(&plan, Some(ids)).unwrap();
        }
    }

    fn found(&mut self, prompt: &[u32]) -> u32 {
        let [full, states] = &mut self.0;
        let held = find_in_groups(&mut [full, states], prompt, &Identity::default(), false).unwrap();
        let length = held[1].length();
        self.0.iter_mut().zip(held).for_each(|(planner, held)| planner.release(held));
        length
    }
}

/// Opens a step of this many tokens.
fn opened(planner: &mut PagedPlanner, sequence: u64, tokens: u32) -> WritePlan {
    let offsets = [0, tokens];
    let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Step };
    let write = planner.check_append(&append).unwrap();
    let (copies, mut plan) = planner.plan_write(write).unwrap();
    planner.reserve_after(&copies, &plan).unwrap();
    planner.commit_copies_before(&copies, &mut plan).unwrap();
    planner.open_step(&plan).unwrap();
    plan
}

fn ids(count: u32) -> Vec<u32> {
    (0..count).collect()
}

#[test]
fn a_step_that_ends_at_a_block_leaves_a_checkpoint() {
    let mut groups = Groups::new(8);
    let sequence = groups.sequence();
    groups.step(sequence, &ids(10)[..8]);
    groups.step(sequence, &ids(10)[8..]);
    assert_eq!(groups.found(&ids(20)), 8, "the state after 10 tokens has no key");
    let [full, states] = &groups.0;
    let why = explain_in_groups(&[full, states], &ids(20), &Identity::default()).unwrap();
    assert_eq!(why, Explanation { matched: 8, missing: Some((2, MissReason::NeverSeen)) });
}

#[test]
fn a_prompt_without_a_checkpoint_says_so() {
    let mut groups = Groups::new(8);
    let sequence = groups.sequence();
    groups.step(sequence, &ids(13));
    groups.step(sequence, &[13, 14, 15]);
    let mut other = ids(12);
    other.extend([90, 91, 92, 93]);
    let [full, states] = &groups.0;
    let told = prompt_states(&[full, states], &other, &Identity::default()).unwrap();
    assert_eq!((told.found, told.cached, told.above), (0, 12, None));
    let why = explain_in_groups(&[full, states], &other, &Identity::default()).unwrap();
    assert_eq!(why, Explanation { matched: 0, missing: Some((0, MissReason::NoStateHere)) });
}

#[test]
fn tokens_one_by_one_keep_their_newest_checkpoint() {
    let mut groups = Groups::new(8);
    let sequence = groups.sequence();
    groups.step(sequence, &ids(8));
    ids(23)[8..].iter().for_each(|&id| groups.step(sequence, &[id]));
    assert_eq!(groups.found(&ids(24)), 20);
    let states = &groups.0[1];
    assert_eq!(states.pool_stats().cached, 2, "after the prompt, and the newest");
    assert_eq!(
        states.check_truncate(sequence, 12),
        Err(Error::NoStateHere { requested: 12, seq_len: 23, below: 8, above: Some(20) })
    );
}

#[test]
fn a_truncated_sequence_continues_from_its_checkpoint() {
    let mut groups = Groups::new(8);
    let sequence = groups.sequence();
    groups.step(sequence, &ids(8));
    groups.step(sequence, &[8, 9]);
    groups.0.iter_mut().for_each(|planner| planner.truncate(sequence, 8).unwrap());
    groups.step(sequence, &[50, 51, 52, 53]);
    let mut edited = ids(8);
    edited.extend([50, 51, 52, 53, 54]);
    assert_eq!(groups.found(&edited), 12);
}

#[test]
fn a_checkpoint_that_prompts_find_outlives_larger_ones() {
    let mut groups = Groups::new(3);
    let once = |groups: &mut Groups, prompt: &[u32]| {
        let sequence = groups.sequence();
        groups.step(sequence, prompt);
        groups.0.iter_mut().for_each(|planner| planner.drop_sequence(sequence).unwrap());
    };
    once(&mut groups, &ids(4));
    for _ in 0..5 {
        assert_eq!(groups.found(&ids(5)), 4);
    }
    for other in [100, 200, 300] {
        once(&mut groups, &ids(other + 8)[other as usize..]);
    }
    assert_eq!(groups.found(&ids(5)), 4, "it saves half as many tokens as each of the others, to six prompts");
}

#[test]
fn checkpoints_go_before_a_step_is_refused() {
    let mut groups = Groups::new(2);
    let sequence = groups.sequence();
    for block in ids(40).chunks(4) {
        groups.step(sequence, block);
    }
    assert_eq!(groups.0[1].pool_stats().evictions, 9 - 1, "one slot is held, one is written");
    assert_eq!(groups.found(&ids(41)), 40);
}

#[test]
fn a_fork_that_was_cut_forgets_the_checkpoints_of_tokens_that_it_has_no_more() {
    for is_dropped in [false, true] {
        let mut groups = Groups::new(12);
        let sequence = groups.sequence();
        groups.step(sequence, &ids(8));
        groups.step(sequence, &ids(12)[8..]);
        groups.step(sequence, &[12, 13]);
        let fork = groups.0.iter_mut().map(|planner| planner.fork(sequence).unwrap()).max().unwrap();
        groups.0.iter_mut().for_each(|planner| planner.truncate(fork, 8).unwrap());
        if is_dropped {
            groups.0.iter_mut().for_each(|planner| planner.drop_sequence(sequence).unwrap());
        }
        groups.step(fork, &[50, 51, 52, 53]);
        groups.step(fork, &[54]);
        let states = &groups.0[1];
        assert_eq!(states.state_below(fork, 12), Ok(12), "the checkpoint of its own tokens");
        groups.0.iter_mut().for_each(|planner| planner.truncate(fork, 12).unwrap());
        let mut edited = ids(8);
        edited.extend([50, 51, 52, 53]);
        assert_eq!(groups.0[1].common_length(fork, &edited), Ok(12), "the state is that of its own tokens");

        groups.0.iter_mut().for_each(|planner| planner.truncate(fork, 8).unwrap());
        groups.step(fork, &[60, 61, 62, 63, 64]);
        assert_eq!(groups.0[1].state_below(fork, 12), Ok(8), "it has no state after 12 of these tokens");
    }
}

#[test]
fn a_prefix_that_replaces_a_state_needs_no_second_slot_beside_it() {
    let mut groups = Groups::new(2);
    let first = groups.sequence();
    groups.step(first, &ids(8));
    groups.0.iter_mut().for_each(|planner| planner.drop_sequence(first).unwrap());
    let second = groups.sequence();
    groups.step(second, &ids(2));
    let (prompt, identity) = (ids(10), Identity::default());
    let growing = [Growth { sequence: second, tokens: 8 }];
    let asked = GrowthRequest { growing: &growing, prompt: Some((&prompt, &identity)), step: 8, watermark: None };
    let [full, states] = &groups.0;
    assert_eq!(shortage_in_groups(&[full, states], asked), Ok(None));
    let fork = groups.0.iter_mut().map(|planner| planner.fork(second).unwrap()).max().unwrap();
    let [full, states] = &groups.0;
    let shortage = shortage_in_groups(&[full, states], asked).unwrap().expect("a fork keeps the state");
    assert_eq!((shortage.group, shortage.needed, shortage.free), (1, 2, 1));
    groups.0.iter_mut().for_each(|planner| planner.drop_sequence(fork).unwrap());

    let [full, states] = &mut groups.0;
    let held = find_in_groups(&mut [full, states], &prompt, &identity, false).unwrap();
    for (planner, held) in groups.0.iter_mut().zip(held) {
        planner.restore(second, &held).unwrap();
        planner.release(held);
    }
    groups.step(second, &[8, 9]);
}

#[test]
fn a_retained_part_of_a_sequence_keeps_its_checkpoint() {
    for priority in [50, 51] {
        let mut groups = Groups::new(4);
        let sequence = groups.sequence();
        groups.step(sequence, &ids(4));
        groups.step(sequence, &ids(20)[4..]);
        groups.0[1].retain(sequence, 0..4, priority, None).unwrap();
        groups.0.iter_mut().for_each(|planner| planner.drop_sequence(sequence).unwrap());
        for other in [100, 200, 300, 400] {
            let sequence = groups.sequence();
            groups.step(sequence, &ids(other + 8)[other as usize..]);
            groups.0.iter_mut().for_each(|planner| planner.drop_sequence(sequence).unwrap());
        }
        assert_eq!(groups.found(&ids(6)), if priority > 50 { 4 } else { 0 });
    }
}

#[test]
fn a_part_of_a_draft_is_found_and_continued() {
    let mut groups = Groups::new(16);
    groups.0[1].keep_drafted_states(true);
    let sequence = groups.sequence();
    groups.step(sequence, &ids(6));
    let drafts: Vec<_> = groups.0.iter_mut().map(|planner| planner.begin(sequence, None).unwrap()).collect();
    groups.step(sequence, &ids(13)[6..]);
    assert_eq!(groups.0[1].pool_stats().active, 8, "the state before, and one after each token");
    assert_eq!(groups.0[1].free_count(), 14, "most of them give way to others");
    for (planner, draft) in groups.0.iter_mut().zip(drafts) {
        let plan = planner.plan_end(sequence, draft, Keep::First(2)).unwrap();
        planner.end(&plan).unwrap();
    }
    assert_eq!(groups.0[1].pool_stats().active, 1);
    assert_eq!(groups.found(&ids(20)), 8, "the state after the accepted tokens is a checkpoint");
    groups.step(sequence, &[50, 51, 52, 53]);
    let mut edited = ids(8);
    edited.extend([50, 51, 52, 53, 54]);
    assert_eq!(groups.found(&edited), 12);
}

#[test]
fn a_step_that_is_undone_leaves_the_ids_of_the_draft_before_it() {
    let mut groups = Groups::new(16);
    groups.0[1].keep_drafted_states(true);
    let sequence = groups.sequence();
    groups.step(sequence, &ids(6));
    let drafts: Vec<_> = groups.0.iter_mut().map(|planner| planner.begin(sequence, None).unwrap()).collect();
    groups.step(sequence, &ids(9)[6..]);
    for planner in &mut groups.0 {
        let plan = opened(planner, sequence, 2);
        planner.undo_step(&plan).unwrap();
    }
    for (planner, draft) in groups.0.iter_mut().zip(drafts) {
        let plan = planner.plan_end(sequence, draft, Keep::First(2)).unwrap();
        planner.end(&plan).unwrap();
    }
    assert_eq!(groups.found(&ids(20)), 8, "the state after the accepted tokens is a checkpoint");
}

#[test]
fn a_draft_asks_for_no_slots_of_states() {
    let mut groups = Groups::new(2);
    let sequence = groups.sequence();
    groups.step(sequence, &ids(6));
    let [full, states] = &groups.0;
    assert!(full.check_room(sequence, 40).is_ok() && states.check_room(sequence, 40).is_ok());
    assert!(states.check_room(sequence + 1, 1).is_err());
}

#[test]
fn tokens_that_were_forgotten_during_a_draft_stay_forgotten() {
    for kept in [0, 1] {
        let mut groups = Groups::new(16);
        groups.0[1].keep_drafted_states(true);
        let sequence = groups.sequence();
        groups.step(sequence, &ids(6));
        let drafts: Vec<_> = groups.0.iter_mut().map(|planner| planner.begin(sequence, None).unwrap()).collect();
        groups.step(sequence, &[6, 71]);
        groups.0.iter_mut().for_each(PagedPlanner::forget_prefixes);
        for (planner, draft) in groups.0.iter_mut().zip(drafts) {
            let plan = planner.plan_end(sequence, draft, Keep::First(kept)).unwrap();
            planner.end(&plan).unwrap();
        }
        groups.step(sequence, &ids(8)[6 + kept as usize..]);
        assert_eq!(groups.found(&ids(20)), 0);
        assert_eq!(groups.0[1].state_ends().unwrap(), vec![0; 16], "no prompt can find a state, {kept} tokens kept");
        groups.0[1].check_invariants(&[]).unwrap();
    }
}
