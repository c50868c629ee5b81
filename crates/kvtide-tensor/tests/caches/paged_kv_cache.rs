//! `PagedKvCache`: misuse, then values.

use std::sync::Arc;

use kvtide_core::Code;
use kvtide_core::paged::{EvictionPolicy, KeyOrValue, ReleasedBlock};
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions};

use crate::outcome::code;
use crate::sources::{Fed, Form};
use crate::tokens::Rows;

fn options() -> PagedKvCacheOptions {
    PagedKvCacheOptions {
        capacity: 4,
        block_size: 2,
        num_layers: 3,
        num_kv_heads: 2,
        head_dim: 3,
        ..Default::default()
    }
}

fn cache() -> PagedKvCache {
    PagedKvCache::new(options()).unwrap()
}

/// One token, as the rows `[heads, 1, dim]`.
fn rows(dtype: DType) -> Rows {
    Rows::new(&[2, 1, 3], 1, dtype)
}

fn write(cache: &mut PagedKvCache, sequence: u64, layer: u32, position: u32, id: u64) -> Result<(), Code> {
    let rows = rows(cache.dtype());
    let done = code(cache.write_kv(sequence, layer, position, &rows.tensor(0, &[id]), &rows.tensor(1, &[id])));
    cache.check_invariants().unwrap();
    done
}

fn read(cache: &mut PagedKvCache, sequence: u64, layer: u32, position: u32) -> Result<(Vec<u8>, Vec<u8>), Code> {
    cache.read_kv(sequence, layer, position).map(|token| (token.key, token.value)).map_err(|error| error.code())
}

fn token(id: u64) -> Result<(Vec<u8>, Vec<u8>), Code> {
    Ok((rows(DType::F32).bytes(0, &[id]), rows(DType::F32).bytes(1, &[id])))
}

fn everything(cache: &mut PagedKvCache) -> String {
    let sequences: Vec<_> = cache
        .sequence_ids()
        .into_iter()
        .map(|id| {
            let places = (0..12).flat_map(|at| (0..3).map(move |layer| (layer, at)));
            let tokens: Vec<_> = places.map(|(layer, at)| read(cache, id, layer, at)).collect();
            (id, cache.sequence_length(id), cache.sequence_capacity(id), tokens)
        })
        .collect();
    format!("{sequences:?} {} {:?}", cache.free_count(), cache.stats())
}

#[test]
fn sizes_of_zero_are_refused() {
    for wrong in [
        PagedKvCacheOptions { block_size: 0, ..options() },
        PagedKvCacheOptions { num_layers: 0, ..options() },
        PagedKvCacheOptions { num_kv_heads: 0, ..options() },
        PagedKvCacheOptions { head_dim: 0, ..options() },
        PagedKvCacheOptions { block_size: u32::MAX, ..options() },
    ] {
        assert_eq!(code(PagedKvCache::new(wrong)), Err(Code::InvalidArgument));
    }
}

#[test]
fn what_cannot_be_written_is_refused_and_changes_nothing() {
    let mut cache = cache();
    let sequence = cache.create_sequence().unwrap();
    write(&mut cache, sequence, 1, 2, 1).unwrap();
    let before = everything(&mut cache);
    assert_eq!(write(&mut cache, 9, 0, 0, 2), Err(Code::SequenceNotFound));
    assert_eq!(write(&mut cache, sequence, 3, 0, 2), Err(Code::InvalidArgument));
    assert_eq!(write(&mut cache, sequence, u32::MAX, 0, 2), Err(Code::InvalidArgument));
    assert_eq!(write(&mut cache, sequence, 0, u32::MAX, 2), Err(Code::InvalidArgument));
    assert_eq!(write(&mut cache, sequence, 0, 8, 2), Err(Code::OutOfBlocks));
    let right = rows(DType::F32).tensor(0, &[2]);
    for (wrong, expected) in [
        (Rows::new(&[2, 1, 4], 1, DType::F32), Code::DimMismatch),
        (Rows::new(&[1, 1, 3], 1, DType::F32), Code::DimMismatch),
        (Rows::new(&[2, 1, 0], 1, DType::F32), Code::DimMismatch),
        (rows(DType::F16), Code::DtypeMismatch),
    ] {
        let wrong = wrong.tensor(0, &[2]);
        assert_eq!(code(cache.write_kv(sequence, 0, 0, &wrong, &right)), Err(expected));
        assert_eq!(code(cache.write_kv(sequence, 0, 0, &right, &wrong)), Err(expected));
    }
    let error = cache.write_kv(sequence, 0, 0, &right, &Rows::new(&[7, 1], 1, DType::F32).tensor(0, &[2])).unwrap_err();
    assert_eq!(error.to_string(), "value has 7 elements, expected 6");
    assert_eq!(everything(&mut cache), before);
}

