//! Step runs: they give the same bits, nothing else writes to pages meanwhile, and a run that ends early leaves no trace.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use kvtide_core::paged::PageFormat;
use kvtide_core::{Code, TransactionId};
use kvtide_tensor::attention::AttendOptions;
use kvtide_tensor::runtime::{Kernels, with_host};
use kvtide_tensor::{
    DType, Error, HostTensor, PagedKvCache, PagedKvCacheOptions, PagedStep, PromptOptions, StepRun, StepTokens,
};

use crate::model::Id;
use crate::semantics::{filled, shows};
use crate::subject::{
    Blocks, KINDS, append, cache as of_model, code, everything, floats, mixed, options, own_layers, with_rows, write,
    written,
};

type Call = fn(&mut PagedKvCache, u64) -> Result<(), Error>;

/// Calls that touch pages.
const WRITES: [(&str, Call); 4] = [
    ("append", |cache, id| append(cache, id, &[30])),
    ("another step", |cache, id| cache.begin_step(StepTokens { sequences: &[id], ..Default::default() }).map(drop)),
    ("a path of a tree", |cache, id| cache.commit_path(id, TransactionId::from_raw(1), &[1])),
    ("a layer of another step", |cache, id| {
        let mut step = cache.begin_step(StepTokens { sequences: &[id], ..Default::default() })?;
        write(cache, &mut step, 0, &[30])
    }),
];

/// Calls that change only bookkeeping.
const OTHERS: [(&str, Call); 12] = [
    ("create", |cache, _| cache.create_sequence().map(drop)),
    ("fork", |cache, id| cache.fork(id).map(drop)),
    ("find", |cache, _| {
        let prefix = cache.find_prefix(&[1, 2, 3, 4, 5], PromptOptions::default(), true)?;
        cache.create_sequence_from(prefix).map(drop)
    }),
    ("snapshot", |cache, id| {
        let snapshot = cache.snapshot(id)?;
        let copy = cache.create_sequence()?;
        cache.restore(copy, &snapshot)
    }),
    ("transaction", |cache, id| {
        let draft = cache.begin(id, None, Default::default())?;
        cache.rollback(id, draft);
        Ok(())
    }),
    ("a transaction without tokens", |cache, id| {
        let draft = cache.begin(id, None, Default::default())?;
        cache.commit(id, draft, None)
    }),
    ("ensure", |cache, id| cache.ensure_capacity(id, 20)),
    ("retain", |cache, id| cache.retain(id, 0..3, 80, None)),
    ("clock", |cache, _| cache.advance_clock(7)),
    ("forget", |cache, _| cache.forget_prefixes()),
    ("truncate", |cache, id| cache.truncate(id, 6)),
    ("drop", |cache, id| cache.drop_sequence(id)),
];

fn attend(run: &StepRun, layer: u32, tokens: usize) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let bytes = queries(run.model().layers()[layer as usize].head_dim, tokens);
    let attended = run.attend_layer(layer, host(&bytes, tokens), &AttendOptions::default())?;
    Ok((attended.out.to_f32()?, attended.lse))
}

fn queries(dim: u32, tokens: usize) -> Vec<u8> {
    floats(&(0..tokens * 2 * dim as usize).map(|at| (at as f32 * 0.61).sin()).collect::<Vec<_>>())
}

fn host(bytes: &[u8], tokens: usize) -> HostTensor<'_> {
    HostTensor::new("q", bytes, DType::F32, &[tokens, 2, bytes.len() / (8 * tokens)]).unwrap()
}

fn write_to(cache: &mut PagedKvCache, run: &mut StepRun, layer: u32, ids: &[Id]) -> Result<(), Error> {
    with_rows(cache, layer, ids, |_, k, v| run.write_layer(layer, k, v))
}

fn begin(cache: &mut PagedKvCache, id: u64, tokens: u32) -> PagedStep {
    cache.begin_step(StepTokens { sequences: &[id], offsets: Some(&[0, tokens]), parents: None }).unwrap()
}

/// The mixed model in pages of some format, a sequence of so many tokens in it.
fn quantised(format: Option<PageFormat>, kind: Blocks, tokens: Id) -> (PagedKvCache, u64) {
    let options =
        kvtide_tensor::PagedModelOptions { key_format: format, value_format: format, ..options(mixed(), kind) };
    let mut cache = PagedKvCache::of_model(options).unwrap();
    let id = cache.create_sequence().unwrap();
    append(&mut cache, id, &(1..=tokens).collect::<Vec<_>>()).unwrap();
    (cache, id)
}

