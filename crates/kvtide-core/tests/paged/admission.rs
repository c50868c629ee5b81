//! Ids that are stated after the tokens were written, and sequences that are admitted with room for prompt and answer.

use kvtide_core::Code;
use kvtide_core::paged::{
    AdmissionRequest, Append, Extra, Extras, Identity, Lacking, MissReason, PagedPlanner, Window, Writer,
    admit_in_groups,
};

use crate::calls::{found, write};

fn append(planner: &mut PagedPlanner, sequence: u64, tokens: u32, ids: Option<&[u32]>) {
    let offsets = [0, tokens];
    let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Direct };
    write(planner, &append, ids);
}

fn ids(tokens: u32) -> Vec<u32> {
    (100..100 + tokens).collect()
}

#[test]
fn ids_that_are_said_later_are_found() {
    for known in 0..=6 {
        for said in 0..=9 {
            let mut planner = PagedPlanner::new(16, 4, 2).unwrap();
            let sequence = planner.create_sequence().unwrap();
            append(&mut planner, sequence, known, Some(&ids(known)));
            append(&mut planner, sequence, 9 - known, None);
            assert_eq!(planner.identify(sequence, &ids(said)).unwrap(), known.max(said));
            assert_eq!(found(&mut planner, &ids(12)), known.max(said) / 4 * 4, "{known}, {said}");
            // What follows is named as if all had been known from the start.
            if said == 9 {
                append(&mut planner, sequence, 3, Some(&[109, 110, 111]));
                assert_eq!(found(&mut planner, &ids(13)), 12);
            }
        }
    }
}

#[test]
fn ids_that_cannot_be_are_refused() {
    let mut planner = PagedPlanner::new(16, 4, 1).unwrap();
    let sequence = planner.create_sequence().unwrap();
    append(&mut planner, sequence, 6, Some(&ids(6)));
    append(&mut planner, sequence, 2, None);
    let why = |planner: &mut PagedPlanner, ids: &[u32]| planner.identify(sequence, ids).unwrap_err();
    assert_eq!(
        why(&mut planner, &[100, 101, 102, 103, 104, 7, 8]).to_string(),
        "tokens is 7, expected the ids of the sequence: another one is known at position 5, or behind it in its window"
    );
    assert_eq!(
        why(&mut planner, &ids(9)).to_string(),
        "tokens.length is 9, expected at most 8, the length of the sequence"
    );
    let draft = planner.begin(sequence, None).unwrap();
    assert_eq!(why(&mut planner, &ids(8)).code(), Code::TransactionOpen);
    planner.end(&planner.plan_end(sequence, draft, kvtide_core::paged::Keep::First(0)).unwrap()).unwrap();
    assert_eq!(planner.identify(9, &ids(8)).unwrap_err().code(), Code::SequenceNotFound);
    assert_eq!(found(&mut planner, &ids(9)), 4);
    assert_eq!(planner.identify(sequence, &ids(8)).unwrap(), 8);
    assert_eq!(found(&mut planner, &ids(9)), 8);
}

#[test]
fn ids_of_what_others_hold_are_never_written_over() {
    let mut planner = PagedPlanner::new(16, 4, 1).unwrap();
    let one = planner.create_sequence().unwrap();
    append(&mut planner, one, 6, None);
    let other = planner.fork(one).unwrap();
    // The other sequence may know them by other ids.
    assert_eq!(planner.identify(one, &ids(6)).unwrap(), 0);
    planner.drop_sequence(other).unwrap();
    let snapshot = planner.snapshot(one).unwrap();
    assert_eq!(planner.identify(one, &ids(6)).unwrap(), 0);
    planner.release(snapshot);
    assert_eq!(planner.identify(one, &ids(6)).unwrap(), 6);
    // A fork that lost its ids, and takes those that are there.
    let draft = planner.begin(one, None).unwrap();
    let offsets = [0, 3];
    let drafted = Append { sequences: &[one], offsets: Some(&offsets), parents: None, writer: Writer::Draft(draft) };
    write(&mut planner, &drafted, Some(&[106, 107, 108]));
    let fork = planner.fork(one).unwrap();
    assert_eq!(planner.identify(fork, &[100, 101, 102, 103, 104, 105, 106, 9]).unwrap(), 6);
    assert_eq!(planner.identify(fork, &ids(9)).unwrap(), 9);
    planner.end(&planner.plan_end(one, draft, kvtide_core::paged::Keep::First(3)).unwrap()).unwrap();
    assert_eq!(found(&mut planner, &ids(10)), 8);
    append(&mut planner, fork, 3, Some(&[109, 110, 111]));
    append(&mut planner, one, 3, Some(&[209, 210, 211]));
    assert_eq!(found(&mut planner, &ids(13)), 12);
}

