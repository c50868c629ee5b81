//! Parts of the keys, attended apart and merged, against all keys at once.

use kvtide_tensor::{AttendOptions, Attended, DType, HostTensor, KvRows, attend, merge_attention};

use crate::numbers::{Numbers, to_bytes};

const HEADS: usize = 2;
const DIM: usize = 24;

struct Kept {
    k: Vec<u8>,
    v: Vec<u8>,
}

fn part(q: &[u8], kept: &Kept, range: std::ops::Range<usize>, options: &AttendOptions<'_>) -> Attended {
    let tokens = kept.k.len() / (4 * HEADS * DIM);
    let host = |name, bytes| {
        let host = HostTensor::new(name, bytes, DType::F32, &[1, HEADS, tokens, DIM]).unwrap();
        host.with_range(range.start, range.end)
    };
    let q = HostTensor::new("q", q, DType::F32, &[1, 2 * HEADS, q.len() / (8 * HEADS * DIM), DIM]).unwrap();
    let rows = KvRows::Batched { k: host("k", &kept.k).into(), v: host("v", &kept.v).into() };
    attend(q, rows, options).unwrap()
}

#[test]
fn a_prefix_and_a_tail_merge_to_the_whole() {
    let mut numbers = Numbers::new(7);
    let q = to_bytes(DType::F32, &numbers.take(2 * HEADS * 3 * DIM));
    let mut rows = || to_bytes(DType::F32, &numbers.take(HEADS * 50 * DIM));
    let kept = Kept { k: rows(), v: rows() };
    let causal = AttendOptions::default();
    let whole = part(&q, &kept, 0..50, &causal);
    let before = AttendOptions { causal: false, ..AttendOptions::default() };
    let (prefix, middle) = (part(&q, &kept, 0..31, &before), part(&q, &kept, 31..40, &before));
    let merged = merge_attention([&prefix, &middle, &part(&q, &kept, 40..50, &causal)]).unwrap();
    let off = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off(&whole.out.to_f32().unwrap(), &merged.out.to_f32().unwrap()) < 1e-6);
    assert!(off(&whole.lse, &merged.lse) < 1e-6);
}

#[test]
fn a_part_that_saw_nothing_changes_nothing() {
    let mut numbers = Numbers::new(8);
    let q = to_bytes(DType::F32, &numbers.take(2 * HEADS * DIM));
    let mut rows = || to_bytes(DType::F32, &numbers.take(HEADS * 5 * DIM));
    let kept = Kept { k: rows(), v: rows() };
    let options = AttendOptions::default();
    let (whole, nothing) = (part(&q, &kept, 0..5, &options), part(&q, &kept, 5..5, &options));
    assert!(nothing.lse.iter().all(|lse| *lse == f32::NEG_INFINITY));
    let merged = merge_attention([&nothing, &whole, &nothing]).unwrap();
    assert_eq!(merged.out.to_f32().unwrap(), whole.out.to_f32().unwrap());
    assert_eq!(merged.lse, whole.lse);
    let none = merge_attention([&nothing, &nothing]).unwrap();
    assert!(none.out.to_f32().unwrap().iter().all(|value| *value == 0.0) && none.lse == nothing.lse);
}