#[test]
fn a_step_elsewhere_has_the_bits_of_one_here() {
    let formats = [None, Some(PageFormat::F8E4M3), Some(PageFormat::Q8), Some(PageFormat::Q4)];
    for (format, kind) in formats.into_iter().flat_map(|format| KINDS.map(|kind| (format, kind))) {
        for (before, ids) in [(0, 1..=9), (7, 20..=20), (7, 20..=25), (8, 20..=31)] {
            let ids: Vec<Id> = ids.collect();
            let (mut here, id) = quantised(format, kind, before);
            let (mut there, _) = quantised(format, kind, before);
            let mut step = begin(&mut here, id, ids.len() as u32);
            let mut expected = Vec::new();
            for layer in 0..6 {
                if own_layers(&here).contains(&layer) {
                    write(&mut here, &mut step, layer, &ids).unwrap();
                }
                let bytes = queries(here.model().layers()[layer as usize].head_dim, ids.len());
                let attended = here.attend_layer(&step, layer, host(&bytes, ids.len()), &Default::default()).unwrap();
                expected.push((attended.out.to_f32().unwrap(), attended.lse));
            }
            here.commit_step(&mut step, None).unwrap();

            let mut step = begin(&mut there, id, ids.len() as u32);
            let mut run = there.run_step(&mut step).unwrap();
            assert_eq!(run.tokens(), ids.len() as u32);
            let (mut model, tokens) = (of_model(mixed(), kind), ids.clone());
            let computed = std::thread::spawn(move || {
                let of_layer = |layer: u32| {
                    let is_own = own_layers(&model).contains(&layer);
                    assert_eq!(run.is_shared(layer).unwrap(), !is_own);
                    if is_own {
                        assert_eq!(code(attend(&run, layer, tokens.len())), Err(Code::InvalidArgument));
                        write_to(&mut model, &mut run, layer, &tokens).unwrap();
                    }
                    attend(&run, layer, tokens.len()).unwrap()
                };
                ((0..6).map(of_layer).collect::<Vec<_>>(), run)
            });
            let (outputs, run) = computed.join().unwrap();
            assert!(outputs == expected, "{format:?} {kind:?} {before} {ids:?}");
            assert_eq!(Id::from(there.sequence_length(id)), before);
            there.end_run(&mut step, run).unwrap();
            there.commit_step(&mut step, None).unwrap();
            assert_eq!(everything(&mut there), everything(&mut here), "{format:?} {kind:?} {before} {ids:?}");
        }
    }
}

#[test]
fn nothing_else_touches_pages_and_the_bookkeeping_goes_on() {
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 9);
        let other = cache.create_sequence().unwrap();
        append(&mut cache, other, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
        let tree = cache.fork(other).unwrap();
        let draft = cache.begin(tree, None, Default::default()).unwrap();
        let mut nodes = written(&mut cache, tree, &[40, 41], Some(&[-1, -1])).unwrap();
        cache.commit_step(&mut nodes, None).unwrap();
        assert_eq!(draft, TransactionId::from_raw(1));
        let mut step = begin(&mut cache, id, 2);
        let mut run = cache.run_step(&mut step).unwrap();
        write_to(&mut cache, &mut run, 0, &[20, 21]).unwrap();
        for (name, call) in WRITES {
            let of = if name == "a path of a tree" { tree } else { other };
            let before = everything(&mut cache);
            assert_eq!(code(call(&mut cache, of)), Err(Code::Busy), "{name} on {kind:?}");
            assert_eq!(everything(&mut cache), before, "{name} on {kind:?}");
        }
        // The step itself is elsewhere.
        assert_eq!(code(write(&mut cache, &mut step, 0, &[20, 21])), Err(Code::Busy));
        assert_eq!(code(cache.step_layer(&step, 0)), Err(Code::Busy));
        assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::Busy));
        assert_eq!(code(cache.run_step(&mut step)), Err(Code::Busy));
        assert_eq!(code(cache.truncate(id, 1)), Err(Code::TransactionOpen));
        for (name, call) in OTHERS {
            assert_eq!(code(call(&mut cache, other)), Ok(()), "{name} on {kind:?}");
            cache.check_invariants().unwrap();
        }
        cache.rollback(tree, draft);
        for layer in [1, 3, 5] {
            write_to(&mut cache, &mut run, layer, &[20, 21]).unwrap();
        }
        assert_eq!(code(write_to(&mut cache, &mut run, 2, &[20, 21])), Err(Code::InvalidArgument), "it reads another");
        assert_eq!(code(write_to(&mut cache, &mut run, 0, &[20])), Err(Code::InvalidArgument), "too few tokens");
        assert_eq!(code(attend(&run, 5, 1)), Err(Code::InvalidArgument), "too few queries");
        assert_eq!(code(run.layer(6)), Err(Code::InvalidArgument));
        cache.end_run(&mut step, run).unwrap();
        cache.commit_step(&mut step, None).unwrap();
        shows(&mut cache, id, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21]);
    }
}

