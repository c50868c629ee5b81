//! The content of a view over time, and the cases in which reading it fails.

use kvtide_core::Code;
use kvtide_tensor::{KvCache, KvCacheOptions, RollbackCache, RotatingCache, RotatingCacheOptions, View};

use crate::numbers::{shown, tokens};
use crate::outcome::code;
use crate::tokens::data;

fn window(max_seq_len: u32, sinks: u32, slack: u32) -> RotatingCache {
    let options = RotatingCacheOptions { max_seq_len, sinks, slack: Some(slack), ..Default::default() };
    RotatingCache::new(options).unwrap()
}

fn kv(initial_capacity: u32, numbers: std::ops::Range<u32>) -> KvCache {
    let options = KvCacheOptions { initial_capacity, max_seq_len: 64, ..Default::default() };
    let mut cache = KvCache::new(options).unwrap();
    cache.update(&tokens(numbers.clone()), &tokens(numbers)).unwrap();
    cache
}

/// Every way to read a view.
fn readings(view: &View) -> [Result<(), Code>; 8] {
    let mut out = vec![0; view.bytes()];
    let budget = kvtide_tensor::runtime::Budget::process();
    let mut cache = window(8, 0, 0);
    [
        code(view.check()),
        code(view.to_bytes()),
        code(view.to_f32()),
        code(view.read_into(&mut out)),
        code(view.to_tensor()),
        code(view.tensor()),
        code(view.copied(&budget)),
        code(cache.append(view)),
    ]
}

#[test]
fn a_query_of_several_after_the_window_has_wrapped_sees_its_whole_window() {
    for slack in [0, 1, 2, 8] {
        let mut cache = window(4, 0, slack);
        cache.append(&tokens(0..4)).unwrap();
        for token in 4..9 {
            cache.append(&tokens([token])).unwrap();
        }
        let seen = cache.append(&tokens(9..12)).unwrap();
        assert_eq!(shown(&seen), [5, 6, 7, 8, 9, 10, 11], "slack {slack}");
        assert_eq!(
            (seen.key_positions(), shown(&cache.current_data().unwrap().unwrap())),
            (&[5][..], vec![8, 9, 10, 11])
        );
    }
}

#[test]
fn a_result_that_the_slack_cannot_hold_never_goes_stale() {
    for sinks in [0, 2] {
        let mut cache = window(4, sinks, 2);
        cache.append(&tokens(0..8)).unwrap();
        let before = cache.stats();
        let seen = cache.append(&tokens(8..20)).unwrap();
        let expected = shown(&seen);
        assert_eq!(expected.len() as u32, 4 + sinks + 12);
        assert!(cache.stats().held_bytes > before.held_bytes);
        for token in 20..80 {
            cache.append(&tokens([token])).unwrap();
        }
        cache.reset().unwrap();
        cache.append(&tokens(0..3)).unwrap();
        assert_eq!((shown(&seen), seen.is_stale()), (expected.clone(), false));
        cache.close();
        assert_eq!(shown(&seen), expected, "it is a tensor of its own");
        drop(seen);
        assert_eq!(cache.stats().used_bytes, 0);
    }
}

#[test]
fn sinks_and_window_are_two_runs_that_read_as_one() {
    let mut cache = window(4, 2, 3);
    let whole = cache.append(&tokens(0..6)).unwrap();
    assert_eq!((whole.runs().iter().count(), whole.key_positions()), (1, &[0][..]));
    assert_eq!(shown(&whole.narrow(2, 1, 4).unwrap()), [1, 2, 3, 4]);
    cache.append(&tokens(6..8)).unwrap();
    let view = cache.append(&tokens([8])).unwrap();
    assert_eq!((shown(&view), view.shape()), (vec![0, 1, 5, 6, 7, 8], &[1, 1, 6, 1][..]));
    assert_eq!((view.runs().iter().count(), view.key_positions()), (2, &[0, 5][..]));
    assert!(!view.is_contiguous());
    assert_eq!(code(view.tensor()), Err(Code::NotContiguous));
    assert_eq!(code(view.as_ptr()), data(Err(Code::NotContiguous)));
    let copy = view.to_tensor().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(copy, [0., 1., 5., 6., 7., 8.]);
    let part = view.narrow(2, 1, 3).unwrap();
    assert_eq!((shown(&part), part.key_positions()), (vec![1, 5, 6], &[1, 5][..]));
    let back = view.narrow(2, 3, 2).unwrap();
    assert_eq!((shown(&back), back.key_positions(), code(back.tensor())), (vec![6, 7], &[6][..], Ok(())));
    let budget = kvtide_tensor::runtime::Budget::process();
    assert_eq!(shown(&view.reshape(&[3, 2], &budget).unwrap()), [0, 1, 5, 6, 7, 8]);
    let prefill = cache.append(&tokens(9..12)).unwrap();
    assert_eq!((shown(&prefill).len(), prefill.key_positions()), (9, &[0, 5][..]));
}

#[test]
fn a_stale_view_refuses_every_reading() {
    let mut cache = kv(8, 0..6);
    let all = cache.get_kv().unwrap().k;
    let (kept, cut) = (all.narrow(2, 0, 4).unwrap(), all.narrow(2, 4, 2).unwrap());
    cache.truncate(4).unwrap();
    assert_eq!(readings(&all), [Ok(()); 8], "nothing was written yet");
    cache.update(&tokens([20]), &tokens([20])).unwrap();
    assert_eq!(readings(&all), [Err(Code::StaleView); 8]);
    assert_eq!(readings(&cut), [Err(Code::StaleView); 8]);
    assert_eq!((readings(&kept), shown(&kept)), ([Ok(()); 8], vec![0, 1, 2, 3]));
    assert_eq!(code(cache.get_kv().unwrap().k.narrow(2, 5, 1)), Err(Code::InvalidArgument));
    assert_eq!(readings(&all.narrow(2, 0, 4).unwrap()), [Ok(()); 8], "the part that was not written");
}

