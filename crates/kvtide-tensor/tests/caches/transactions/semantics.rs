//! The semantics of transactions: one test body for every kind of cache.

use kvtide_core::{COUNT_MAX, Code};
use kvtide_tensor::buffers::Source;
use kvtide_tensor::{BeginOptions, DType, Error, KvTransaction, Transaction};

use super::kind::{Kind, Setup};
use crate::outcome::code;
use crate::tokens::{Id, Rows, tensor};

fn rows() -> Rows {
    Rows::new(&[1, 2, 1, 3], 2, DType::F32)
}

pub fn setup(window: u32, sinks: u32, slack: u32) -> Setup {
    Setup { rows: rows(), window, sinks, slack: Some(slack), capacity: 2, max: COUNT_MAX, stable: false, limit: None }
}

/// A cache, and how many tokens it had been given.
pub fn subject<C: Kind>(setup: &Setup, tokens: Id) -> C {
    let mut cache = C::new(setup).unwrap();
    for id in 0..tokens {
        feed(&mut cache, &[id]);
    }
    cache
}

fn feed<C: Kind>(cache: &mut C, ids: &[Id]) {
    let [k, v] = [0, 1].map(|part| rows().tensor(part, ids));
    cache.feed(ids.len(), [Source::from(&k), Source::from(&v)]).unwrap();
}

pub fn draft<T: KvTransaction>(draft: &mut T, ids: &[Id], parents: Option<&[i32]>) -> Result<T::Seen, Error> {
    let [k, v] = [0, 1].map(|part| rows().tensor(part, ids));
    draft.append(&k, &v, parents)
}

/// The content of a cache, as bytes.
pub fn shown<C: Kind>(cache: &C) -> Option<[Vec<u8>; 2]> {
    cache.invariants().unwrap();
    cache.visible().unwrap().map(|seen| C::bytes(&seen).unwrap())
}

pub fn bytes(ids: &[Id]) -> [Vec<u8>; 2] {
    [0, 1].map(|part| rows().bytes(part, ids))
}

/// The tokens among `ids` that are retained, in their order.
pub fn retained<C: Kind>(setup: &Setup, ids: &[Id]) -> Vec<Id> {
    let (window, sinks, all) = (setup.window as usize, setup.sinks as usize, ids.len());
    let keeps = |place: usize| !C::WINDOW || all <= window + sinks || place < sinks || place + window >= all;
    (0..all).filter(|&place| keeps(place)).map(|place| ids[place]).collect()
}

/// Caches that were given nothing, a few tokens, more than a window holds, and many times that.
fn every_start(body: impl Fn(&Setup, Id)) {
    for (window, sinks, slack) in [(4, 0, 3), (4, 2, 0), (5, 1, 64)] {
        for tokens in [0, 3, 7, 50] {
            body(&setup(window, sinks, slack), tokens);
        }
    }
}

pub fn the_first_tokens_are_kept_and_the_rest_leaves_no_trace<C: Kind>() {
    every_start(|setup, tokens| {
        for kept in [None, Some(0), Some(1), Some(3), Some(5)] {
            let (mut cache, mut twin): (C, C) = (subject(setup, tokens), subject(setup, tokens));
            let mut open = cache.begin(BeginOptions::default()).unwrap();
            draft(&mut open, &[100, 101, 102], None).unwrap();
            let seen = draft(&mut open, &[103, 104], None).unwrap();
            assert_eq!(open.drafted().unwrap(), 5);
            feed(&mut twin, &[100, 101, 102]);
            let [k, v] = [0, 1].map(|part| rows().tensor(part, &[103, 104]));
            let same = twin.feed(2, [Source::from(&k), Source::from(&v)]).unwrap();
            assert_eq!(C::bytes(&seen).unwrap(), C::bytes(&same).unwrap(), "{setup:?} {tokens}");
            assert_eq!(shown(open.cache()), shown(&twin), "reads show what is drafted");
            open.commit(kept).unwrap();
            assert_eq!(code(open.commit(None)), Err(Code::TransactionClosed));
            drop(open);
            let all: Vec<Id> = (0..tokens).chain(100..100 + kept.unwrap_or(5)).collect();
            assert_eq!(cache.length(), all.len() as u64);
            let mut direct: C = subject(setup, tokens);
            (100..100 + kept.unwrap_or(5)).for_each(|id| feed(&mut direct, &[id]));
            assert_eq!(shown(&cache), shown(&direct), "{setup:?} {tokens} {kept:?}");
            feed(&mut cache, &[200]);
            feed(&mut direct, &[200]);
            assert_eq!(shown(&cache), Some(bytes(&retained::<C>(setup, &[&all[..], &[200]].concat()))));
            assert_eq!(shown(&cache), shown(&direct));
        }
    });
}