#[test]
fn readers_in_the_background_do_not_keep_a_run_from_ending() {
    let (mut cache, id) = filled(KINDS[0], 9);
    let other = cache.create_sequence().unwrap();
    append(&mut cache, other, &[1, 2, 3]).unwrap();
    let mut step = begin(&mut cache, id, 1);
    let reader = cache.layer_pages(0, &[other]).unwrap().pinned();
    assert_eq!(code(cache.run_step(&mut step)), Err(Code::Busy));
    drop(reader);
    let mut run = cache.run_step(&mut step).unwrap();
    let reader = cache.layer_pages(0, &[other]).unwrap().pinned();
    assert_eq!(code(cache.create_sequence()), Err(Code::Busy));
    for layer in [0, 1, 3, 5] {
        write_to(&mut cache, &mut run, layer, &[20]).unwrap();
    }
    cache.end_run(&mut step, run).unwrap();
    assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::Busy));
    drop(reader);
    cache.commit_step(&mut step, None).unwrap();
    shows(&mut cache, id, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 20]);
}

#[test]
fn pages_that_a_run_writes_are_not_read_in_place() {
    let (mut cache, id) = filled(KINDS[0], 9);
    let mut step = begin(&mut cache, id, 2);
    write(&mut cache, &mut step, 0, &[20, 21]).unwrap();
    let mut run = cache.run_step(&mut step).unwrap();
    write_to(&mut cache, &mut run, 5, &[20, 21]).unwrap();
    // Layer 0 was written before, layer 5 shows nothing of the step yet.
    assert_eq!(code(cache.pages(0, &[id])), Ok(()));
    assert_eq!(code(cache.pages(5, &[id])), Err(Code::Busy));
    let copies = cache.gather(id, 5).unwrap().k.to_f32().unwrap();
    assert!(copies.chunks_exact(11 * 4).all(|head| head[9 * 4..].iter().all(|&value| value == 0.)));
    drop(run);
    assert_eq!(code(cache.check_written(&step, 5)), Err(Code::InvalidArgument), "as it was before the run");
    assert_eq!(code(cache.pages(5, &[id])), Ok(()));
    let zeroed = cache.gather(id, 5).unwrap().k.to_f32().unwrap();
    assert_eq!(zeroed, copies);
    assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::StepIncomplete));
    cache.undo_step(&mut step).unwrap();
    shows(&mut cache, id, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

/// Events that end a step while another thread computes it, and the error of `end_run` afterwards.
#[test]
fn a_step_that_ends_meanwhile_leaves_no_trace() {
    type End = fn(&mut PagedKvCache, u64, &mut PagedStep);
    let ends: [(End, Code); 4] = [
        (|cache, id, _| cache.drop_sequence(id).unwrap(), Code::StaleStep),
        (|cache, id, _| cache.release_sequence(id), Code::StaleStep),
        (|cache, _, step| cache.undo_step(step).unwrap(), Code::TransactionClosed),
        (|cache, id, _| cache.rollback(id, TransactionId::from_raw(1)), Code::StaleStep),
    ];
    for (kind, (place, (end, refused))) in
        KINDS.into_iter().flat_map(|kind| ends.iter().enumerate().map(move |of| (kind, of)))
    {
        let (mut cache, id) = filled(kind, 9);
        cache.begin(id, None, Default::default()).unwrap();
        let mut step = begin(&mut cache, id, 6);
        let mut run = cache.run_step(&mut step).unwrap();
        let rows = vec![1; cache.pools().unwrap().len()];
        assert!(cache.new_blocks(&rows).is_ok(), "a run beside which its step is open");
        end(&mut cache, id, &mut step);
        // Its blocks are free, and it writes to them: saved content cannot have them.
        assert_eq!(code(cache.new_blocks(&rows)), Err(Code::Busy));
        // Its blocks now belong to another sequence.
        let next = cache.create_sequence().unwrap();
        cache.ensure_capacity(next, 16).unwrap();
        for layer in [0, 1, 3, 5] {
            write_to(&mut cache, &mut run, layer, &[50, 51, 52, 53, 54, 55]).unwrap();
            attend(&run, layer, 6).unwrap();
        }
        assert_eq!(code(append(&mut cache, next, &[1])), Err(Code::Busy));
        assert_eq!(code(cache.end_run(&mut step, run)), Err(*refused), "{place} on {kind:?}");
        assert!(cache.new_blocks(&rows).is_ok(), "the run has ended");
        append(&mut cache, next, &[1, 2, 3]).unwrap();
        shows(&mut cache, next, &[1, 2, 3]);
        if cache.has_sequence(id) {
            shows(&mut cache, id, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        }
    }
}

#[test]
fn a_panic_in_the_middle_of_a_run_leaves_no_trace() {
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 9);
        let other = cache.create_sequence().unwrap();
        let mut step = begin(&mut cache, id, 6);
        let mut run = cache.run_step(&mut step).unwrap();
        write_to(&mut cache, &mut run, 0, &[50, 51, 52, 53, 54, 55]).unwrap();
        let bytes = queries(run.model().layers()[0].head_dim, 6);
        let options = AttendOptions::default();
        let call = || run.attend_layer_with(0, host(&bytes, 6), &options, |_| panic!("in a kernel"));
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        attend(&run, 0, 6).unwrap();
        drop(run);
        cache.undo_step(&mut step).unwrap();
        for (sequence, before) in [(id, vec![1, 2, 3, 4, 5, 6, 7, 8, 9]), (other, vec![])] {
            shows(&mut cache, sequence, &before);
            append(&mut cache, sequence, &[60, 61]).unwrap();
            shows(&mut cache, sequence, &[before, vec![60, 61]].concat());
        }
    }
}

