//! Attention over views of the caches, compared with attention over the same tokens in memory of their own.

use kvtide_tensor::attention::{AttendOptions, Attended, KvRows, attend};
use kvtide_tensor::buffers::Source;
use kvtide_tensor::runtime::{Budget, Kernels, with_kernels};
use kvtide_tensor::{
    DType, HostTensor, Kv, KvCache, KvCacheOptions, RollbackCache, RollbackCacheOptions, RotatingCacheOptions,
    RotatingKvCache, View,
};

use crate::numbers::{Numbers, to_bytes};

const HEADS: usize = 2;
const DIM: usize = 16;

/// Tokens of K or V, `[1, heads, n, dim]`.
struct Tokens(Vec<u8>);

impl Tokens {
    fn new(numbers: &mut Numbers, count: usize) -> Self {
        Tokens(to_bytes(DType::F32, &numbers.take(HEADS * count * DIM)))
    }

    fn host(&self) -> HostTensor<'_> {
        HostTensor::new("tokens", &self.0, DType::F32, &[1, HEADS, self.0.len() / (4 * HEADS * DIM), DIM]).unwrap()
    }

    fn part(&self, start: usize, end: usize) -> HostTensor<'_> {
        self.host().with_range(start, end)
    }
}

fn query(numbers: &mut Numbers, count: usize) -> Vec<u8> {
    to_bytes(DType::F32, &numbers.take(3 * HEADS * count * DIM))
}

fn on_each_form(q: &[u8], kv: &KvRows<'_>, options: &AttendOptions<'_>) -> Vec<Attended> {
    let count = q.len() / (12 * HEADS * DIM);
    let host = || HostTensor::new("q", q, DType::F32, &[1, 3 * HEADS, count, DIM]).unwrap();
    Kernels::supported()
        .map(|form| with_kernels(form, || attend(host(), kv.clone(), options)).unwrap().unwrap())
        .collect()
}

fn same(actual: &Attended, expected: &Attended, what: &str) {
    let close = |one: &[f32], other: &[f32]| one.iter().zip(other).all(|(a, b)| a == b || (a - b).abs() < 1e-5);
    assert!(close(&actual.out.to_f32().unwrap(), &expected.out.to_f32().unwrap()), "{what}");
    assert!(close(&actual.lse, &expected.lse), "{what}");
}

#[test]
fn a_growing_cache_is_read_where_it_lies() {
    let mut numbers = Numbers::new(1);
    let options = KvCacheOptions { num_kv_heads: HEADS as u32, head_dim: DIM as u32, ..Default::default() };
    let mut cache = KvCache::new(options).unwrap();
    let (k, v) = (Tokens::new(&mut numbers, 300), Tokens::new(&mut numbers, 300));
    let mut shown = None;
    for start in (0..300).step_by(60) {
        shown = Some(cache.update(k.part(start, start + 60), v.part(start, start + 60)).unwrap());
    }
    let (q, options) = (query(&mut numbers, 5), AttendOptions::default());
    let expected = on_each_form(&q, &KvRows::Batched { k: k.host().into(), v: v.host().into() }, &options);
    let actual = on_each_form(&q, &shown.as_ref().unwrap().into(), &options);
    actual.iter().zip(&expected).for_each(|(actual, expected)| same(actual, expected, "a growing cache"));
}

#[test]
fn a_window_with_sinks_is_what_a_window_over_everything_is() {
    let mut numbers = Numbers::new(2);
    let (sinks, window, tokens) = (3, 20, 90);
    let mut cache =
        RotatingKvCache::new(RotatingCacheOptions { max_seq_len: window, sinks, ..Default::default() }).unwrap();
    let (k, v) = (Tokens::new(&mut numbers, tokens), Tokens::new(&mut numbers, tokens));
    let mut at = 0;
    for count in [7, 1, 30, 1, 1, 19, 25, 1, 1, 4] {
        let shown = cache.append(k.part(at, at + count), v.part(at, at + count)).unwrap();
        at += count;
        let q = query(&mut numbers, count);
        let options = AttendOptions { window: Some(window), sinks, ..Default::default() };
        let everything = KvRows::Batched { k: k.part(0, at).into(), v: v.part(0, at).into() };
        let expected = on_each_form(&q, &everything, &options);
        let actual = on_each_form(&q, &KvRows::from(&shown), &options);
        actual.iter().zip(&expected).for_each(|(actual, expected)| same(actual, expected, "a window"));
    }
    assert_eq!(at, tokens);
}

#[test]
fn a_tree_is_its_mask() {
    let mut numbers = Numbers::new(3);
    let options = RollbackCacheOptions { ..Default::default() };
    let mut cache = RollbackCache::new(options).unwrap();
    let committed = [Tokens::new(&mut numbers, 40), Tokens::new(&mut numbers, 40)];
    cache.append(committed[0].host(), committed[1].host(), None).unwrap();
    cache.commit(40).unwrap();
    let parents = [-1, 0, 0, 1, 2, -1];
    let draft = [Tokens::new(&mut numbers, 6), Tokens::new(&mut numbers, 6)];
    let shown: Kv = cache.append(draft[0].host(), draft[1].host(), Some(&parents)).unwrap();
    let mask: Vec<u8> = cache.tree_mask(&parents).unwrap().iter().flat_map(|float| float.to_ne_bytes()).collect();
    let mask = HostTensor::new("mask", &mask, DType::F32, &[6, 46]).unwrap();
    let q = query(&mut numbers, 6);
    let masked = AttendOptions { causal: false, mask: Some(mask), ..Default::default() };
    let tree = AttendOptions { tree: Some(&parents), ..Default::default() };
    let expected = on_each_form(&q, &(&shown).into(), &masked);
    let actual = on_each_form(&q, &(&shown).into(), &tree);
    actual.iter().zip(&expected).for_each(|(actual, expected)| same(actual, expected, "a tree"));
}

#[test]
fn sums_that_nobody_wants_are_left_out() {
    let rows: Vec<u8> = (0..8u8).flat_map(|value| f32::from(value).to_ne_bytes()).collect();
    let host = |argument| HostTensor::new(argument, &rows, DType::F32, &[1, 1, 2, 4]).unwrap();
    let there = View::from_host(&host("q"), &Budget::process()).unwrap();
    let kv = || KvRows::Batched { k: host("k").into(), v: host("v").into() };
    for q in [Source::Host(host("q")), Source::View(&there)] {
        let whole = attend(q.clone(), kv(), &AttendOptions::default()).unwrap();
        let alone = attend(q, kv(), &AttendOptions { lse: false, ..Default::default() }).unwrap();
        assert_eq!((whole.lse.len(), alone.lse.len()), (2, 0));
        assert!(whole.out.equals(&alone.out).unwrap());
    }
}
