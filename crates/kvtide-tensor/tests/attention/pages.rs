//! Attention over pages, compared with attention over the same tokens after a gather: both read the numbers in the pages, so
//! that only the order of additions differs.

use kvtide_core::Code;
use kvtide_core::paged::{PageFormat, Window};
use kvtide_tensor::attention::{AttendOptions, KvRows, attend};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::numbers::{Numbers, to_bytes};
use crate::oracle::slopes;
use crate::support;

/// A cache with some sequences, and what is asked of it.
#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    /// Queries and tokens of each sequence.
    sequences: Vec<(usize, usize)>,
    block_size: u32,
    heads: usize,
    group: usize,
    dims: [usize; 2],
    dtype: DType,
    formats: [Option<PageFormat>; 2],
    rotated: [bool; 2],
    window: Option<u32>,
    by_table: bool,
    /// The factors of K and V, as powers of ten.
    magnitudes: [i32; 2],
    /// Tokens have magnitudes of their own, down to one in so many powers of ten.
    mixed: u32,
    /// Tokens with which each sequence begins as the first one does, of which it is a fork.
    common: Vec<usize>,
}

impl Case {
    /// Rows of 16 floats, of sequences of their own, without rules.
    fn plain() -> Self {
        Case {
            seed: 0,
            sequences: Vec::new(),
            block_size: 16,
            heads: 1,
            group: 1,
            dims: [16, 16],
            dtype: DType::F32,
            formats: [None; 2],
            rotated: [false; 2],
            window: None,
            by_table: false,
            magnitudes: [0; 2],
            mixed: 0,
            common: Vec::new(),
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let dim = || prop::sample::select(&[1usize, 5, 16, 24, 31, 32, 64, 128][..]);
    let format =
        || prop::sample::select(&[None, Some(PageFormat::F8E4M3), Some(PageFormat::Q8), Some(PageFormat::Q4)][..]);
    let dtype = prop::sample::select(&[DType::F32, DType::F32, DType::F16, DType::BF16][..]);
    let sequences = prop::collection::vec((0..4usize, prop_oneof![0..40usize, 100..300usize]), 1..4);
    let shape = (sequences, prop::sample::select(&[1u32, 4, 16, 32][..]), 1..7usize, 1..6usize, [dim(), dim()]);
    let rest = (dtype, [format(), format()], any::<[bool; 2]>(), prop::option::of(1..60u32), any::<bool>());
    let magnitude = || prop_oneof![1 => Just(0), 2 => -30..=30i32];
    let sizes = ([magnitude(), magnitude()], prop::sample::select(&[0u32, 0, 3, 20][..]));
    (any::<u64>(), shape, rest, sizes).prop_map(|(seed, (sequences, block_size, heads, group, dims), rest, sizes)| {
        let (dtype, formats, rotated, window, by_table) = rest;
        let (mut magnitudes, mixed) = sizes;
        if dtype == DType::F16 {
            magnitudes = magnitudes.map(|power| power.clamp(-7, 4));
        }
        let rotated = [0, 1].map(|part| rotated[part] && formats[part].is_some());
        Case {
            magnitudes,
            mixed,
            common: Vec::new(),
            seed,
            sequences,
            block_size,
            heads,
            group,
            dims,
            dtype,
            formats,
            rotated,
            window,
            by_table,
        }
    })
}

/// The cache, written in two pieces so that a tail is staged; layer 1 of 2 holds the tokens.
fn filled(case: &Case) -> (PagedKvCache, Vec<u64>) {
    let blocks: u32 = case.sequences.iter().map(|of| (of.1 as u32).div_ceil(case.block_size)).sum();
    let mut cache = PagedKvCache::new(PagedKvCacheOptions {
        capacity: blocks + 3,
        block_size: case.block_size,
        num_layers: 2,
        num_kv_heads: case.heads as u32,
        head_dim: case.dims[0] as u32,
        value_head_dim: Some(case.dims[1] as u32),
        dtype: case.dtype,
        key_format: case.formats[0],
        value_format: case.formats[1],
        hadamard: case.rotated[0],
        value_hadamard: case.rotated[1],
        ..Default::default()
    })
    .unwrap();
    let mut numbers = Numbers::new(case.seed);
    let mut ids: Vec<u64> = case.sequences.iter().map(|_| cache.create_sequence().unwrap()).collect();
    for (index, &(_, tokens)) in case.sequences.iter().enumerate() {
        let start = *case.common.get(index).filter(|&&common| index > 0 && common > 0).unwrap_or(&0);
        if start > 0 {
            cache.drop_sequence(ids[index]).unwrap();
            ids[index] = cache.fork(ids[0]).unwrap();
            cache.truncate(ids[index], start as u32).unwrap();
        }
        let (id, middle) = (&ids[index], start + (tokens - start) / 3);
        for (from, to) in [(start, middle), (middle, tokens)] {
            let rows = [0, 1].map(|part| {
                let mut rows = numbers.take((to - from) * case.heads * case.dims[part]);
                // `[heads, tokens, dim]`
                for (at, row) in rows.chunks_exact_mut(case.dims[part]).enumerate() {
                    let power = case.magnitudes[part] - (at as u32 * 7 % 11 * case.mixed / 10) as i32;
                    row.iter_mut().for_each(|value| *value *= 10f32.powi(power));
                }
                to_bytes(case.dtype, &rows)
            });
            let host = |part: usize| {
                let shape = [case.heads, to - from, case.dims[part]];
                HostTensor::new("rows", &rows[part], case.dtype, &shape).unwrap()
            };
            cache.write_tokens(*id, 1, from as u32, host(0), host(1)).unwrap();
        }
    }
    (cache, ids)
}

fn agrees(case: Case) -> Result<(), TestCaseError> {
    let (mut cache, ids) = filled(&case);
    let queries: usize = case.sequences.iter().map(|of| of.0).sum();
    let query_heads = case.heads * case.group;
    // However large the keys are, scores are as if they were between -1 and 1.
    let mut q = Numbers::new(!case.seed).take(queries * query_heads * case.dims[0]);
    q.iter_mut().for_each(|value| *value *= 10f32.powi(-case.magnitudes[0]));
    let mut offsets = vec![0i32];
    offsets.extend(case.sequences.iter().scan(0, |sum, of| {
        *sum += of.0 as i32;
        Some(*sum)
    }));
    let q_bytes = to_bytes(DType::F32, &q);
    let host = || HostTensor::new("q", &q_bytes, DType::F32, &[queries, query_heads, case.dims[0]]).unwrap();
    let longest = case.sequences.iter().map(|of| of.1).max().unwrap_or(0);
    let slopes = case.seed.is_multiple_of(2).then(|| slopes(query_heads, longest));
    let rules = AttendOptions { window: case.window, alibi_slopes: slopes.as_deref(), ..Default::default() };
    let options = AttendOptions { query_offsets: Some(&offsets), ..rules.clone() };
    // One sequence at a time over what was gathered.
    let (mut expected, mut largest) = (Vec::new(), 0f32);
    for (index, id) in ids.iter().enumerate() {
        let gathered = cache.gather(*id, 1).unwrap();
        let (first, last) = (offsets[index] as usize, offsets[index + 1] as usize);
        let row = query_heads * case.dims[0];
        let part = to_bytes(DType::F32, &q[first * row..last * row]);
        let host = HostTensor::new("q", &part, DType::F32, &[last - first, query_heads, case.dims[0]]).unwrap();
        let tokens = case.sequences[index].1;
        let ragged = |view: &kvtide_tensor::View, dim: usize| {
            let floats = view.to_f32().unwrap();
            let at = |token: usize, head: usize| floats[(head * tokens + token) * dim..][..dim].to_vec();
            let rows = (0..tokens).flat_map(|token| (0..case.heads).map(move |head| (token, head)));
            to_bytes(DType::F32, &rows.flat_map(|(token, head)| at(token, head)).collect::<Vec<_>>())
        };
        let [k, v] = [ragged(&gathered.k, case.dims[0]), ragged(&gathered.v, case.dims[1])];
        let kv = |bytes, dim: usize| HostTensor::new("kv", bytes, DType::F32, &[tokens, case.heads, dim]).unwrap();
        let rows = KvRows::Ragged {
            k: kv(&k, case.dims[0]).into(),
            v: kv(&v, case.dims[1]).into(),
            offsets: &[0, tokens as i32],
        };
        let alone = [0, (last - first) as i32];
        let options = AttendOptions { query_offsets: Some(&alone), ..rules.clone() };
        let attended = attend(host, rows, &options).unwrap();
        expected.extend(attended.out.to_f32().unwrap());
        largest = gathered.v.to_f32().unwrap().iter().fold(largest, |largest: f32, value| largest.max(value.abs()));
    }
    let width = case.sequences.iter().map(|of| of.1.div_ceil(case.block_size as usize)).max().unwrap_or(0);
    let lengths: Vec<i32> = case.sequences.iter().map(|of| of.1 as i32).collect();
    let tables = tables(&case, width);
    for kernels in Kernels::supported() {
        let pages = if case.by_table {
            cache.pages_of_tables(1, &tables, &lengths).unwrap()
        } else {
            cache.pages(1, &ids).unwrap()
        };
        let attended = with_kernels(kernels, || attend(host(), &pages, &options)).unwrap().unwrap();
        let actual = attended.out.to_f32().unwrap();
        let off = actual.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        prop_assert!(actual.len() == expected.len() && off <= 2e-5 * largest, "{kernels} is off by {off} of {largest}");
    }
    Ok(())
}

/// The blocks of the sequences, which take them from 0 on, one after the other.
fn tables(case: &Case, width: usize) -> Vec<i32> {
    let mut next = 0;
    let mut tables = Vec::new();
    for &(_, tokens) in &case.sequences {
        let blocks = tokens.div_ceil(case.block_size as usize);
        tables.extend((0..width).map(|place| if place < blocks { next + place as i32 } else { -1 }));
        next += blocks as i32;
    }
    tables
}

#[test]
fn pages_in_place_are_what_is_gathered() {
    support::run("pages", 400, case(), agrees);
}

/// Forks of the first sequence behind as many of its tokens, and sequences of their own, in any order.
fn related() -> impl Strategy<Value = Case> {
    let sequence = (0..3usize, prop_oneof![Just(0usize), 250..700usize], 1..200usize);
    (case(), prop::collection::vec(sequence, 1..7), 256..700usize).prop_map(|(case, others, first)| {
        let common = |&(_, common, _): &(usize, usize, usize)| common.min(first);
        let sequences = others.iter().map(|of| (of.0, common(of) + of.2));
        Case {
            sequences: std::iter::once((1, first)).chain(sequences).collect(),
            common: std::iter::once(0).chain(others.iter().map(common)).collect(),
            by_table: false,
            // Some windows that show all of it.
            window: case.window.map(|window| window * 40),
            heads: 1 + case.heads % 3,
            ..case
        }
    })
}

#[test]
fn sequences_that_begin_alike_see_what_each_would_alone() {
    support::run("related", 25, related(), agrees);
}

#[test]
fn slopes_are_of_each_sequence_s_own_positions_of_common_pages() {
    let mut cache = PagedKvCache::new(PagedKvCacheOptions {
        capacity: 30,
        block_size: 16,
        num_kv_heads: 2,
        head_dim: 16,
        window: Some(Window::new(416, 0).unwrap()),
        ..Default::default()
    })
    .unwrap();
    let id = cache.create_sequence().unwrap();
    let rows = to_bytes(DType::F32, &Numbers::new(3).take(2 * 432 * 16));
    let host = || HostTensor::new("rows", &rows, DType::F32, &[2, 432, 16]).unwrap();
    cache.write_tokens(id, 0, 0, host(), host()).unwrap();
    let q = to_bytes(DType::F32, &Numbers::new(9).take(2 * 2 * 16));
    // The second one has dropped a block before the same 25, behind which each has one of its own.
    let (first, second): (Vec<i32>, Vec<i32>) = ((0..26).chain([-1]).collect(), (-1..25).chain([26]).collect());
    let slopes = [0.5, 0.25];
    let mut attended = |tables: &[i32], lengths: &[i32], q: &[u8], offsets: &[i32]| {
        let pages = cache.pages_of_tables(0, tables, lengths).unwrap();
        let q = HostTensor::new("q", q, DType::F32, &[lengths.len(), 2, 16]).unwrap();
        let options = AttendOptions {
            window: Some(416),
            alibi_slopes: Some(&slopes),
            query_offsets: Some(offsets),
            ..Default::default()
        };
        attend(q, &pages, &options).unwrap().out.to_f32().unwrap()
    };
    let both = attended(&[&first[..], &second].concat(), &[416, 432], &q, &[0, 1, 2]);
    let alone = attended(&second, &[432], &q[q.len() / 2..], &[0, 1]);
    let off = both[32..].iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-5, "off by {off}");
}

/// Rows of more elements than any kernel of a GPU takes: they are attended to in tensor operations, on the memory's own device.
#[test]
fn rows_that_no_kernel_takes_are_attended_to_all_the_same() {
    for (dims, formats) in [([520, 24], [None; 2]), ([544, 544], [None; 2]), ([544, 32], [Some(PageFormat::Q8); 2])] {
        let case = Case {
            seed: 5,
            sequences: vec![(1, 21), (2, 9)],
            block_size: 4,
            heads: 2,
            group: 2,
            dims,
            formats,
            ..Case::plain()
        };
        agrees(case).unwrap();
    }
}

#[test]
fn the_same_pages_give_the_same_bits_on_any_number_of_threads() {
    let case =
        Case { seed: 7, sequences: vec![(1, 3000), (2, 1500)], block_size: 16, heads: 8, group: 4, ..Case::plain() };
    let (mut cache, ids) = filled(&case);
    let q = to_bytes(DType::F32, &Numbers::new(9).take(3 * 32 * 16));
    let pages = cache.pages(1, &ids).unwrap();
    let bits = |threads| {
        let q = HostTensor::new("q", &q, DType::F32, &[3, 32, 16]).unwrap();
        let options = AttendOptions { threads: Some(threads), query_offsets: Some(&[0, 1, 3]), ..Default::default() };
        let result = attend(q, &pages, &options).unwrap();
        (result.out.to_bytes().unwrap(), result.lse)
    };
    let alone = bits(1);
    for threads in [2, 3, 16] {
        assert_eq!(bits(threads), alone, "{threads} threads");
    }
}

#[test]
fn what_a_row_does_not_see_may_be_no_number_in_any_format() {
    for format in [None, Some(PageFormat::F8E4M3), Some(PageFormat::Q8), Some(PageFormat::Q4)] {
        let mut cache = PagedKvCache::new(PagedKvCacheOptions {
            capacity: 4,
            block_size: 4,
            head_dim: 32,
            value_format: format,
            ..Default::default()
        })
        .unwrap();
        let id = cache.create_sequence().unwrap();
        let mut values = Numbers::new(3).take(12 * 32);
        values[7 * 32..8 * 32].fill(f32::NAN);
        let bytes = to_bytes(DType::F32, &values);
        let zeros = vec![0u8; bytes.len()];
        let host = |bytes| HostTensor::new("rows", bytes, DType::F32, &[1, 12, 32]).unwrap();
        cache.write_tokens(id, 0, 0, host(&zeros), host(&bytes)).unwrap();
        let q = vec![0u8; 2 * 32 * 4];
        let q = || HostTensor::new("q", &q, DType::F32, &[2, 1, 32]).unwrap();
        // The first query stands before the token that is no number, the second one behind it.
        let options = AttendOptions { positions: Some(&[6, 8]), query_offsets: Some(&[0, 2]), ..Default::default() };
        for kernels in Kernels::supported() {
            let pages = cache.pages(0, &[id]).unwrap();
            let attended = with_kernels(kernels, || attend(q(), &pages, &options)).unwrap().unwrap();
            let out = attended.out.to_f32().unwrap();
            assert!(out[..32].iter().all(|value| value.is_finite()), "{format:?} on {kernels}");
            assert!(out[32..].iter().all(|value| value.is_nan()), "{format:?} on {kernels}");
        }
    }
}

#[test]
fn a_table_that_points_outside_is_refused() {
    let mut cache =
        PagedKvCache::new(PagedKvCacheOptions { capacity: 4, block_size: 4, ..Default::default() }).unwrap();
    let code = |cache: &mut PagedKvCache, layer, tables: &[i32], lengths: &[i32]| {
        cache.pages_of_tables(layer, tables, lengths).map(|_| ()).map_err(|error| error.code())
    };
    assert_eq!(code(&mut cache, 0, &[0, 4], &[8]), Err(Code::InvalidBlock));
    assert_eq!(code(&mut cache, 0, &[0, -1], &[8]), Err(Code::InvalidBlock));
    assert_eq!(code(&mut cache, 0, &[0, 1], &[9]), Err(Code::PositionOutOfRange));
    assert_eq!(code(&mut cache, 0, &[0, 1], &[-1]), Err(Code::InvalidArgument));
    assert_eq!(code(&mut cache, 0, &[0, 1, 2], &[4, 4]), Err(Code::ShapeMismatch));
    assert_eq!(code(&mut cache, 1, &[0, 1], &[4]), Err(Code::InvalidArgument));
    assert_eq!(code(&mut cache, 0, &[0, -1, 3, 2], &[4, 8]), Ok(()));
    assert_eq!(code(&mut cache, 0, &[], &[]), Ok(()));
    assert_eq!(cache.pages(0, &[7]).map(|_| ()).map_err(|error| error.code()), Err(Code::SequenceNotFound));
}

#[test]
fn pages_of_bytes_are_refused() {
    let mut cache =
        PagedKvCache::new(PagedKvCacheOptions { capacity: 1, dtype: DType::U8, ..Default::default() }).unwrap();
    let id = cache.create_sequence().unwrap();
    let q = [0u8; 4];
    let q = HostTensor::new("q", &q, DType::F32, &[1, 1, 1]).unwrap();
    let pages = cache.pages(0, &[id]).unwrap();
    assert_eq!(attend(q, &pages, &AttendOptions::default()).unwrap_err().code(), Code::DtypeMismatch);
}

/// Numbers that no half float has.
fn odd(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * 0.731).sin() * 3.7).collect()
}

