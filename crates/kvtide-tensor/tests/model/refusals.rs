//! Bad input: each has an error code, and changes nothing.

use candle_core::Device;
use kvtide_core::model::{LayerDescription, ModelDescription};
use kvtide_core::{Code, TransactionId};
use kvtide_tensor::attention::AttendOptions;
use kvtide_tensor::{DType, Error, HostTensor, PagedKvCache, PagedModelOptions, PagedStep, PoolRoom, StepTokens};

use crate::semantics::filled;
use crate::subject::{KINDS, cache, code, everything, mixed, write, written};

/// A call on a cache, its sequence and its open step.
type Call = fn(&mut PagedKvCache, u64, &mut PagedStep) -> Result<(), Error>;

fn zeros<'a>(bytes: &'a [u8], dtype: DType, shape: &[usize]) -> HostTensor<'a> {
    let size = shape.iter().product::<usize>() * dtype.bytes();
    HostTensor::new("k", &bytes[..size], dtype, shape).unwrap()
}

const ZEROS: [u8; 4096] = [0; 4096];

/// A call on a sequence.
type OnSequence = fn(&mut PagedKvCache, u64) -> Result<(), Error>;

#[test]
fn a_step_refuses_what_is_not_its_own() {
    let calls: [(&str, Code, Call); 12] = [
        ("an unknown layer", Code::InvalidArgument, |cache, _, step| write_zeros(cache, step, 6, &[2, 2, 4])),
        ("a layer beyond all", Code::InvalidArgument, |cache, _, step| write_zeros(cache, step, u32::MAX, &[2, 2, 4])),
        ("a shared layer", Code::InvalidArgument, |cache, _, step| write_zeros(cache, step, 2, &[2, 2, 4])),
        ("too few tokens", Code::InvalidArgument, |cache, _, step| write_zeros(cache, step, 0, &[2, 1, 4])),
        ("other heads", Code::ShapeMismatch, |cache, _, step| write_zeros(cache, step, 0, &[3, 2, 4])),
        ("another head dim", Code::ShapeMismatch, |cache, _, step| write_zeros(cache, step, 0, &[2, 2, 5])),
        ("a rank of 2", Code::ShapeMismatch, |cache, _, step| write_zeros(cache, step, 0, &[2, 2])),
        ("a batch of 2", Code::ShapeMismatch, |cache, _, step| write_zeros(cache, step, 0, &[2, 2, 2, 4])),
        ("another dtype", Code::DtypeMismatch, |cache, _, step| {
            let half = || zeros(&ZEROS, DType::F16, &[2, 2, 4]);
            cache.write_layer(step, 0, half(), half())
        }),
        ("values of fewer tokens", Code::ShapeMismatch, |cache, _, step| {
            let [k, v] = [[2, 2, 4], [2, 1, 4]].map(|shape| zeros(&ZEROS, DType::F32, &shape));
            cache.write_layer(step, 0, k, v)
        }),
        ("queries of an unknown layer", Code::InvalidArgument, |cache, _, step| {
            let q = zeros(&ZEROS, DType::F32, &[2, 2, 4]);
            cache.attend_layer(step, 6, q, &AttendOptions::default()).map(drop)
        }),
        ("queries of another head dim", Code::ShapeMismatch, |cache, _, step| {
            let q = zeros(&ZEROS, DType::F32, &[2, 2, 5]);
            cache.attend_layer(step, 3, q, &AttendOptions::default()).map(drop)
        }),
    ];
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 9);
        let tokens = StepTokens { sequences: &[id], offsets: Some(&[0, 2]), parents: None };
        let mut step = cache.begin_step(tokens).unwrap();
        write(&mut cache, &mut step, 3, &[10, 11]).unwrap();
        for (name, expected, call) in &calls {
            assert_eq!(code(call(&mut cache, id, &mut step)), Err(*expected), "{name} on {kind:?}");
            cache.check_invariants().unwrap();
        }
        for layer in [0, 1, 5] {
            write(&mut cache, &mut step, layer, &[10, 11]).unwrap();
        }
        cache.commit_step(&mut step, None).unwrap();
        crate::semantics::shows(&mut cache, id, &(1..12).collect::<Vec<_>>());
    }
}

fn write_zeros(cache: &mut PagedKvCache, step: &mut PagedStep, layer: u32, shape: &[usize]) -> Result<(), Error> {
    cache.write_layer(step, layer, zeros(&ZEROS, DType::F32, shape), zeros(&ZEROS, DType::F32, shape))
}

