//! Attention over parts of the keys, merged, compared with attention over all keys at once.

use kvtide_tensor::attention::{AttendOptions, Attended, KvRows, attend, merge_attention};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::numbers::{Column, Numbers, distance, extremes, larger, products_pass, to_bytes, to_f64};
use crate::oracle::Naive;
use crate::support;

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

/// Parts that are cut at random, of numbers some of which are the largest there are, infinities or NaN.
fn parts_merge_to_the_whole(
    (kernels, seed, mut cuts, extreme): (Kernels, u64, Vec<usize>, bool),
) -> Result<(), TestCaseError> {
    cuts.sort_unstable();
    let (tokens, mut numbers) = (cuts.last().copied().unwrap_or(0), Numbers::new(seed));
    let [of_scores, of_values] = extremes(DType::F32);
    let mut take = |count: usize, column: Option<Column>, extremes: &[f32]| {
        let mut floats = numbers.take(count);
        if extreme {
            numbers.sprinkle(&mut floats, column, extremes);
        }
        to_bytes(DType::F32, &floats)
    };
    let column = Some(Column { index: seed as usize % DIM, of: DIM });
    let q = take(2 * HEADS * DIM, column, of_scores);
    let (k, v) = (take(HEADS * tokens * DIM, column, of_scores), take(HEADS * tokens * DIM, None, of_values));
    let kept = Kept { k, v };
    let options = AttendOptions { causal: false, ..Default::default() };
    let ranges = [0].into_iter().chain(cuts.iter().copied()).zip(cuts.iter().copied());
    let parts = |()| ranges.clone().map(|(from, to)| part(&q, &kept, from..to, &options)).collect::<Vec<_>>();
    let merged = merge_attention(&with_kernels(kernels, || parts(()))?)?;
    let (out, positions) = (merged.out.to_f32()?, (0..tokens as i64).collect::<Vec<_>>());
    let [q, k, v] = [&q, &kept.k, &kept.v].map(|bytes| to_f64(DType::F32, bytes));
    let row = |of: &[f64], head: usize, token: usize| of[(head * tokens + token) * DIM..][..DIM].to_vec();
    let naive = Naive {
        positions: &positions,
        kv_heads: HEADS,
        query_heads: 2 * HEADS,
        key: &|head, token| row(&k, head, token),
        value: &|head, token| if tokens == 0 { vec![0.0; DIM] } else { row(&v, head, token) },
        scale: 1.0 / f64::from((DIM as f32).sqrt()),
        causal: false,
        window: None,
        sinks: 0,
        start: i64::MIN,
        softcap: None,
        sink_logits: None,
        slopes: None,
        mask: &|_, _, _| 0.0,
        parents: None,
        first_node: 0,
    };
    // Kernels of a device work in 32-bit floats alone: of numbers that pass them nothing more comes.
    let alone = extreme && kernels.to_string() == "emulated";
    for head in 0..2 * HEADS {
        let over = alone && products_pass(&q[head * DIM..][..DIM], (0..tokens).map(|token| row(&k, head / 2, token)));
        let passes = |found: f32| over || (alone && !found.is_finite());
        let (expected, sum, sizes) = naive.attend(&q[head * DIM..][..DIM], 0, tokens as i64, head);
        let (mut off, found) = (0.0, &out[head * DIM..][..DIM]);
        for ((&found, expected), size) in
            found.iter().zip(&expected).zip(sizes).filter(|((found, _), _)| !passes(**found))
        {
            off = larger(off, distance(found.into(), f64::from(*expected as f32)) / size.max(1.0));
        }
        if !passes(merged.lse[head]) {
            off = larger(off, distance(merged.lse[head].into(), sum) / sum.abs().max(1.0));
        }
        prop_assert!(off < 1e-5, "{} of {} parts is off by {}", kernels, cuts.len(), off);
    }
    Ok(())
}

#[test]
fn parts_of_any_numbers_merge_to_the_whole() {
    let kernels = prop::sample::select(Kernels::supported().collect::<Vec<_>>());
    let cuts = prop::collection::vec(prop_oneof![3 => 0..12usize, 1 => 0..400usize], 1..5);
    let calls = (kernels, any::<u64>(), cuts, any::<bool>());
    support::run("merged parts", 2_000, calls, parts_merge_to_the_whole);
}