fn bytes_of(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_ne_bytes()).collect()
}

#[test]
fn half_floats_of_a_cache_of_floats_are_rounded_once_and_read_in_place() {
    use PageFormat::{BF16, F16};
    let rounded = |format: Option<PageFormat>, floats: &[f32]| -> Vec<f32> {
        let round = |float: &f32| match format {
            Some(F16) => half::f16::from_f32(*float).to_f32(),
            Some(BF16) => half::bf16::from_f32(*float).to_f32(),
            _ => *float,
        };
        floats.iter().map(round).collect()
    };
    const TOKENS: usize = 21;
    for formats in [[Some(F16); 2], [Some(BF16); 2], [Some(F16), None], [None, Some(BF16)], [Some(BF16), Some(F16)]] {
        let options = PagedKvCacheOptions {
            capacity: 8,
            block_size: 4,
            num_kv_heads: 2,
            head_dim: 8,
            key_format: formats[0],
            value_format: formats[1],
            ..Default::default()
        };
        let mut cache = PagedKvCache::new(options).unwrap();
        let id = cache.create_sequence().unwrap();
        let (k, v) = (odd(2 * TOKENS * 8), odd(2 * TOKENS * 8 + 1)[1..].to_vec());
        let (kb, vb) = (bytes_of(&k), bytes_of(&v));
        let host = |bytes| HostTensor::new("k", bytes, DType::F32, &[1, 2, TOKENS, 8]).unwrap();
        cache.append(&[id], host(&kb), host(&vb), Some(&[0, TOKENS as u32])).unwrap();
        let gathered = cache.gather(id, 0).unwrap();
        let dtypes = formats.map(|format| format.and_then(DType::of_format).unwrap_or(DType::F32));
        assert_eq!([gathered.k.dtype(), gathered.v.dtype()], dtypes);
        let (k, v) = (rounded(formats[0], &k), rounded(formats[1], &v));
        assert_eq!((gathered.k.to_f32().unwrap(), gathered.v.to_f32().unwrap()), (k.clone(), v.clone()));
        assert_eq!(cache.read_kv(id, 0, 20).unwrap().key_f32().unwrap()[..8], k[20 * 8..21 * 8]);
        // The same as over tensors that have the rounded numbers.
        let q = bytes_of(&odd(3 * 4 * 8));
        let paged = HostTensor::new("q", &q, DType::F32, &[3, 4, 8]).unwrap();
        let options = AttendOptions { query_offsets: Some(&[0, 3]), ..Default::default() };
        let found = attend(paged, &cache.pages(0, &[id]).unwrap(), &options).unwrap();
        let naive = attention_by_hand(&odd(3 * 4 * 8), &k, &v, TOKENS);
        for (found, expected) in found.out.to_f32().unwrap().iter().zip(&naive) {
            assert!((f64::from(*found) - expected).abs() < 2e-5, "{formats:?}: {found} {expected}");
        }
    }
}