#[test]
fn what_was_not_written_cannot_be_read() {
    let mut cache = cache();
    let sequence = cache.create_sequence().unwrap();
    assert_eq!(read(&mut cache, sequence, 0, 0), Err(Code::PositionOutOfRange));
    write(&mut cache, sequence, 1, 3, 1).unwrap();
    assert_eq!(read(&mut cache, sequence, 1, 3), token(1));
    for (layer, position) in [(1, 0), (1, 2), (0, 3), (1, 4), (1, u32::MAX)] {
        assert_eq!(read(&mut cache, sequence, layer, position), Err(Code::PositionOutOfRange));
    }
    assert_eq!(read(&mut cache, sequence, 3, 3), Err(Code::InvalidArgument));
    assert_eq!(read(&mut cache, 7, 0, 0), Err(Code::SequenceNotFound));
    let (mut short, mut right) = (vec![0; 20], vec![0; 24]);
    assert_eq!(code(cache.read_kv_into(sequence, 1, 3, &mut short, &mut right)), Err(Code::DimMismatch));
    assert_eq!(code(cache.read_kv_into(sequence, 1, 3, &mut right.clone(), &mut short)), Err(Code::DimMismatch));
    assert_eq!((short, right), (vec![0; 20], vec![0; 24]));
}

#[test]
fn capacity_is_taken_whole_or_not_at_all() {
    let mut cache = cache();
    let (first, second) = (cache.create_sequence().unwrap(), cache.create_sequence().unwrap());
    assert_eq!((first, second), (0, 1));
    cache.ensure_capacity(first, 3).unwrap();
    assert_eq!((cache.sequence_capacity(first), cache.sequence_length(first), cache.free_count()), (4, 0, 2));
    assert_eq!(code(cache.ensure_capacity(second, 5)), Err(Code::OutOfBlocks));
    assert_eq!((cache.sequence_capacity(second), cache.free_count()), (0, 2));
    assert_eq!(code(cache.ensure_capacity(9, 1)), Err(Code::SequenceNotFound));
    assert_eq!(cache.pool_utilization(), 0.5);
    cache.ensure_capacity(first, 1).unwrap();
    assert_eq!(cache.sequence_capacity(first), 4);
    assert_eq!((cache.sequence_length(9), cache.sequence_capacity(9)), (0, 0));
}

#[test]
fn a_block_never_shows_one_sequence_what_another_wrote() {
    let mut cache = cache();
    let first = cache.create_sequence().unwrap();
    for position in 0..8 {
        write(&mut cache, first, 0, position, 1 + u64::from(position)).unwrap();
    }
    cache.drop_sequence(first).unwrap();
    assert_eq!(code(cache.drop_sequence(first)), Err(Code::SequenceNotFound));
    assert_eq!(cache.pool_utilization(), 0.);
    let second = cache.create_sequence().unwrap();
    assert_eq!(second, 1, "ids are never used again");
    cache.ensure_capacity(second, 8).unwrap();
    for position in 0..8 {
        assert_eq!(read(&mut cache, second, 0, position), Err(Code::PositionOutOfRange));
    }
    write(&mut cache, second, 0, 5, 100).unwrap();
    assert_eq!((read(&mut cache, second, 0, 5), cache.sequence_length(second)), (token(100), 6));
}

