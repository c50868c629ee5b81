//! What cannot be captured or replayed is refused with its reason, and leaves the cache as it was.

use candle_core::{DType as CandleDType, Device, Tensor};
use kvtide_core::Code;
use kvtide_core::paged::{PageFormat, Window};
use kvtide_tensor::{
    AttendOptions, CaptureOptions, Error, Kernels, PagedKvCache, PagedKvCacheOptions, Result, StepRecorder, StepTokens,
    with_kernels,
};

fn options() -> PagedKvCacheOptions {
    PagedKvCacheOptions { capacity: 12, block_size: 4, num_layers: 2, head_dim: 8, ..Default::default() }
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, CandleDType::F32, &Device::Cpu).unwrap()
}

/// A cache with two sequences of one token.
fn cache(options: PagedKvCacheOptions) -> PagedKvCache {
    let mut cache = PagedKvCache::new(options).unwrap();
    let sequences = [cache.create_sequence().unwrap(), cache.create_sequence().unwrap()];
    let rows = zeros(&[2, 1, 2, 8]);
    cache.append(&sequences, &rows, &rows, None).unwrap();
    cache
}

/// A whole step of two layers and two sequences.
fn work(step: &mut StepRecorder<'_>) -> Result<()> {
    let rows = zeros(&[1, 2, 8]);
    (0..2).try_for_each(|layer| step.write(layer, &rows, &rows))
}