#[test]
fn what_was_forgotten_gets_no_ids() {
    let mut planner = PagedPlanner::new(16, 4, 1).unwrap();
    let sequence = planner.create_sequence().unwrap();
    append(&mut planner, sequence, 6, None);
    let snapshot = planner.snapshot(sequence).unwrap();
    planner.forget_prefixes();
    assert_eq!(planner.identify(sequence, &ids(6)).unwrap(), 0);
    planner.truncate(sequence, 3).unwrap();
    assert_eq!(planner.identify(sequence, &ids(3)).unwrap(), 0);
    planner.restore(sequence, &snapshot).unwrap();
    planner.release(snapshot);
    assert_eq!(planner.identify(sequence, &ids(6)).unwrap(), 0);
    planner.truncate(sequence, 0).unwrap();
    append(&mut planner, sequence, 6, None);
    assert_eq!(planner.identify(sequence, &ids(6)).unwrap(), 6);
    assert_eq!(found(&mut planner, &ids(6)), 4);
}

#[test]
fn ids_reach_over_what_left_a_window() {
    for (known, sinks) in [(0, 0), (0, 3), (2, 3), (6, 3), (9, 0), (14, 3), (30, 3)] {
        let mut planner = PagedPlanner::new(32, 4, 1).unwrap().sliding(Window::new(6, sinks).unwrap());
        let sequence = planner.create_sequence().unwrap();
        append(&mut planner, sequence, known, Some(&ids(known)));
        (known..30).for_each(|_| append(&mut planner, sequence, 1, None));
        assert_eq!(planner.identify(sequence, &ids(30)).unwrap(), 30, "{known}, {sinks}");
        assert_eq!(planner.common_length(sequence, &ids(30)).unwrap(), 30);
        append(&mut planner, sequence, 2, Some(&[130, 131]));
        assert_eq!(found(&mut planner, &ids(33)), 32, "{known}, {sinks}");
        assert_eq!(planner.common_length(sequence, &[&[1], &ids(33)[1..]].concat()).unwrap(), 0);
    }
}

fn admit(planner: &mut PagedPlanner, asked: AdmissionRequest<'_>) -> Result<(u64, u32), Lacking> {
    let admitted = admit_in_groups(&mut [planner], asked, &Identity::default()).unwrap()?;
    let (held, tokens) = (admitted.held.into_iter().next().unwrap(), admitted.tokens[0]);
    let sequence = planner.create_from(held).unwrap();
    planner.ensure_capacity(&[(sequence, tokens)]).unwrap();
    planner.check_invariants(&[]).unwrap();
    Ok((sequence, tokens))
}

#[test]
fn who_is_admitted_has_room_to_the_end() {
    let mut planner = PagedPlanner::new(8, 4, 1).unwrap();
    let prompt = ids(10);
    let asked = AdmissionRequest { tokens: &prompt, answer: 7, ..AdmissionRequest::default() };
    let (one, tokens) = admit(&mut planner, asked).unwrap();
    assert_eq!((tokens, planner.free_count()), (17, 3));
    append(&mut planner, one, 10, Some(&prompt));
    // Another one with the same start shares two blocks and needs three: with one that stays free, there are not enough.
    let asked_tokens = planner.pool_stats().counters.asked_tokens;
    let refused = admit(&mut planner, AdmissionRequest { watermark: 1, ..asked }).unwrap_err();
    assert_eq!(refused, Lacking { group: 0, needed: 4, free: 3, total: 8 });
    assert_eq!(planner.pool_stats().counters.asked_tokens, asked_tokens);
    assert_eq!(planner.sequence_ids(), [one]);
    let (two, _) = admit(&mut planner, asked).unwrap();
    assert_eq!((planner.sequence_length(two), planner.free_count()), (8, 0));
    let counters = planner.pool_stats().counters;
    assert_eq!((counters.asked_tokens, counters.found_tokens), (20, 8));
    append(&mut planner, two, 9, None);
    append(&mut planner, one, 7, None);
    // Found blocks that are not held count as taken.
    [one, two].iter().for_each(|&sequence| planner.drop_sequence(sequence).unwrap());
    let refused = admit(&mut planner, AdmissionRequest { answer: 23, ..asked }).unwrap_err();
    assert_eq!(refused, Lacking { group: 0, needed: 9, free: 8, total: 8 });
    let (three, _) = admit(&mut planner, AdmissionRequest { answer: 22, ..asked }).unwrap();
    assert_eq!((planner.sequence_length(three), planner.free_count()), (8, 0));
}