#[test]
fn a_token_is_read_from_every_form_and_overwritten_in_place() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::U8] {
        let mut cache = PagedKvCache::new(PagedKvCacheOptions { dtype, ..options() }).unwrap();
        let sequence = cache.create_sequence().unwrap();
        for (id, form) in (1..).zip([Form::Contiguous, Form::Transposed, Form::NarrowRows, Form::Host, Form::View]) {
            let fed = [0, 1].map(|part| Fed::new(form, &rows(dtype), part, &[id]));
            cache.write_kv(sequence, 2, 1, fed[0].source(), fed[1].source()).unwrap();
            let token = cache.read_kv(sequence, 2, 1).unwrap();
            assert_eq!((token.key, token.value), (rows(dtype).bytes(0, &[id]), rows(dtype).bytes(1, &[id])));
        }
        assert_eq!((cache.sequence_length(sequence), cache.free_count()), (2, 3));
    }
}

#[test]
fn a_token_is_taken_out_of_a_whole_present() {
    let all = Rows::new(&[1, 2, 1, 3], 2, DType::F32);
    let mut cache = cache();
    let sequence = cache.create_sequence().unwrap();
    for form in [Form::HostRange, Form::HostBshdRange, Form::HostBshd, Form::NarrowTokens, Form::Transposed] {
        let fed = [0, 1].map(|part| Fed::new(form, &all, part, &[9]));
        cache.write_kv(sequence, 0, 0, fed[0].source(), fed[1].source()).unwrap();
        assert_eq!(read(&mut cache, sequence, 0, 0), token(9), "{form:?}");
    }
    let two = Fed::new(Form::HostRange, &all, 0, &[8, 9]);
    assert_eq!(code(cache.write_kv(sequence, 0, 0, two.source(), two.source())), Err(Code::DimMismatch));
    let bytes = [0; 24];
    let outside = HostTensor::new("key", &bytes, DType::F32, &[1, 2, 1, 3]).unwrap().with_range(1, 2);
    assert_eq!(code(cache.write_kv(sequence, 0, 0, outside.clone(), outside)), Err(Code::InvalidArgument));
    assert_eq!(read(&mut cache, sequence, 0, 0), token(9));
}

#[test]
fn an_empty_pool_is_not_used() {
    let mut cache = PagedKvCache::new(PagedKvCacheOptions { capacity: 0, ..options() }).unwrap();
    let sequence = cache.create_sequence().unwrap();
    assert_eq!((cache.pool_utilization(), cache.total_count(), cache.block_size()), (0., 0, 2));
    assert_eq!(write(&mut cache, sequence, 0, 0, 1), Err(Code::OutOfBlocks));
    assert_eq!(
        (cache.token_elements(0, KeyOrValue::Value).unwrap(), cache.layouts().next().unwrap().block_bytes()),
        (6, 2 * 3 * 2 * 2 * 3 * 4)
    );
}

/// Keeps what was given the lowest priority longest.
#[derive(Debug)]
struct Contrary;

impl EvictionPolicy for Contrary {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        100 - released.priority
    }
}

#[test]
fn blocks_make_room_in_the_order_of_the_policy() {
    for (eviction, kept) in [(None, 7), (Some(Arc::new(Contrary) as Arc<dyn EvictionPolicy>), 8)] {
        let options = PagedKvCacheOptions { capacity: 2, block_size: 1, eviction, ..Default::default() };
        let mut cache = PagedKvCache::new(options).unwrap();
        let row = [0; 4];
        let token = || HostTensor::new("k", &row, DType::F32, &[1, 1, 1, 1]).unwrap();
        for (id, priority) in [(7, 90), (8, 10)] {
            let sequence = cache.create_sequence().unwrap();
            cache.append_known(&[sequence], token(), token(), None, Some(&[id])).unwrap();
            cache.retain(sequence, 0..1, priority, None).unwrap();
            cache.drop_sequence(sequence).unwrap();
        }
        let sequence = cache.create_sequence().unwrap();
        cache.append(&[sequence], token(), token(), None).unwrap();
        let mut found = |id| cache.find_prefix(&[id, 0], Default::default(), false).unwrap().length();
        assert_eq!([7, 8].map(|id| found(id) == 1), [kept == 7, kept == 8]);
    }
}
