//! Caches of one layer: a loaded cache equals the saved one, and goes on in the same way.

use kvtide_core::Code;
use kvtide_files::{Place, Save, Sink, Source, TensorFile, Watch};
use kvtide_tensor::{
    DType, HostTensor, KvCache, KvCacheOptions, RollbackCache, RollbackCacheOptions, Rotating, RotatingCacheOptions,
    RotatingKvCache, View,
};

use crate::world::{Random, seed};

fn bytes(save: Save) -> Source {
    Source::bytes(save.to_sink(Sink::memory(), &Watch::default()).unwrap().1)
}

/// Returns rows `[2, 2, n, 3]` of floats that count up.
fn rows(from: usize, n: usize) -> Vec<u8> {
    (from * 100..from * 100 + 2 * 2 * n * 3).flat_map(|number| (number as f32).to_ne_bytes()).collect()
}

fn tensor(bytes: &[u8]) -> HostTensor<'_> {
    HostTensor::new("k", bytes, DType::F32, &[2, 2, bytes.len() / 48, 3]).unwrap()
}

fn shown(views: &[View]) -> Vec<(Vec<usize>, Vec<u8>)> {
    views.iter().map(|view| (view.shape().to_vec(), view.to_bytes().unwrap())).collect()
}

#[test]
fn growing_caches() {
    for tokens in [0, 1, 5, 40] {
        let options =
            KvCacheOptions { batch_size: 2, num_kv_heads: 2, head_dim: 3, max_seq_len: 64, ..Default::default() };
        let mut cache = KvCache::new(KvCacheOptions { initial_capacity: 4, ..options }).unwrap();
        if tokens > 0 {
            cache.update(tensor(&rows(1, tokens)), tensor(&rows(2, tokens))).unwrap();
        }
        let file = TensorFile::kv_cache(bytes(Save::kv_cache(&cache).unwrap()), &Watch::default()).unwrap();
        let mut again = file.to_kv_cache(Place::default()).unwrap();
        assert_eq!((again.seq_len(), again.capacity(), again.max_seq_len()), (cache.seq_len(), cache.capacity(), 64));
        for cache in [&mut cache, &mut again] {
            cache.update(tensor(&rows(3, 7)), tensor(&rows(4, 7))).unwrap();
        }
        let [one, other] = [cache.get_kv().unwrap(), again.get_kv().unwrap()];
        assert_eq!(shown(&[one.k, one.v]), shown(&[other.k, other.v]));
        again.check_invariants().unwrap();
    }
}

#[test]
fn rotating_caches_at_every_length() {
    for sinks in [0, 2] {
        for seed in 0..60 {
            let mut random = Random(seed);
            let options = RotatingCacheOptions { max_seq_len: 6, sinks, ..Default::default() };
            let (mut one, mut pair) =
                (Rotating::<1>::new(options.clone()).unwrap(), RotatingKvCache::new(options).unwrap());
            for from in 0..random.below(7) as usize {
                let n = random.below(5) as usize;
                one.append(tensor(&rows(from, n))).unwrap();
                pair.append(tensor(&rows(from, n)), tensor(&rows(from + 50, n))).unwrap();
            }
            let file = TensorFile::rotating(bytes(Save::rotating(&one).unwrap()), 1, &Watch::default()).unwrap();
            let mut one_again = file.to_rotating::<1>(Place::default()).unwrap();
            let file = TensorFile::rotating(bytes(Save::rotating(&pair).unwrap()), 2, &Watch::default()).unwrap();
            let mut pair_again = file.to_rotating::<2>(Place::default()).unwrap();
            for _ in 0..6 {
                assert_eq!(one_again.current_seq_len(), one.current_seq_len(), "{seed}");
                assert_eq!(one_again.retained_len(), one.retained_len(), "{seed}");
                let shows = [one.retained().unwrap(), one_again.retained().unwrap()].map(|of| of.map(|of| shown(&of)));
                assert!(shows[0] == shows[1] || one.current_seq_len() == 0, "{seed}");
                let shows =
                    [pair.retained().unwrap(), pair_again.retained().unwrap()].map(|of| of.map(|of| shown(&of)));
                assert!(shows[0] == shows[1] || one.current_seq_len() == 0, "{seed}");
                let n = 1 + random.below(4) as usize;
                let seen = [one.append(tensor(&rows(9, n))), one_again.append(tensor(&rows(9, n)))];
                let [seen, again] = seen.map(|view| shown(&[view.unwrap()]));
                assert_eq!(seen, again, "{seed}");
                for cache in [&mut pair, &mut pair_again] {
                    cache.append(tensor(&rows(9, n)), tensor(&rows(10, n))).unwrap();
                }
                one_again.check_invariants().unwrap();
                pair_again.check_invariants().unwrap();
            }
        }
    }
}