#[test]
fn a_run_belongs_to_its_step() {
    let (mut cache, id) = filled(KINDS[0], 3);
    let (mut elsewhere, there) = filled(KINDS[0], 3);
    let other = cache.create_sequence().unwrap();
    let (mut step, mut second) = (begin(&mut cache, id, 1), begin(&mut cache, other, 1));
    let mut far = begin(&mut elsewhere, there, 1);
    assert_eq!(code(cache.run_step(&mut far)), Err(Code::InvalidArgument));
    let run = cache.run_step(&mut step).unwrap();
    assert_eq!(code(cache.run_step(&mut second)), Err(Code::Busy), "one at a time");
    assert_eq!(code(cache.end_run(&mut second, run)), Err(Code::InvalidArgument));
    let run = cache.run_step(&mut second).unwrap();
    assert_eq!(code(elsewhere.end_run(&mut far, run)), Err(Code::InvalidArgument));
    for of in [&mut step, &mut second] {
        drop(cache.run_step(of).unwrap());
        cache.undo_step(of).unwrap();
        assert_eq!(code(cache.run_step(of)), Err(Code::TransactionClosed));
    }
    append(&mut cache, other, &[1]).unwrap();
}

#[test]
fn what_was_written_before_and_in_several_runs_counts_together() {
    let (mut cache, id) = filled(KINDS[0], 3);
    let mut step = begin(&mut cache, id, 2);
    write(&mut cache, &mut step, 0, &[20, 21]).unwrap();
    for layer in [1, 3] {
        let mut run = cache.run_step(&mut step).unwrap();
        attend(&run, 2, 2).unwrap();
        write_to(&mut cache, &mut run, layer, &[20, 21]).unwrap();
        cache.end_run(&mut step, run).unwrap();
    }
    write(&mut cache, &mut step, 5, &[20, 21]).unwrap();
    cache.commit_step(&mut step, None).unwrap();
    shows(&mut cache, id, &[1, 2, 3, 20, 21]);
}

#[test]
fn a_run_outlives_its_cache() {
    let (mut cache, id) = filled(KINDS[0], 3);
    let mut other = of_model(mixed(), KINDS[0]);
    let mut step = begin(&mut cache, id, 2);
    let mut run = cache.run_step(&mut step).unwrap();
    drop(cache);
    write_to(&mut other, &mut run, 0, &[20, 21]).unwrap();
    attend(&run, 0, 2).unwrap();
    drop((step, run));
}