/// Three queries at the end of so many tokens, `[3, 4 heads, 8]`, over K and V `[2 heads, tokens, 8]`.
fn attention_by_hand(q: &[f32], k: &[f32], v: &[f32], tokens: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for (query, head) in (0..3).flat_map(|query| (0..4).map(move |head| (query, head))) {
        let row = |of: &[f32], at: usize| -> Vec<f64> {
            of[((head / 2) * tokens + at) * 8..][..8].iter().map(|&float| float.into()).collect()
        };
        let q: Vec<f64> = q[(query * 4 + head) * 8..][..8].iter().map(|&float| float.into()).collect();
        let seen = tokens - 2 + query;
        let score = |at| q.iter().zip(row(k, at)).map(|(a, b)| a * b).sum::<f64>() / 8f64.sqrt();
        let weights: Vec<f64> = (0..seen).map(|at| score(at).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let column = |dim: usize| (0..seen).map(|at| weights[at] / sum * row(v, at)[dim]).sum::<f64>();
        out.extend((0..8).map(column));
    }
    out
}

#[test]
fn half_floats_are_refused_beside_another_dtype() {
    use PageFormat::{BF16, F16, F32};
    for (dtype, format) in
        [(DType::F16, BF16), (DType::BF16, F16), (DType::F16, F32), (DType::U8, F16), (DType::U8, BF16)]
    {
        let options = PagedKvCacheOptions { dtype, key_format: Some(format), ..Default::default() };
        assert_eq!(PagedKvCache::new(options).unwrap_err().code(), Code::InvalidArgument, "{dtype} {format}");
    }
    let keys = PagedKvCacheOptions { key_format: Some(F16), hadamard: true, ..Default::default() };
    let values = PagedKvCacheOptions { value_format: Some(F16), value_hadamard: true, ..Default::default() };
    for rotated in [keys, values] {
        assert_eq!(PagedKvCache::new(rotated).unwrap_err().code(), Code::InvalidArgument);
    }
}
