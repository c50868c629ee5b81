//! Background readers of a cache: it does not change meanwhile, and may be disposed of.

use kvtide_core::Code;
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::buffers::{OwnedSource, Source};
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{
    DType, Error, HostTensor, KvCache, KvCacheOptions, RollbackCache, RotatingCacheOptions, RotatingKvCache, View,
};

use crate::outcome::code;

const FOUR: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

/// A call that would change a cache.
type Change = fn(&mut KvCache) -> Result<(), Error>;

fn tokens() -> HostTensor<'static> {
    HostTensor::new("tokens", bytemuck::cast_slice(&FOUR), DType::F32, &[1, 1, 2, 2]).unwrap()
}

fn kv_cache() -> KvCache {
    let options = KvCacheOptions { head_dim: 2, initial_capacity: 2, max_seq_len: 9, ..Default::default() };
    let mut cache = KvCache::new(options).unwrap();
    cache.update(tokens(), tokens()).unwrap();
    cache
}

#[test]
fn a_growing_cache_that_is_read_does_not_change() {
    let mut cache = kv_cache();
    let before = cache.snapshot().unwrap();
    let view = cache.get_kv().unwrap().k.pinned().unwrap();
    let more = view.clone();
    drop(view);
    let calls: [Change; 4] = [
        |cache| cache.update(tokens(), tokens()).map(|_| ()),
        |cache| cache.increment_seq_len(0),
        |cache| cache.truncate(1),
        KvCache::reset,
    ];
    for call in calls {
        assert_eq!(code(call(&mut cache)), Err(Code::Busy));
    }
    assert_eq!(code(cache.restore(&before)), Err(Code::Busy));
    assert_eq!(code(cache.restore(&kv_cache().snapshot().unwrap())), Err(Code::Busy));
    assert_eq!(cache.get_kv().unwrap().k.to_f32().unwrap(), FOUR);
    assert_eq!(cache.seq_len(), 2);
    cache.check_invariants().unwrap();
    drop(more);
    for call in calls {
        assert_eq!(code(call(&mut cache)), Ok(()));
    }
}

#[test]
fn a_window_that_is_read_does_not_change() {
    let options = RotatingCacheOptions { max_seq_len: 3, ..Default::default() };
    let mut cache = RotatingKvCache::new(options).unwrap();
    let view = cache.append(tokens(), tokens()).unwrap().v.pinned().unwrap();
    let snapshot = cache.snapshot().unwrap();
    assert_eq!(code(cache.append(tokens(), tokens())), Err(Code::Busy));
    assert_eq!(code(cache.try_set_len(1)), Err(Code::Busy));
    assert_eq!(code(cache.set_len(1)), Err(Code::Busy));
    assert_eq!(code(cache.reset()), Err(Code::Busy));
    assert_eq!(code(cache.restore(&snapshot)), Err(Code::Busy));
    assert_eq!(cache.current_seq_len(), 2);
    drop(view);
    cache.append(tokens(), tokens()).unwrap();
}

#[test]
fn tentative_tokens_that_are_read_are_neither_committed_nor_taken_back() {
    let mut cache = RollbackCache::new(Default::default()).unwrap();
    let view = cache.append(tokens(), tokens(), None).unwrap().k.pinned().unwrap();
    let mark = cache.snapshot();
    assert_eq!(code(cache.append(tokens(), tokens(), None)), Err(Code::Busy));
    assert_eq!(code(cache.commit(1)), Err(Code::Busy));
    assert_eq!(code(cache.rollback(&mark)), Err(Code::Busy));
    assert_eq!(code(cache.accept_path(&[0])), Err(Code::Busy));
    assert_eq!((cache.total_len(), cache.committed_len()), (2, 0));
    drop(view);
    cache.commit(2).unwrap();
}

#[test]
fn a_pinned_view_outlives_its_cache_and_frees_its_memory_at_last() {
    let budget = Budget::new(None);
    let options =
        KvCacheOptions { head_dim: 2, initial_capacity: 2, budget: Some(budget.clone()), ..Default::default() };
    let mut cache = KvCache::new(options).unwrap();
    let kv = cache.update(tokens(), tokens()).unwrap();
    let pinned = kv.k.pinned().unwrap();
    cache.close();
    drop(cache);
    assert_eq!(code(kv.k.to_f32()), Err(Code::Disposed));
    assert_eq!(code(kv.k.pinned()), Err(Code::Disposed));
    assert_eq!(pinned.to_f32().unwrap(), FOUR);
    drop(kv);
    assert!(budget.used() > 0);
    drop(pinned);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_stale_view_cannot_be_pinned_and_leaves_no_reader() {
    let mut cache = kv_cache();
    let view = cache.get_kv().unwrap().k;
    cache.truncate(0).unwrap();
    cache.update(tokens(), tokens()).unwrap();
    assert_eq!(code(view.pinned()), Err(Code::StaleView));
    cache.truncate(0).unwrap();
}

#[test]
fn an_owned_source_is_a_copy_of_the_part_that_is_read() {
    let budget = Budget::new(None);
    let source = Source::Host(tokens().with_range(1, 2));
    let owned = OwnedSource::new(&source, "k", &budget).unwrap();
    assert_eq!(budget.used(), 8);
    let copy = |source| match source {
        Source::Host(host) => View::from_host(&host, &Budget::process()).unwrap(),
        _ => unreachable!("a copy is the caller's memory"),
    };
    let copy = copy(owned.source().unwrap());
    assert_eq!((copy.shape(), copy.to_f32().unwrap()), (&[1, 1, 1, 2][..], vec![3.0, 4.0]));
    drop(owned);
    assert_eq!(budget.used(), 0);
    let short = Budget::new(Some(7));
    assert_eq!(code(OwnedSource::new(&source, "k", &short)), Err(Code::OutOfMemory));
}

#[test]
fn attention_on_another_thread_gives_what_it_gives_here() {
    let mut cache = kv_cache();
    let kv = cache.get_kv().unwrap();
    let here = attend(tokens(), &kv, &AttendOptions::default()).unwrap();
    let [q, k, v] = [Source::Host(tokens()), (&kv.k).into(), (&kv.v).into()]
        .map(|source| OwnedSource::new(&source, "source", &Budget::process()).unwrap());
    cache.close();
    let there = std::thread::spawn(move || {
        let rows = kvtide_tensor::attention::KvRows::Batched { k: k.source().unwrap(), v: v.source().unwrap() };
        attend(q.source().unwrap(), rows, &AttendOptions::default()).unwrap().out.to_f32().unwrap()
    });
    assert_eq!(here.out.to_f32().unwrap(), there.join().unwrap());
}