#[test]
fn live_windows_are_never_stale() {
    let mut cache = kv(8, 0..6);
    let raw = cache.raw().unwrap().k;
    let mut sliding = window(4, 1, 2);
    sliding.append(&tokens(0..3)).unwrap();
    for token in 3..9 {
        sliding.append(&tokens([token])).unwrap();
    }
    let all = sliding.all_data().unwrap().unwrap();
    cache.truncate(1).unwrap();
    cache.update(&tokens([20, 21]), &tokens([20, 21])).unwrap();
    for token in 9..30 {
        sliding.append(&tokens([token])).unwrap();
        assert_eq!(readings(&all), [Ok(()); 8]);
    }
    assert_eq!((readings(&raw), shown(&raw)), ([Ok(()); 8], vec![0, 20, 21, 3, 4, 5, 0, 0]));
    assert_eq!((raw.shape(), all.shape()), (&[1, 1, 8, 1][..], &[1, 1, 7, 1][..]));
    assert!(shown(&all).contains(&29));
}

#[test]
fn a_closed_cache_refuses_its_views_and_every_call() {
    let mut cache = kv(4, 0..3);
    let (view, raw) = (cache.get_kv().unwrap().k, cache.raw().unwrap().v);
    let snapshot = cache.snapshot().unwrap();
    cache.close();
    cache.close();
    assert_eq!(readings(&view), [Err(Code::Disposed); 8]);
    assert_eq!(readings(&raw), [Err(Code::Disposed); 8]);
    let one = tokens([1]);
    let refused = [
        code(cache.update(&one, &one)),
        code(cache.get_kv()),
        code(cache.raw()),
        code(cache.increment_seq_len(1)),
        code(cache.truncate(0)),
        code(cache.reset()),
        code(cache.snapshot()),
        code(cache.restore(&snapshot)),
    ];
    assert_eq!(refused, [Err(Code::Disposed); 8]);
    assert_eq!(cache.check_invariants(), Ok(()));
    drop((view, raw));
    assert_eq!((cache.stats().buffer_bytes, cache.stats().held_bytes), (0, 4 * 8), "the snapshot keeps its rows");
    drop(snapshot);
    assert_eq!(cache.stats().used_bytes, 0);
}

#[test]
fn closed_rotating_and_rollback_caches_refuse_every_call() {
    let mut cache = window(4, 0, 2);
    let view = cache.append(&tokens(0..3)).unwrap();
    let snapshot = cache.snapshot().unwrap();
    cache.close();
    assert_eq!(readings(&view), [Err(Code::Disposed); 8]);
    let refused = [
        code(cache.append(&tokens([1]))),
        code(cache.append(&tokens([]))),
        code(cache.current_data()),
        code(cache.all_data()),
        code(cache.try_set_len(1)),
        code(cache.set_len(1)),
        code(cache.reset()),
        code(cache.snapshot()),
        code(cache.restore(&snapshot)),
        code(cache.accepted_append_from_batched_append(&snapshot, 3, 0, 1)),
    ];
    assert_eq!(refused, [Err(Code::Disposed); 10]);
    assert_eq!(
        shown(&RotatingCache::restore_from_snapshot(&snapshot, None, 3).unwrap().current_data().unwrap().unwrap()),
        [0, 1, 2]
    );
    let mut cache = RollbackCache::new(Default::default()).unwrap();
    let (one, mark) = (tokens([1]), cache.snapshot());
    let seen = cache.append(&one, &one, None).unwrap();
    cache.close();
    assert_eq!(readings(&seen.v), [Err(Code::Disposed); 8]);
    let refused = [
        code(cache.append(&one, &one, None)),
        code(cache.commit(1)),
        code(cache.rollback(&mark)),
        code(cache.current()),
        code(cache.accept_path(&[0])),
    ];
    assert_eq!(refused, [Err(Code::Disposed); 5]);
}

#[test]
fn parts_out_of_range_are_refused() {
    let view = kv(4, 0..3).get_kv().unwrap().v;
    for (axis, start, len) in [(4, 0, 1), (2, 4, 0), (2, 0, 4), (2, 3, 1), (2, usize::MAX, 1), (2, 1, usize::MAX)] {
        assert_eq!(code(view.narrow(axis, start, len)), Err(Code::InvalidArgument), "{axis} {start} {len}");
    }
    let budget = kvtide_tensor::runtime::Budget::process();
    assert_eq!(code(view.reshape(&[2, 2], &budget)), Err(Code::ShapeMismatch));
    assert_eq!(code(view.reshape(&[1; 9], &budget)), Err(Code::ShapeMismatch));
    assert_eq!(code(view.read_into(&mut [0; 11])), Err(Code::InvalidArgument));
    let empty = view.narrow(2, 3, 0).unwrap().narrow(1, 1, 0).unwrap();
    assert_eq!((readings(&empty)[..7].to_vec(), code(empty.as_ptr())), (vec![Ok(()); 7], data(Ok(()))));
}