pub fn rolled_back_or_dropped_it_is_as_before<C: Kind>() {
    every_start(|setup, tokens| {
        for (long, explicit) in [(1, true), (1, false), (4, true), (4, false), (200, true), (200, false)] {
            let mut cache: C = subject(setup, tokens);
            let (before, seen, latest) = (shown(&cache), cache.visible().unwrap(), cache.latest());
            let latest = latest.map(|seen| C::bytes(&seen).unwrap());
            let mut open = cache.begin(BeginOptions::default()).unwrap();
            draft(&mut open, &(100..100 + long).collect::<Vec<_>>(), None).unwrap();
            if explicit {
                open.rollback().unwrap();
                assert_eq!(code(open.rollback()), Err(Code::TransactionClosed));
            }
            drop(open);
            assert!(shown(&cache) == before, "{setup:?} {tokens} {long}");
            assert_eq!(cache.length(), tokens);
            // Earlier views are still valid, unless the window had to move for the draft.
            let old = [seen.map(|seen| C::bytes(&seen)), cache.latest().map(|seen| C::bytes(&seen))];
            for (read, expected) in old.into_iter().zip([before, latest]) {
                match read {
                    Some(Err(error)) => assert_eq!(error.code(), Code::StaleView),
                    read => assert!(read.map(Result::unwrap) == expected, "{setup:?} {tokens} {long}"),
                }
            }
            feed(&mut cache, &[300]);
            let all: Vec<Id> = (0..tokens).chain([300]).collect();
            assert_eq!(shown(&cache), Some(bytes(&retained::<C>(setup, &all))));
        }
    });
}

pub fn a_child_commits_into_its_parent<C: Kind>() {
    every_start(|setup, tokens| {
        let mut cache: C = subject(setup, tokens);
        let before = shown(&cache);
        let mut parent = cache.begin(BeginOptions::default()).unwrap();
        draft(&mut parent, &[100, 101], None).unwrap();
        let mut child = parent.begin(BeginOptions::default()).unwrap();
        draft(&mut child, &[102, 103, 104], None).unwrap();
        child.commit(Some(2)).unwrap();
        drop(child);
        assert_eq!(parent.drafted().unwrap(), 4);
        let mut child = parent.begin(BeginOptions::default()).unwrap();
        draft(&mut child, &[105, 106, 107], Some(&[-1, -1, 1])).unwrap();
        let mut grandchild = child.begin(BeginOptions::default()).unwrap();
        draft(&mut grandchild, &[108], None).unwrap();
        drop(grandchild);
        child.commit_path(&[1, 2]).unwrap();
        drop(child);
        assert_eq!(parent.drafted().unwrap(), 6);
        parent.commit_path(&[0, 1, 2, 3, 4]).unwrap();
        drop(parent);
        let all: Vec<Id> = (0..tokens).chain([100, 101, 102, 103, 106]).collect();
        assert_eq!(shown(&cache), Some(bytes(&retained::<C>(setup, &all))), "{setup:?} {tokens}");

        let mut cache: C = subject(setup, tokens);
        let mut parent = cache.begin(BeginOptions::default()).unwrap();
        draft(&mut parent, &[100], None).unwrap();
        let mut child = parent.begin(BeginOptions::default()).unwrap();
        draft(&mut child, &[101, 102], None).unwrap();
        child.commit(None).unwrap();
        drop(child);
        drop(parent);
        assert!(shown(&cache) == before, "{setup:?} {tokens}");
    });
}

