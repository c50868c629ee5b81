//! What may happen while a step is captured: others share blocks, launches fail, the step is dropped.

use kvtide_core::Code;
use kvtide_core::model::LayerKind;
use kvtide_cuda::Emulation;
use kvtide_tensor::{CaptureOptions, DType, Kernels, PagedKvCache, with_kernels};

use crate::buffers::Buffers;
use crate::toy::Toy;

fn toy() -> Toy {
    Toy { kinds: vec![LayerKind::Full; 2], kv_heads: 1, group: 2, dim: 8, dtype: DType::F32, block_size: 4 }
}

/// A cache with a sequence of six tokens, and another one that shares its blocks.
fn shared() -> (PagedKvCache, u64, u64) {
    let mut cache = toy().cache(true, 16);
    let sequence = cache.create_sequence().unwrap();
    for token in 0..6 {
        toy().step(&mut cache, &[sequence], &[token]).unwrap();
    }
    let fork = cache.fork(sequence).unwrap();
    (cache, sequence, fork)
}

fn content(cache: &mut PagedKvCache, sequence: u64) -> Vec<Vec<f32>> {
    (0..2).map(|layer| crate::toy::content(cache, sequence, layer)).collect()
}

#[test]
fn blocks_that_others_share_are_copied_before_and_stay() {
    let (mut cache, sequence, fork) = shared();
    let before = content(&mut cache, fork);
    let buffers = Buffers::new(&toy(), &[3]);
    with_kernels(Kernels::Emulated, || {
        let options = CaptureOptions { sequences: &[sequence], steps: 5 };
        let mut step = cache.capture_step(options, |step| buffers.record(step)).unwrap();
        cache.replay_step(&mut step).unwrap();
        cache.commit_captured(&mut step, None).unwrap();
    })
    .unwrap();
    assert_eq!(content(&mut cache, fork), before);
    assert_eq!((cache.sequence_length(sequence), cache.sequence_length(fork)), (8, 6));
    cache.check_invariants().unwrap();
}

#[test]
fn a_step_that_is_dropped_leaves_no_trace() {
    let (mut cache, sequence, fork) = shared();
    let before = [sequence, fork].map(|of| content(&mut cache, of));
    let buffers = Buffers::new(&toy(), &[3]);
    with_kernels(Kernels::Emulated, || {
        let options = CaptureOptions { sequences: &[sequence, fork][..1], steps: 5 };
        let mut step = cache.capture_step(options, |step| buffers.record(step)).unwrap();
        cache.replay_step(&mut step).unwrap();
    })
    .unwrap();
    let next = cache.create_sequence().unwrap();
    cache.ensure_capacity(next, 4 * 12).unwrap();
    assert_eq!([sequence, fork].map(|of| content(&mut cache, of)), before);
    cache.check_invariants().unwrap();
}

/// Every operation of a capture and of two replays fails once: the cache is what it was before the step, and goes on.
#[test]
fn wherever_a_launch_fails_the_cache_is_what_it_was() {
    let mut operations = 0;
    loop {
        let (mut cache, sequence, fork) = shared();
        // Nothing is shared: a copy that fails poisons the cache, and is no part of the step.
        cache.drop_sequence(fork).unwrap();
        let before = content(&mut cache, sequence);
        let buffers = Buffers::new(&toy(), &[3]);
        let free = cache.free_count();
        let outcome = with_kernels(Kernels::Emulated, || {
            Emulation::fail_after(Some(operations));
            let options = CaptureOptions { sequences: &[sequence], steps: 3 };
            let mut step = cache.capture_step(options, |step| buffers.record(step))?;
            cache.replay_step(&mut step)?;
            let replayed = cache.replay_step(&mut step);
            if let Err(failure) = &replayed {
                // It failed, and says so from then on.
                for again in [cache.replay_step(&mut step), cache.commit_captured(&mut step, None)] {
                    assert_eq!(again.unwrap_err().to_string(), failure.to_string());
                }
            }
            replayed
        })
        .unwrap();
        if Emulation::fail_after(None).is_some() {
            outcome.unwrap();
            break;
        }
        let code = outcome.unwrap_err().code();
        assert!([Code::Internal, Code::OutOfMemory].contains(&code), "{operations}: {code:?}");
        // The step is undone at the next change.
        cache.ensure_capacity(sequence, 6).unwrap();
        assert_eq!(cache.free_count(), free, "{operations}");
        assert_eq!(content(&mut cache, sequence), before, "{operations}");
        toy().step(&mut cache, &[sequence], &[1]).unwrap();
        cache.check_invariants().unwrap();
        operations += 1;
    }
    // Each layer writes and attends, which takes memory; then lengths move on.
    assert!(operations >= 3 * (2 * 2 + 1), "{operations}");
}

#[test]
fn a_replay_takes_no_memory_and_launches_what_was_captured() {
    let (mut cache, sequence, _) = shared();
    let buffers = Buffers::new(&toy(), &[3]);
    with_kernels(Kernels::Emulated, || {
        let options = CaptureOptions { sequences: &[sequence], steps: 9 };
        let mut step = cache.capture_step(options, |step| buffers.record(step)).unwrap();
        let used = cache.stats().used_bytes;
        for _ in 1..9 {
            let before = Emulation::launches();
            cache.replay_step(&mut step).unwrap();
            assert_eq!(
                Emulation::launches() - before,
                2 * 2 + 1,
                "a write and attention of each layer, and the lengths"
            );
        }
        assert_eq!(cache.stats().used_bytes, used);
        drop(step);
    })
    .unwrap();
}
