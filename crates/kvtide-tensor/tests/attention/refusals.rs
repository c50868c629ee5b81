//! Attention calls whose arguments do not fit together: each fails, naming the argument, before anything is read.

use kvtide_core::{Code, DetailValue};
use kvtide_tensor::attention::{AttendOptions, KvRows, attend, attend_into};
use kvtide_tensor::{DType, Error, HostTensor};

const FLOATS: [u8; 4096] = [0; 4096];

fn host(name: &'static str, shape: &[usize]) -> HostTensor<'static> {
    host_of(name, DType::F32, shape)
}

fn host_of(name: &'static str, dtype: DType, shape: &[usize]) -> HostTensor<'static> {
    let bytes = &FLOATS[..shape.iter().product::<usize>() * dtype.bytes()];
    HostTensor::new(name, bytes, dtype, shape).unwrap()
}

fn batched(shape: &[usize]) -> KvRows<'static> {
    KvRows::Batched { k: host("k", shape).into(), v: host("v", shape).into() }
}

/// The code of a refusal, and the argument that it blames.
fn blamed(error: &Error) -> (Code, String) {
    let argument = error.details().into_iter().find(|detail| detail.name == "argument");
    let name = match argument.map(|detail| detail.value) {
        Some(DetailValue::Text(text)) => text,
        other => panic!("no argument in {error}: {other:?}"),
    };
    (error.code(), name)
}

fn refused(q: &[usize], kv: KvRows<'_>, options: &AttendOptions<'_>) -> (Code, String) {
    let error = attend(host("q", q), kv, options).unwrap_err();
    println!("{error}");
    blamed(&error)
}

#[test]
fn shapes_that_do_not_go_together() {
    let options = AttendOptions::default();
    let wrong = |argument: &str| (Code::ShapeMismatch, argument.to_owned());
    assert_eq!(refused(&[2, 1, 4], batched(&[1, 2, 3, 4]), &options), wrong("q"));
    assert_eq!(refused(&[1, 3, 1, 4], batched(&[1, 2, 3, 4]), &options), wrong("q"));
    assert_eq!(refused(&[1, 2, 1, 5], batched(&[1, 2, 3, 4]), &options), wrong("q"));
    assert_eq!(refused(&[2, 2, 1, 4], batched(&[1, 2, 3, 4]), &options), wrong("q"));
    assert_eq!(refused(&[1, 0, 1, 4], batched(&[1, 0, 3, 4]), &options), wrong("q"));
    assert_eq!(refused(&[1, 2, 1, 4], batched(&[2, 3, 4]), &options), wrong("k"));
    let uneven = KvRows::Batched { k: host("k", &[1, 2, 3, 4]).into(), v: host("v", &[1, 2, 4, 4]).into() };
    assert_eq!(refused(&[1, 2, 1, 4], uneven, &options), wrong("v"));
}

#[test]
fn dtypes_that_are_no_floats() {
    let options = AttendOptions::default();
    let bytes = || host_of("k", DType::U8, &[1, 1, 2, 4]);
    let error = attend(bytes(), batched(&[1, 1, 2, 4]), &options).unwrap_err();
    assert_eq!(blamed(&error), (Code::DtypeMismatch, "q".to_owned()));
    let rows = KvRows::Batched { k: bytes().into(), v: bytes().into() };
    assert_eq!(refused(&[1, 1, 1, 4], rows, &options), (Code::DtypeMismatch, "k".to_owned()));
}

#[test]
fn numbers_and_lists_that_cannot_be() {
    let q = [2, 2, 3, 4];
    let is = |options: AttendOptions<'_>, code, argument: &str| {
        assert_eq!(refused(&q, batched(&[2, 2, 5, 4]), &options), (code, argument.to_owned()));
    };
    let default = AttendOptions::default;
    is(AttendOptions { scale: Some(f32::NAN), ..default() }, Code::InvalidArgument, "scale");
    is(AttendOptions { window: Some(0), ..default() }, Code::InvalidArgument, "window");
    is(AttendOptions { softcap: Some(0.0), ..default() }, Code::InvalidArgument, "softcap");
    is(AttendOptions { softcap: Some(f32::INFINITY), ..default() }, Code::InvalidArgument, "softcap");
    is(AttendOptions { threads: Some(0), ..default() }, Code::InvalidArgument, "threads");
    is(AttendOptions { sink_logits: Some(&[0.0]), ..default() }, Code::ShapeMismatch, "sinkLogits");
    is(AttendOptions { sink_logits: Some(&[0.0, f32::NAN]), ..default() }, Code::InvalidArgument, "sinkLogits");
    is(AttendOptions { sink_logits: Some(&[f32::INFINITY, 0.0]), ..default() }, Code::InvalidArgument, "sinkLogits");
    is(AttendOptions { alibi_slopes: Some(&[0.5]), ..default() }, Code::ShapeMismatch, "alibiSlopes");
    is(AttendOptions { alibi_slopes: Some(&[0.5, f32::INFINITY]), ..default() }, Code::InvalidArgument, "alibiSlopes");
    is(AttendOptions { starts: Some(&[0]), ..default() }, Code::ShapeMismatch, "starts");
    is(AttendOptions { starts: Some(&[0, -1]), ..default() }, Code::InvalidArgument, "starts");
    is(AttendOptions { starts: Some(&[0, 1]), sinks: 1, ..default() }, Code::InvalidArgument, "sinks");
    is(AttendOptions { positions: Some(&[1, 2]), ..default() }, Code::ShapeMismatch, "positions");
    is(AttendOptions { positions: Some(&[1, 2, -3]), ..default() }, Code::InvalidArgument, "positions");
    is(AttendOptions { tree: Some(&[-1, 0]), ..default() }, Code::ShapeMismatch, "tree");
    is(AttendOptions { tree: Some(&[-1, 1, 0]), ..default() }, Code::InvalidArgument, "parents");
    is(AttendOptions { tree_offsets: Some(&[0]), ..default() }, Code::InvalidArgument, "treeOffsets");
    is(AttendOptions { query_offsets: Some(&[0, 3]), ..default() }, Code::InvalidArgument, "qOffsets");
    is(AttendOptions { mask: Some(host("mask", &[2, 5])), ..default() }, Code::ShapeMismatch, "mask");
    is(AttendOptions { mask: Some(host("mask", &[1, 2, 2, 3, 5])), ..default() }, Code::ShapeMismatch, "mask");
    let halves = host_of("mask", DType::F16, &[3, 5]);
    is(AttendOptions { mask: Some(halves), ..default() }, Code::DtypeMismatch, "mask");
}