pub fn a_path_is_kept_in_order_and_what_is_none_changes_nothing<C: Kind>() {
    every_start(|setup, tokens| {
        //  0 ─┬─ 2         1 ── 4
        //     └─ 3 ── 5
        let parents = [-1, -1, 0, 0, 1, 3];
        let ids: Vec<Id> = (100..106).collect();
        for (path, kept) in [(&[0, 3, 5][..], &[100, 103, 105][..]), (&[1, 4], &[101, 104]), (&[], &[])] {
            let mut cache: C = subject(setup, tokens);
            let mut open = cache.begin(BeginOptions::default()).unwrap();
            draft(&mut open, &ids[..2], Some(&parents[..2])).unwrap();
            let seen = draft(&mut open, &ids[2..], Some(&parents[2..])).unwrap();
            let base = retained::<C>(setup, &(0..tokens).collect::<Vec<_>>());
            let everything = [&base[..], &ids].concat();
            assert_eq!(C::bytes(&seen).unwrap(), bytes(&everything), "a tree is shown with all that is kept");
            let mask = open.tree_mask().unwrap();
            assert_eq!(mask.shape(), [ids.len(), everything.len()]);
            let positions: Vec<u64> = [0, 0, 1, 1, 1, 2].iter().map(|depth| tokens + depth).collect();
            assert_eq!(open.tree_positions().unwrap(), positions);
            let before = shown(open.cache());
            for wrong in [&[2][..], &[0, 1], &[0, 2, 5], &[3, 0], &[0, 0], &[6], &[COUNT_MAX]] {
                assert_eq!(code(open.commit_path(wrong)), Err(Code::InvalidPath));
                assert_eq!((shown(open.cache()), open.drafted().unwrap()), (before.clone(), 6));
            }
            open.commit_path(path).unwrap();
            drop(open);
            let all: Vec<Id> = (0..tokens).chain(kept.iter().copied()).collect();
            let expected = (!all.is_empty()).then(|| bytes(&retained::<C>(setup, &all)));
            assert_eq!(shown(&cache), expected, "{setup:?} {tokens} {path:?}");
        }
    });
}

pub fn other_changes_are_refused_while_it_is_open<C: Kind>() {
    every_start(|setup, tokens| {
        let mut cache: C = subject(setup, tokens);
        let [k, v] = [0, 1].map(|part| rows().tensor(part, &[200]));
        let id = cache.begin_draft(None, BeginOptions::default()).unwrap();
        cache.append_draft(id, &k, &v, None).unwrap();
        let before = shown(&cache);
        for (name, change) in C::changes() {
            let done = code(change(&mut cache, [Source::from(&k), Source::from(&v)]));
            assert_eq!(done, Err(Code::TransactionOpen), "{name}");
            assert_eq!(shown(&cache), before, "{name}");
        }
        assert_eq!(code(cache.begin_draft(None, BeginOptions::default())), Err(Code::TransactionOpen));
        let child = cache.begin_draft(Some(id), BeginOptions::default()).unwrap();
        assert_eq!(code(cache.append_draft(id, &k, &v, None)), Err(Code::TransactionOpen));
        assert_eq!(code(cache.commit_draft(id, None)), Err(Code::TransactionOpen));
        assert_eq!(code(cache.commit_draft_path(id, &[])), Err(Code::TransactionOpen));
        assert_eq!(code(cache.rollback_draft(id)), Err(Code::TransactionOpen));
        assert_eq!(code(cache.draft_positions(id)), Err(Code::TransactionOpen));
        assert_eq!(code(cache.begin_draft(Some(id), BeginOptions::default())), Err(Code::TransactionOpen));
        assert_eq!((cache.drafted(id).unwrap(), cache.drafted(child).unwrap()), (1, 0));
        cache.drop_draft(id);
        for ended in [id, child] {
            assert_eq!(code(cache.append_draft(ended, &k, &v, None)), Err(Code::TransactionClosed));
            assert_eq!(code(cache.commit_draft(ended, None)), Err(Code::TransactionClosed));
            assert_eq!(code(cache.commit_draft_path(ended, &[])), Err(Code::TransactionClosed));
            assert_eq!(code(cache.rollback_draft(ended)), Err(Code::TransactionClosed));
            assert_eq!(code(cache.drafted(ended)), Err(Code::TransactionClosed));
            assert_eq!(code(cache.draft_positions(ended)), Err(Code::TransactionClosed));
            assert_eq!(code(cache.begin_draft(Some(ended), BeginOptions::default())), Err(Code::TransactionClosed));
            cache.drop_draft(ended);
        }
        for (name, change) in C::changes() {
            let done = code(change(&mut cache, [Source::from(&k), Source::from(&v)]));
            assert_ne!(done, Err(Code::TransactionOpen), "{name}");
        }
    });
}