#[test]
fn in_a_window_room_is_taken_for_what_is_there_at_once() {
    for (prompt, answer, step, sinks) in
        [(40, 100, 8, 0), (40, 100, 40, 0), (3, 100, 3, 0), (40, 100, 8, 5), (5, 2, 5, 0)]
    {
        let mut planner = PagedPlanner::new(64, 4, 1).unwrap().sliding(Window::new(6, sinks).unwrap());
        let tokens = ids(prompt);
        let asked = AdmissionRequest { tokens: &tokens, answer, step: Some(step), ..AdmissionRequest::default() };
        let (sequence, _) = admit(&mut planner, asked).unwrap();
        let least = planner.free_count();
        let pieces = tokens.chunks(step as usize).map(|piece| piece.len() as u32);
        for piece in pieces.chain(std::iter::repeat_n(1, answer as usize)) {
            append(&mut planner, sequence, piece, None);
            assert!(planner.free_count() >= least, "{prompt} {step} {sinks}: more than was taken");
        }
        assert!(
            64 - least <= (6 + step).div_ceil(4) + 1 + sinks.div_ceil(4),
            "{prompt} {step} {sinks}: {least} are left"
        );
    }
}

#[test]
fn other_extras_are_named_as_the_reason() {
    let mut planner = PagedPlanner::new(8, 2, 1).unwrap();
    let of = |key: &[u8]| {
        let extra = Extras::new(vec![Extra { start: 2, end: 100, key: key.into() }]).unwrap();
        Identity { extra: extra.into(), ..Identity::default() }
    };
    let sequence = planner.create_sequence_of(of(b"one")).unwrap();
    append(&mut planner, sequence, 6, Some(&ids(6)));
    let other = planner.explain(&ids(7), &of(b"two")).unwrap();
    assert_eq!((other.matched, other.missing), (2, Some((1, MissReason::OtherSalt))));
    let plain = planner.explain(&ids(7), &Identity::default()).unwrap();
    assert_eq!((plain.matched, plain.missing), (2, Some((1, MissReason::OtherSalt))));
    let changed = planner.explain(&[100, 101, 102, 9, 104, 105, 106], &of(b"two")).unwrap();
    assert_eq!(changed.missing, Some((1, MissReason::NeverSeen)));
    assert_eq!(planner.explain(&ids(7), &of(b"one")).unwrap().missing, None);
}

#[test]
fn blocks_are_shown_as_they_are_counted() {
    let mut planner = PagedPlanner::new(12, 4, 1).unwrap().sliding(Window::new(4, 0).unwrap());
    let [one, two] = [(); 2].map(|()| planner.create_sequence().unwrap());
    append(&mut planner, one, 10, Some(&ids(10)));
    append(&mut planner, two, 5, None);
    let fork = planner.fork(two).unwrap();
    planner.drop_sequence(one).unwrap();
    let states = planner.block_states().unwrap();
    let counted = |state: u8| states.iter().filter(|&&of| of == state).count() as u32;
    let stats = planner.pool_stats();
    assert_eq!([counted(0), counted(1), counted(2)], [stats.free, stats.cached, stats.active]);
    assert_eq!(planner.blocks_of(two).unwrap(), planner.blocks_of(fork).unwrap());
    assert!(planner.blocks_of(two).unwrap().iter().all(|&block| states[block as usize] == 2));
    append(&mut planner, two, 8, None);
    let blocks = planner.blocks_of(two).unwrap();
    assert_eq!((blocks[0], blocks.len()), (-1, 4));
    assert_eq!(planner.blocks_of(one).unwrap_err().code(), Code::SequenceNotFound);
}