/// Returns the attention of one layer for a prompt, and for a token after it, on the caller's threads. A prompt of 1,000 tokens is long
/// enough for both steps to be shared.
fn large(format: Option<PageFormat>, prompt: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let options = PagedKvCacheOptions {
        capacity: 80,
        num_kv_heads: 4,
        head_dim: 64,
        key_format: format,
        value_format: format,
        ..Default::default()
    };
    let mut cache = PagedKvCache::new(options).unwrap();
    let id = cache.create_sequence().unwrap();
    let mut attended = |tokens: usize| {
        let mut step = begin(&mut cache, id, tokens as u32);
        let mut run = cache.run_step(&mut step).unwrap();
        let rows = queries(64 * 2, tokens);
        let rows = || HostTensor::new("k", &rows, DType::F32, &[4, tokens, 64]).unwrap();
        run.write_layer(0, rows(), rows()).unwrap();
        let q = queries(64 * 4, tokens);
        let q = HostTensor::new("q", &q, DType::F32, &[tokens, 8, 64]).unwrap();
        let attended = run.attend_layer(0, q, &AttendOptions::default()).unwrap();
        cache.end_run(&mut step, run).unwrap();
        cache.commit_step(&mut step, None).unwrap();
        (attended.out.to_f32().unwrap(), attended.lse)
    };
    vec![attended(prompt), attended(1)]
}

#[test]
fn a_host_s_threads_give_the_same_bits() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let share = |count: usize, call: &(dyn Fn(usize) + Sync)| {
        CALLS.fetch_add(1, Ordering::Relaxed);
        std::thread::scope(|scope| (0..count).for_each(|place| drop(scope.spawn(move || call(place)))));
    };
    // The portable kernels, and those for GPUs, share nothing among a host's threads. Emulated ones would take a minute for a long prompt.
    let kernels = Kernels::current().unwrap().name();
    let can_share = !["opaque", "portable", "emulated"].contains(&kernels);
    let prompt = if kernels == "emulated" { 40 } else { 1000 };
    for format in [None, Some(PageFormat::Q4)] {
        let expected = large(format, prompt);
        for threads in [1, 2, 5] {
            let before = CALLS.load(Ordering::Relaxed);
            assert!(with_host(threads, share, || large(format, prompt)) == expected, "{format:?} on {threads} threads");
            let is_shared = threads > 1 && can_share;
            assert_eq!(CALLS.load(Ordering::Relaxed) > before, is_shared, "{threads} threads");
        }
    }
}

#[test]
fn it_reads_what_a_sequence_had_before_the_step() {
    for (format, kind) in [None, Some(PageFormat::Q8)].into_iter().flat_map(|format| KINDS.map(|kind| (format, kind))) {
        for before in [0, 3, 7, 30] {
            let (mut cache, id) = quantised(format, kind, before);
            let other = cache.create_sequence().unwrap();
            append(&mut cache, other, &[40, 41, 42]).unwrap();
            let layers: Vec<u32> = own_layers(&cache);
            let read = |kv: kvtide_tensor::Kv| [kv.k, kv.v].map(|view| (view.shape().to_vec(), view.to_f32().unwrap()));
            let sequences = [other, id];
            let expected: Vec<_> = layers
                .iter()
                .map(|&layer| sequences.map(|sequence| read(cache.gather(sequence, layer).unwrap())))
                .collect();
            let tokens = StepTokens { sequences: &sequences, offsets: Some(&[0, 2, 7]), parents: None };
            let mut step = cache.begin_step(tokens).unwrap();
            let mut run = cache.run_step(&mut step).unwrap();
            for written in [false, true] {
                for (&layer, expected) in layers.iter().zip(&expected) {
                    let found = [0, 1].map(|place| read(run.gather(layer, place).unwrap()));
                    assert_eq!(&found, expected, "{format:?} {before} {written} {layer}");
                    write_to(&mut cache, &mut run, layer, &[50, 51, 52, 53, 54, 55, 56]).unwrap();
                }
            }
            assert_eq!(code(run.gather(0, 2)), Err(Code::InvalidArgument));
            assert_eq!(code(run.gather(6, 0)), Err(Code::InvalidArgument));
            cache.end_run(&mut step, run).unwrap();
            cache.commit_step(&mut step, None).unwrap();
        }
    }
}