pub fn a_refused_call_leaves_it_open_and_as_it_was<C: Kind>() {
    let mut cache: C = subject(&setup(4, 1, 2), 9);
    let mut open: Transaction<'_, C> = cache.begin(BeginOptions::default()).unwrap();
    draft(&mut open, &[100, 101], None).unwrap();
    let before = shown(open.cache());
    let error = open.commit(Some(3)).unwrap_err();
    assert_eq!(error.to_string(), "n is 3, expected at most 2, the number of drafted tokens");
    assert_eq!(code(open.commit(Some(u64::MAX))), Err(Code::InvalidArgument));
    for parents in [&[-1][..], &[-1, 3], &[-2, -1], &[-1, 1, 2]] {
        assert_eq!(code(draft(&mut open, &[1, 2], Some(parents))), Err(Code::InvalidArgument));
    }
    let [k, short] = [rows().tensor(0, &[1, 2]), rows().tensor(1, &[1])];
    assert_eq!(code(open.append(&k, &short, None)), Err(Code::ShapeMismatch));
    let half = tensor(DType::F16, &[0; 12], &[1, 2, 1, 3]);
    assert_eq!(code(open.append(&half, &half, None)), Err(Code::DtypeMismatch));
    assert_eq!((shown(open.cache()), open.drafted().unwrap()), (before, 2));
    open.commit(Some(2)).unwrap();
}

pub fn an_empty_cache_takes_another_shape_after_a_roll_back<C: Kind>() {
    let mut cache: C = subject(&setup(4, 1, 2), 0);
    let id = cache.begin_draft(None, BeginOptions { max_tokens: Some(3) }).unwrap();
    let [k, v] = [0, 1].map(|part| rows().tensor(part, &[1, 2]));
    cache.append_draft(id, &k, &v, None).unwrap();
    cache.rollback_draft(id).unwrap();
    assert_eq!((shown(&cache), cache.length()), (None, 0));
    let other = Rows::new(&[1, 1, 1, 5], 2, DType::F16);
    let [k, v] = [0, 1].map(|part| other.tensor(part, &[1, 2]));
    let expected = if C::SHAPED { Err(Code::ShapeMismatch) } else { Ok(()) };
    let id = cache.begin_draft(None, BeginOptions::default()).unwrap();
    assert_eq!(code(cache.append_draft(id, &k, &v, None)), expected);
    cache.drop_draft(id);
    cache.invariants().unwrap();
    assert_eq!(code(cache.feed(2, [Source::from(&k), Source::from(&v)])), expected);
}

pub fn room_that_is_asked_for_is_there<C: Kind>() {
    for (window, slack, asked) in [(4, 3, 10), (16, 16, 9), (5, 0, 40)] {
        let mut cache: C = subject(&setup(window, 1, slack), 33);
        let before = shown(&cache);
        let mut open = cache.begin(BeginOptions { max_tokens: Some(asked) }).unwrap();
        let stats = open.cache().stats();
        assert_eq!(shown(open.cache()), before);
        for id in 0..u64::from(asked) {
            draft(&mut open, &[id + 100], None).unwrap();
        }
        assert_eq!(open.cache().stats(), stats, "no append took memory, and none moved a row");
        draft(&mut open, &(0..50).map(|id| id + 200).collect::<Vec<_>>(), None).unwrap();
        open.rollback().unwrap();
        drop(open);
        assert_eq!(shown(&cache), before);
    }
}

pub fn memory_that_runs_out_changes_nothing<C: Kind>() {
    let token = 2 * rows().token_bytes();
    let setup = Setup { limit: Some(40 * token), capacity: 4, ..setup(8, 2, 4) };
    let mut cache: C = subject(&setup, 12);
    let before = shown(&cache);
    assert_eq!(code(cache.begin(BeginOptions { max_tokens: Some(500) })), Err(C::FULL));
    assert_eq!((shown(&cache), cache.length()), (before.clone(), 12));
    let mut open = cache.begin(BeginOptions::default()).unwrap();
    draft(&mut open, &[100, 101], None).unwrap();
    assert_eq!(code(draft(&mut open, &(0..500).collect::<Vec<_>>(), None)), Err(C::FULL));
    assert_eq!(open.drafted().unwrap(), 2);
    open.commit(Some(1)).unwrap();
    drop(open);
    let all: Vec<Id> = (0..12).chain([100]).collect();
    assert_eq!(shown(&cache), Some(bytes(&retained::<C>(&setup, &all))));
}
