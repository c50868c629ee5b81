//! The device resources of a call: one launch for all layers, whatever their number, and memory that may be missing.

use kvtide_core::{Code, DetailValue};
use kvtide_cuda::Emulation;
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions, Result, StepTokens};

use crate::surviving::rows;

/// Launches of a call.
fn launches(call: impl FnOnce() -> Result<()>) -> u32 {
    with_kernels(Kernels::Emulated, || {
        let before = Emulation::launches();
        call().unwrap();
        Emulation::launches() - before
    })
    .unwrap()
}

fn made(layers: usize, sequences: usize) -> (PagedKvCache, Vec<u64>) {
    let options = PagedKvCacheOptions {
        capacity: 4 * sequences as u32,
        block_size: 4,
        num_layers: layers as u32,
        num_kv_heads: 2,
        head_dim: 8,
        ..Default::default()
    };
    let mut cache = PagedKvCache::new(options).unwrap();
    let ids: Vec<u64> = (0..sequences).map(|_| cache.create_sequence().unwrap()).collect();
    for (length, &id) in ids.iter().enumerate() {
        let tokens = rows(layers, 2, length % 5, 8, length);
        cache.append(&[id], &tokens, &tokens, Some(&[0, length as u32 % 5])).unwrap();
    }
    (cache, ids)
}

#[test]
fn an_append_of_all_layers_is_one_launch() {
    for (layers, sequences) in [(1, 1), (2, 3), (32, 64)] {
        let (mut cache, ids) = made(layers, sequences);
        let tokens = rows(layers, 2, sequences, 8, 1);
        assert_eq!(launches(|| cache.append(&ids, &tokens, &tokens, None)), 1, "{layers} layers of {sequences}");
        let many: Vec<u32> = (0..=sequences as u32).map(|at| 3 * at).collect();
        let tokens = rows(layers, 2, 3 * sequences, 8, 1);
        assert_eq!(launches(|| cache.append(&ids, &tokens, &tokens, Some(&many))), 1, "three tokens each");
    }
}

#[test]
fn a_step_launches_once_for_each_layer_and_not_for_its_bookkeeping() {
    let (mut cache, ids) = made(3, 8);
    let of = StepTokens { sequences: &ids, ..Default::default() };
    let mut step = None;
    assert_eq!(launches(|| cache.begin_step(of).map(|begun| step = Some(begun))), 0);
    let mut step = step.unwrap();
    let tokens = rows(1, 2, 8, 8, 1);
    for layer in 0..3 {
        assert_eq!(launches(|| cache.write_layer(&mut step, layer, &tokens, &tokens)), 1);
    }
    assert_eq!(launches(|| cache.commit_step(&mut step, None)), 0);
}

#[test]
fn blocks_of_all_sequences_are_copied_in_one_launch() {
    let (mut cache, ids) = made(2, 6);
    let forks: Vec<u64> = ids.iter().map(|&id| cache.fork(id).unwrap()).collect();
    let tokens = rows(2, 2, 6, 8, 1);
    // One for the copies, one for the rows.
    assert_eq!(launches(|| cache.append(&forks, &tokens, &tokens, None)), 2);
}

/// Attends to a cache whose kernel reads where nothing is.
fn attend_with_a_fault() -> kvtide_tensor::Error {
    let (mut cache, ids) = made(2, 3);
    let q = rows(1, 3, 2, 8, 4).reshape((3, 2, 8)).unwrap();
    let pages = cache.pages(1, &ids).unwrap();
    with_kernels(Kernels::Emulated, || {
        Emulation::fault_after(Some(0));
        let attended = attend(&q, &pages, &AttendOptions::default()).and_then(|attended| attended.out.to_f32());
        Emulation::fault_after(None);
        Emulation::synchronise(None);
        attended.unwrap_err()
    })
    .unwrap()
}

/// A launch is over before its kernel has run: what fails in it is told by what comes behind it, whatever that is. It is the driver's
/// fault of a kernel there, and no lack of memory.
#[test]
fn a_fault_of_a_kernel_is_told_as_one_and_named_where_that_is_asked_for() {
    let detail = |error: &kvtide_tensor::Error, name: &str| {
        error.details().into_iter().find(|detail| detail.name == name).map(|detail| detail.value)
    };
    let late = attend_with_a_fault();
    assert_eq!(late.code(), Code::Internal, "{late}");
    assert_eq!(detail(&late, "driverError"), Some(DetailValue::from("CUDA_ERROR_ILLEGAL_ADDRESS")));
    assert_eq!(detail(&late, "driverCode"), Some(DetailValue::from(700u32)));
    assert!(late.to_string().contains("set KVTIDE_CUDA_SYNC=1 to see its name"), "{late}");
    Emulation::synchronise(Some(true));
    let named = attend_with_a_fault();
    assert_eq!(detail(&named, "driverError"), Some(DetailValue::from("CUDA_ERROR_ILLEGAL_ADDRESS")));
    let Some(DetailValue::Text(operation)) = detail(&named, "operation") else { panic!("{named}") };
    assert!(operation.starts_with("attend_"), "{operation}");
    assert!(!named.to_string().contains("KVTIDE_CUDA_SYNC"), "{named}");
}

/// Makes a cache of three sequences, and a call of it that finds no memory: refused with what it needs and what there is; the cache is as
/// it was, and goes on.
fn refuses_for_want_of_memory(needed: u64, there: u64, call: impl FnOnce(&mut PagedKvCache, &[u64]) -> Result<()>) {
    let (mut cache, ids) = made(2, 3);
    let lengths: Vec<u32> = ids.iter().map(|&id| cache.sequence_length(id)).collect();
    let free = cache.free_count();
    let error = with_kernels(Kernels::Emulated, || {
        let refused = call(&mut cache, &ids);
        Emulation::limit_memory(None);
        refused.unwrap_err()
    })
    .unwrap();
    assert_eq!(error.code(), Code::OutOfMemory, "{error}");
    assert_eq!(
        error.to_string(),
        format!("cannot allocate {needed} bytes of device memory: {there} of {there} bytes are free")
    );
    let details: Vec<_> = error.details().into_iter().map(|detail| (detail.name, detail.value)).collect();
    let expected = [("requestedBytes", needed), ("usedBytes", 0), ("limitBytes", there)];
    assert_eq!(details, expected.map(|(name, bytes)| (name, DetailValue::from(bytes))));
    assert_eq!(cache.free_count(), free);
    assert_eq!(ids.iter().map(|&id| cache.sequence_length(id)).collect::<Vec<_>>(), lengths);
    cache.check_invariants().unwrap();
    let tokens = rows(2, 2, 3, 8, 1);
    cache.append(&ids, &tokens, &tokens, None).unwrap();
}

#[test]
fn memory_of_a_device_that_is_not_there_is_refused_with_what_is_needed_and_what_there_is() {
    let q = rows(1, 3, 2, 8, 4).flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let q: Vec<u8> = q.into_iter().flat_map(f32::to_ne_bytes).collect();
    let q = HostTensor::new("q", &q, DType::F32, &[3, 2, 8]).unwrap();
    refuses_for_want_of_memory(192, 100, |cache, ids| {
        // On its way to the host, the output alone has 3 * 2 * 8 floats.
        Emulation::limit_memory(Some(100));
        let pages = cache.pages(1, ids)?;
        attend(q, &pages, &AttendOptions::default()).map(drop)
    });
}