#[test]
fn offsets_that_do_not_rise_to_the_end() {
    let rows = |offsets: &'static [i32]| KvRows::Ragged {
        k: host("k", &[6, 2, 4]).into(),
        v: host("v", &[6, 2, 4]).into(),
        offsets,
    };
    let options = AttendOptions::default();
    for offsets in [&[][..], &[6], &[1, 6], &[0, 4, 3, 6], &[0, 7], &[0, 5], &[0, -1, 6], &[0, i32::MAX, 6]] {
        let blame = refused(&[2, 2, 4], rows(offsets), &options);
        assert_eq!(blame, (Code::InvalidArgument, "kvOffsets".to_owned()), "{offsets:?}");
    }
    let blame = refused(&[3, 2, 4], rows(&[0, 2, 6]), &options);
    assert_eq!(blame, (Code::InvalidArgument, "qOffsets".to_owned()));
    let wrong = AttendOptions { query_offsets: Some(&[0, 2, 4]), ..options };
    assert_eq!(refused(&[3, 2, 4], rows(&[0, 2, 6]), &wrong), (Code::InvalidArgument, "qOffsets".to_owned()));
}

#[test]
fn an_output_of_another_size_is_not_touched() {
    let options = AttendOptions::default();
    let (mut out, mut lse) = ([7u8; 8 * 4 - 1], [7f32; 2]);
    let error = attend_into(host("q", &[1, 2, 1, 4]), batched(&[1, 1, 3, 4]), &options, &mut out, &mut lse);
    assert_eq!(blamed(&error.unwrap_err()), (Code::ShapeMismatch, "out".to_owned()));
    let (mut out, mut lse) = ([7u8; 8 * 4], [7f32; 3]);
    let error = attend_into(host("q", &[1, 2, 1, 4]), batched(&[1, 1, 3, 4]), &options, &mut out, &mut lse);
    assert_eq!(blamed(&error.unwrap_err()), (Code::ShapeMismatch, "lse".to_owned()));
    assert!(out.iter().all(|byte| *byte == 7) && lse.iter().all(|lse| *lse == 7.0));
}