#[test]
fn tentative_tokens_after_every_call() {
    let begin = seed();
    for own in (0..200).map(|round| begin.wrapping_add(round)) {
        let (mut random, mut from) = (Random(own), 0);
        let mut cache = RollbackCache::new(RollbackCacheOptions::default()).unwrap();
        let mut marks = vec![cache.snapshot()];
        for call in 0..20 {
            let (committed, nodes) = (cache.committed_len(), cache.tree().len() as u32);
            let what = format!("call {call} of seed {own}; repeat with KVTIDE_SEED={begin}");
            from += 10;
            match random.below(8) {
                0..3 => {
                    let n = random.below(5);
                    let parents: Vec<i32> = (nodes..nodes + n).map(|node| random.below(node + 1) as i32 - 1).collect();
                    let parents = (random.below(3) > 0).then_some(&parents[..]);
                    cache
                        .append(tensor(&rows(from, n as usize)), tensor(&rows(from + 5, n as usize)), parents)
                        .unwrap();
                }
                3..5 => cache.commit((committed + random.below(nodes + 1)).into()).unwrap(),
                5 => marks.push(cache.snapshot()),
                6 => drop(cache.rollback(&marks[random.below(marks.len() as u32) as usize])),
                _ => {
                    let roots = (0..nodes).filter(|&node| cache.tree().parents()[node as usize] == -1);
                    cache.accept_path(&roots.take(1).collect::<Vec<_>>()).unwrap();
                }
            }
            let file = TensorFile::rollback_cache(bytes(Save::rollback_cache(&cache).unwrap()), &Watch::default());
            let mut again = file.and_then(|file| file.to_rollback_cache(Place::default())).expect(&what);
            again.check_invariants().expect(&what);
            let lengths = |of: &RollbackCache| (of.total_len(), of.committed_len(), of.tree().parents().to_vec());
            assert_eq!(lengths(&again), lengths(&cache), "{what}");
            let shows = [&cache, &again].map(|of| of.current().unwrap().map(|kv| shown(&[kv.k, kv.v])));
            // The shape of an empty cache is not saved.
            assert!(shows[0] == shows[1] || cache.total_len() == 0, "{what}");
            for path in (0..nodes).map(|node| vec![node]).chain([vec![], vec![0, 1]]) {
                let accepted =
                    [&mut cache, &mut again].map(|of| of.tree().check_path(&path).map_err(|error| error.code()));
                assert_eq!(accepted[0], accepted[1], "{what}: {path:?}");
            }
        }
    }
}

#[test]
fn tentative_tokens_and_their_tree() {
    let mut cache = RollbackCache::new(RollbackCacheOptions::default()).unwrap();
    let watch = Watch::default();
    let empty = TensorFile::rollback_cache(bytes(Save::rollback_cache(&cache).unwrap()), &watch).unwrap();
    assert_eq!(empty.to_rollback_cache(Place::default()).unwrap().total_len(), 0);
    cache.append(tensor(&rows(1, 4)), tensor(&rows(2, 4)), None).unwrap();
    cache.commit(3).unwrap();
    cache.append(tensor(&rows(3, 3)), tensor(&rows(4, 3)), Some(&[0, 0, 2])).unwrap();
    let file = TensorFile::rollback_cache(bytes(Save::rollback_cache(&cache).unwrap()), &watch).unwrap();
    let mut again = file.to_rollback_cache(Place::default()).unwrap();
    assert_eq!((again.total_len(), again.committed_len()), (7, 3));
    assert_eq!(again.tree().parents(), cache.tree().parents());
    for cache in [&mut cache, &mut again] {
        cache.accept_path(&[0, 2, 3]).unwrap();
    }
    let [one, other] = [cache.current().unwrap().unwrap(), again.current().unwrap().unwrap()];
    assert_eq!(shown(&[one.k, one.v]), shown(&[other.k, other.v]));
    assert_eq!(again.committed_len(), 6);
}

#[test]
fn what_is_damaged_is_refused() {
    let mut cache = RotatingKvCache::new(RotatingCacheOptions { max_seq_len: 2, ..Default::default() }).unwrap();
    cache.append(tensor(&rows(1, 3)), tensor(&rows(2, 3))).unwrap();
    let whole = Save::rotating(&cache).unwrap().to_sink(Sink::memory(), &Watch::default()).unwrap().1;
    let code = |bytes: Vec<u8>| {
        let read = TensorFile::rotating(Source::bytes(bytes), 2, &Watch::default());
        read.and_then(|file| file.to_rotating::<2>(Place::default())).map(drop).map_err(|error| error.code())
    };
    assert_eq!(code(whole.clone()), Ok(()));
    for len in 0..whole.len() {
        assert_eq!(code(whole[..len].to_vec()), Err(Code::Corrupt), "{len}");
    }
    for bit in 0..whole.len() * 8 {
        let mut changed = whole.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let code = code(changed);
        assert!(matches!(code, Err(Code::Corrupt | Code::Incompatible)), "bit {bit}: {code:?}");
    }
    let other = TensorFile::rotating(Source::bytes(whole), 1, &Watch::default()).unwrap_err();
    assert_eq!(
        (other.code(), other.to_string()),
        (Code::Incompatible, "kind is rotating-kv, expected rotating".to_owned())
    );
}