/// The refusal of a capture, behind which the cache is what it was.
fn refusal(
    cache: &mut PagedKvCache,
    of: CaptureOptions<'_>,
    work: impl FnMut(&mut StepRecorder<'_>) -> Result<()>,
) -> Error {
    let before = (cache.free_count(), cache.sequence_length(0), cache.stats().used_bytes);
    let refused = with_kernels(Kernels::Emulated, || cache.capture_step(of, work).map(drop)).unwrap().unwrap_err();
    assert_eq!((cache.free_count(), cache.sequence_length(0), cache.stats().used_bytes), before, "{refused}");
    cache.check_invariants().unwrap();
    refused
}

const BOTH: CaptureOptions<'static> = CaptureOptions { sequences: &[0, 1], steps: 5 };

#[test]
fn what_a_step_cannot_be_for_is_refused() {
    let mut cache = cache(options());
    let refused = |cache: &mut PagedKvCache, of: CaptureOptions<'_>| refusal(cache, of, work);
    for (of, code, text) in [
        (
            CaptureOptions { sequences: &[], ..BOTH },
            Code::InvalidArgument,
            "sequences.length is 0, expected from 1 to 65535",
        ),
        (CaptureOptions { steps: 0, ..BOTH }, Code::InvalidArgument, "steps is 0, expected at least 1"),
        (CaptureOptions { sequences: &[0, 0], ..BOTH }, Code::InvalidArgument, "each sequence once"),
        (CaptureOptions { sequences: &[0, 9], ..BOTH }, Code::SequenceNotFound, "9"),
        (CaptureOptions { steps: 1 << 30, ..BOTH }, Code::InvalidArgument, "fewer than 2^31 tokens"),
        (CaptureOptions { steps: 24, ..BOTH }, Code::OutOfBlocks, "12 blocks are needed, 10 are free"),
    ] {
        let error = refused(&mut cache, of);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let step = cache.begin_step(StepTokens { sequences: &[1], ..Default::default() }).unwrap();
    assert_eq!(refused(&mut cache, BOTH).code(), Code::TransactionOpen);
    drop(step);
}

#[test]
fn a_device_without_graphs_and_pages_of_codes_are_refused() {
    let mut plain = cache(options());
    let form = Kernels::supported().last().unwrap();
    let error = with_kernels(form, || plain.capture_step(BOTH, work).map(drop)).unwrap().unwrap_err();
    assert_eq!(error.code(), Code::DeviceUnavailable);
    assert_eq!(error.to_string(), "device cpu cannot be used: steps are captured on CUDA devices alone");
    let mut low_bit = cache(PagedKvCacheOptions { value_format: Some(PageFormat::Q8), ..options() });
    let error = refusal(&mut low_bit, BOTH, work);
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(
        error.to_string(),
        "valueFormat is q8, expected f32, as dtype: a captured step neither quantises nor converts"
    );
}

/// A step that attends so.
fn attends<'a>(
    q: &'a Tensor,
    options: &'a AttendOptions<'a>,
    out: &'a Tensor,
) -> impl FnMut(&mut StepRecorder<'_>) -> Result<()> + 'a {
    move |step| {
        work(step)?;
        step.attend(0, q, options, out)
    }
}

#[test]
fn what_the_closure_does_wrong_is_refused_with_its_name() {
    let mut cache = cache(PagedKvCacheOptions { window: Some(Window::new(6, 1).unwrap()), ..options() });
    let [q, out] = [(); 2].map(|()| zeros(&[2, 1, 8]));
    let plain = AttendOptions::default();
    let mut check = |code: Code, text: &str, work: &mut dyn FnMut(&mut StepRecorder<'_>) -> Result<()>| {
        let error = refusal(&mut cache, BOTH, work);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    let rows = zeros(&[1, 2, 8]);
    check(Code::StepIncomplete, "[1]", &mut |step| step.write(0, &rows, &rows));
    check(Code::InvalidArgument, "layer is 2, expected below 2", &mut |step| step.write(2, &rows, &rows));
    check(Code::InvalidArgument, "layer is not written", &mut |step| step.attend(1, &q, &plain, &out));
    check(Code::ShapeMismatch, "2 tokens, one of each sequence", &mut |step| step.write(0, &zeros(&[1, 3, 8]), &rows));
    let wide = zeros(&[1, 8, 2]).transpose(1, 2).unwrap();
    check(Code::InvalidArgument, "rows whose elements are neighbours", &mut |step| step.write(0, &wide, &rows));
    let half = rows.to_dtype(CandleDType::F16).unwrap();
    check(Code::DtypeMismatch, "f32", &mut |step| step.write(0, &half, &rows));
    check(Code::ShapeMismatch, "a query of each sequence", &mut attends(&zeros(&[3, 1, 8]), &plain, &out));
    check(Code::ShapeMismatch, "as the queries", &mut attends(&q, &plain, &zeros(&[2, 2, 8])));
    check(Code::DtypeMismatch, "out", &mut attends(&q, &plain, &out.to_dtype(CandleDType::F16).unwrap()));
    check(Code::InvalidArgument, "memory of its own", &mut attends(&q, &plain, &q));
    let starts = AttendOptions { starts: Some(&[0, 0]), ..plain.clone() };
    check(
        Code::InvalidArgument,
        "starts is given, expected nothing in a captured step",
        &mut attends(&q, &starts, &out),
    );
    let window = AttendOptions { window: Some(7), ..plain.clone() };
    check(Code::InvalidArgument, "window is 7, expected at most 6", &mut attends(&q, &window, &out));
    let sinks = AttendOptions { window: Some(6), sinks: 2, ..plain.clone() };
    check(Code::InvalidArgument, "sinks is 2, expected at most 1", &mut attends(&q, &sinks, &out));
    check(
        Code::InvalidArgument,
        "scale",
        &mut attends(&q, &AttendOptions { scale: Some(f32::NAN), ..plain.clone() }, &out),
    );
    let refused = || Error::argument("token", 1u32, "another");
    check(Code::InvalidArgument, "token is 1", &mut |step| work(step).and(Err(refused())));
}

#[test]
fn a_step_replays_as_often_as_was_reserved_and_ends_once() {
    let mut cache = cache(options());
    with_kernels(Kernels::Emulated, || {
        let mut step = cache.capture_step(CaptureOptions { steps: 3, ..BOTH }, work).unwrap();
        assert_eq!((step.done(), step.steps(), step.sequences()), (1, 3, &[0, 1][..]));
        cache.replay_step(&mut step).unwrap();
        cache.replay_step(&mut step).unwrap();
        let error = cache.replay_step(&mut step).unwrap_err();
        assert_eq!(error.code(), Code::CacheOverflow);
        assert_eq!(error.to_string(), "cannot append 1 token: 4 of 4 used");
        let rows = zeros(&[2, 1, 1, 8]);
        assert_eq!(cache.append(&[0], &rows, &rows, None).unwrap_err().code(), Code::TransactionOpen);
        let ids = cache.commit_captured(&mut step, Some(&[1, 2])).unwrap_err();
        assert_eq!(ids.to_string(), "tokens.length is 2, expected 6, one for each token");
        cache.commit_captured(&mut step, Some(&[1, 2, 3, 4, 5, 6])).unwrap();
        assert_eq!((cache.sequence_length(0), cache.sequence_length(1)), (4, 4));
        for refused in [cache.replay_step(&mut step), cache.commit_captured(&mut step, None)] {
            assert_eq!(refused.unwrap_err().code(), Code::TransactionClosed);
        }
    })
    .unwrap();
    cache.check_invariants().unwrap();
}

#[test]
fn a_step_is_of_its_cache_and_of_sequences_that_are_there() {
    let (mut own, mut other) = (cache(options()), cache(options()));
    with_kernels(Kernels::Emulated, || {
        let mut step = own.capture_step(BOTH, work).unwrap();
        assert_eq!(other.replay_step(&mut step).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(other.commit_captured(&mut step, None).unwrap_err().code(), Code::InvalidArgument);
        own.drop_sequence(1).unwrap();
        assert_eq!(own.replay_step(&mut step).unwrap_err().code(), Code::StaleStep);
        assert_eq!(own.commit_captured(&mut step, None).unwrap_err().code(), Code::StaleStep);
        // What was taken for it comes back at the next call.
        let free = own.free_count();
        drop(step);
        assert!(own.free_count() > free);
    })
    .unwrap();
    own.check_invariants().unwrap();
}