#[test]
fn unknown_sequences_and_numbers_are_refused() {
    let calls: [(&str, Code, OnSequence); 17] = [
        ("fork", Code::SequenceNotFound, |cache, _| cache.fork(7).map(drop)),
        ("drop", Code::SequenceNotFound, |cache, _| cache.drop_sequence(7)),
        ("truncate", Code::SequenceNotFound, |cache, _| cache.truncate(7, 0)),
        ("snapshot", Code::SequenceNotFound, |cache, _| cache.snapshot(7).map(drop)),
        ("begin", Code::SequenceNotFound, |cache, _| cache.begin(7, None, Default::default()).map(drop)),
        ("kv", Code::SequenceNotFound, |cache, _| cache.kv(7, 0).map(drop)),
        ("drafted", Code::SequenceNotFound, |cache, _| cache.drafted(7, TransactionId::from_raw(0)).map(drop)),
        ("commit", Code::SequenceNotFound, |cache, _| cache.commit(7, TransactionId::from_raw(0), None)),
        ("step", Code::SequenceNotFound, |cache, _| written(cache, 7, &[1], None).map(drop)),
        ("restore", Code::SequenceNotFound, |cache, id| {
            let snapshot = cache.snapshot(id)?;
            cache.restore(7, &snapshot)
        }),
        ("no such transaction", Code::TransactionClosed, |cache, id| {
            cache.commit(id, TransactionId::from_raw(99), None)
        }),
        ("no such transaction's tokens", Code::TransactionClosed, |cache, id| {
            cache.drafted(id, TransactionId::from_raw(99)).map(drop)
        }),
        ("no such transaction's path", Code::TransactionClosed, |cache, id| {
            cache.commit_path(id, TransactionId::from_raw(99), &[])
        }),
        ("no such transaction to begin on", Code::TransactionClosed, |cache, id| {
            cache.begin(id, Some(TransactionId::from_raw(99)), Default::default()).map(drop)
        }),
        ("an unknown layer", Code::InvalidArgument, |cache, id| cache.kv(id, 6).map(drop)),
        ("offsets that fall", Code::InvalidArgument, |cache, id| {
            let tokens = StepTokens { sequences: &[id], offsets: Some(&[2, 0]), parents: None };
            cache.begin_step(tokens).map(drop)
        }),
        ("a tree without a transaction", Code::InvalidArgument, |cache, id| {
            written(cache, id, &[1, 2], Some(&[-1, -1])).map(drop)
        }),
    ];
    for kind in KINDS {
        let (mut cache, _) = filled(kind, 9);
        let before = everything(&mut cache);
        for (name, expected, call) in &calls {
            assert_eq!(code(call(&mut cache, 0)), Err(*expected), "{name} on {kind:?}");
            assert_eq!(everything(&mut cache), before, "{name} on {kind:?}");
        }
    }
}

#[test]
fn objects_of_another_cache_are_refused() {
    for kind in KINDS {
        for other_kind in KINDS {
            let ((mut cache, id), (mut other, _)) = (filled(kind, 9), filled(other_kind, 9));
            let before = everything(&mut cache);
            let snapshot = other.snapshot(0).unwrap();
            let mut step = written(&mut other, 0, &[10], None).unwrap();
            assert_eq!(code(cache.restore(id, &snapshot)), Err(Code::SnapshotInvalid));
            assert_eq!(code(write(&mut cache, &mut step, 0, &[10])), Err(Code::InvalidArgument));
            assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::InvalidArgument));
            assert_eq!(code(cache.undo_step(&mut step)), Err(Code::InvalidArgument));
            let q = zeros(&ZEROS, DType::F32, &[1, 2, 4]);
            assert_eq!(code(cache.attend_layer(&step, 0, q, &AttendOptions::default())), Err(Code::InvalidArgument));
            let prefix = other.find_prefix(&[], Default::default(), false).unwrap();
            assert_eq!(code(cache.create_sequence_from(prefix)), Err(Code::SnapshotInvalid));
            assert_eq!(everything(&mut cache), before);
            other.commit_step(&mut step, None).unwrap();
            crate::semantics::shows(&mut other, 0, &(1..11).collect::<Vec<_>>());
        }
    }
}

#[test]
fn what_is_dropped_after_its_cache_does_no_harm() {
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 9);
        let snapshot = cache.snapshot(id).unwrap();
        let prefix = cache.find_prefix(&[1, 2], Default::default(), false).unwrap();
        let step = written(&mut cache, id, &[10], None).unwrap();
        drop(cache);
        drop((snapshot, prefix, step));
    }
}

#[test]
fn options_that_cannot_be_are_refused() {
    let made = |model: &ModelDescription, room, block_size| {
        let options = PagedModelOptions { block_size, ..PagedModelOptions::new(model.clone(), room) };
        code(PagedKvCache::of_model(options))
    };
    for blocks in [vec![], vec![1], vec![1; 4]] {
        assert_eq!(made(&mixed(), PoolRoom::Blocks(blocks), 16), Err(Code::InvalidArgument));
    }
    assert_eq!(made(&mixed(), PoolRoom::Blocks(vec![1; 3]), 0), Err(Code::InvalidArgument));
    let split = ModelDescription::new(vec![LayerDescription::full(1, 4); 2]).unwrap().split(&[0, 1]).unwrap();
    for (devices, expected) in [(1, Err(Code::InvalidArgument)), (2, Ok(())), (3, Err(Code::InvalidArgument))] {
        let options = PagedModelOptions::new(split.clone(), PoolRoom::Blocks(vec![1; 2]));
        let options = PagedModelOptions { devices: vec![Device::Cpu; devices], ..options };
        assert_eq!(code(PagedKvCache::of_model(options)), expected, "{devices} devices");
    }
    let apart = LayerDescription { value_head_dim: 2, ..LayerDescription::full(1, 4) };
    assert_eq!(made(&ModelDescription::new(vec![apart]).unwrap(), PoolRoom::Blocks(vec![1]), 16), Ok(()));
}

#[test]
fn a_layer_that_is_written_again_counts() {
    for kind in KINDS {
        let mut cache = cache(mixed(), kind);
        let id = cache.create_sequence().unwrap();
        let mut step = written(&mut cache, id, &[5], None).unwrap();
        write(&mut cache, &mut step, 0, &[6]).unwrap();
        write(&mut cache, &mut step, 0, &[5]).unwrap();
        cache.commit_step(&mut step, None).unwrap();
        crate::semantics::shows(&mut cache, id, &[5]);
    }
}
