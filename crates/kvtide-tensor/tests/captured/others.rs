//! Other threads that use the device while a step is captured: they wait, and nothing of theirs is in the graph.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;

use candle_core::{Device, Tensor};
use kvtide_cuda::Emulation;
use kvtide_tensor::{
    AttendOptions, CaptureOptions, DType, Kernels, KvCache, KvCacheOptions, PagedKvCache, attend, pass, with_kernels,
};

use crate::buffers::Buffers;
use crate::toy::Toy;
use kvtide_core::model::LayerKind;

fn toy() -> Toy {
    Toy { kinds: vec![LayerKind::Full; 2], kv_heads: 1, group: 2, dim: 8, dtype: DType::F32, block_size: 4 }
}

/// What another thread has of its own.
struct Other {
    paged: PagedKvCache,
    sequence: u64,
    contiguous: KvCache,
    tensor: Tensor,
}

fn tokens(count: usize) -> Tensor {
    let numbers: Vec<f32> = (0..count * 8).map(|at| at as f32).collect();
    Tensor::from_vec(numbers, (1, 1, count, 8), &Device::Cpu).unwrap()
}

impl Other {
    fn new() -> Self {
        let mut paged = toy().cache(true, 16);
        let sequence = paged.create_sequence().unwrap();
        toy().step(&mut paged, &[sequence], &[1]).unwrap();
        let options = KvCacheOptions { num_kv_heads: 1, head_dim: 8, max_seq_len: 16, ..KvCacheOptions::default() };
        let mut contiguous = KvCache::new(options).unwrap();
        contiguous.update(&tokens(3), &tokens(3)).unwrap();
        Other { paged, sequence, contiguous, tensor: tokens(2) }
    }
}

/// Runs `work` on a thread of its own that begins within the second run of a capture: it waits, and a replay launches nothing of it.
fn during_a_capture(name: &str, work: impl FnOnce(Other) + Send + 'static) {
    let mut cache = toy().cache(true, 16);
    let sequence = cache.create_sequence().unwrap();
    toy().step(&mut cache, &[sequence], &[2]).unwrap();
    let buffers = Buffers::new(&toy(), &[3]);
    let other = with_kernels(Kernels::Emulated, Other::new).unwrap();
    let (mut other, mut runs) = (Some((other, work)), 0);
    let threads = Mutex::new(Vec::new());
    let (send, ended) = channel();
    with_kernels(Kernels::Emulated, || {
        let options = CaptureOptions { sequences: &[sequence], steps: 3 };
        let captured = cache.capture_step(options, |step| {
            runs += 1;
            if runs == 2 {
                let (other, work) = other.take().unwrap();
                let send = send.clone();
                let thread = thread::spawn(move || {
                    with_kernels(Kernels::Emulated, || work(other)).unwrap();
                    send.send(()).unwrap();
                });
                while !Emulation::is_waiting(thread.thread().id()) && !thread.is_finished() {
                    thread::yield_now();
                }
                assert!(ended.try_recv().is_err(), "{name}: it did not wait for the capture");
                threads.lock().unwrap().push(thread);
            }
            buffers.record(step)
        });
        let mut step = captured.unwrap_or_else(|error| panic!("{name}: {error}"));
        threads.lock().unwrap().pop().unwrap().join().unwrap();
        let before = Emulation::launches();
        cache.replay_step(&mut step).unwrap();
        assert_eq!(Emulation::launches() - before, 2 * 2 + 1, "{name}: launches of its own alone");
        cache.commit_captured(&mut step, None).unwrap();
    })
    .unwrap();
    ended.recv().unwrap();
}

#[test]
fn who_appends_waits() {
    during_a_capture("a step of a paged cache", |mut other| {
        toy().step(&mut other.paged, &[other.sequence], &[5]).unwrap();
        assert_eq!(other.paged.sequence_length(other.sequence), 2);
    });
    during_a_capture("an append", |mut other| {
        let seen = other.contiguous.update(&other.tensor, &other.tensor).unwrap().k.to_f32().unwrap();
        let expected: Vec<f32> = (0..24).chain(0..16).map(|at| at as f32).collect();
        assert_eq!(seen, expected);
    });
}

#[test]
fn who_reads_waits() {
    during_a_capture("a view that is read", |other| {
        let seen = other.contiguous.get_kv().unwrap().k.to_f32().unwrap();
        assert_eq!(seen, (0..24).map(|at| at as f32).collect::<Vec<_>>());
    });
    during_a_capture("attention", |other| {
        let kv = other.contiguous.get_kv().unwrap();
        attend(&other.tensor, &kv, &AttendOptions::default()).unwrap();
    });
}

#[test]
fn who_takes_memory_or_gives_it_back_waits() {
    during_a_capture("a new cache", |_other| drop(toy().cache(true, 16)));
    during_a_capture("a paged cache that is dropped", |other| drop(other.paged));
    during_a_capture("a cache that is dropped", |other| drop(other.contiguous));
    during_a_capture("what a user does with candle", |other| {
        let _pass = pass(other.tensor.device());
        drop(other.tensor);
    });
}

#[test]
fn two_captures_follow_each_other() {
    during_a_capture("another capture", |mut other| {
        let buffers = Buffers::new(&toy(), &[3]);
        let options = CaptureOptions { sequences: &[other.sequence], steps: 2 };
        let mut step = other.paged.capture_step(options, |step| buffers.record(step)).unwrap();
        other.paged.replay_step(&mut step).unwrap();
        other.paged.commit_captured(&mut step, None).unwrap();
        assert_eq!(other.paged.sequence_length(other.sequence), 3);
    });
}

#[test]
fn who_holds_captures_off_is_refused_one() {
    let mut other = with_kernels(Kernels::Emulated, Other::new).unwrap();
    let buffers = Buffers::new(&toy(), &[3]);
    with_kernels(Kernels::Emulated, || {
        let held = pass(other.tensor.device());
        assert!(held.is_some());
        let of = [other.sequence];
        let options = CaptureOptions { sequences: &of, steps: 2 };
        let refused = other.paged.capture_step(options, |step| buffers.record(step)).unwrap_err();
        assert!(refused.to_string().contains("this thread holds captures off"), "{refused}");
        drop(held);
        let mut step = other.paged.capture_step(options, |step| buffers.record(step)).unwrap();
        other.paged.commit_captured(&mut step, None).unwrap();
    })
    .unwrap();
}
