//! Single hazards: objects of another cache, objects that outlive theirs, background readers, memory that runs out in the
//! middle of a call.

use kvtide_core::paged::PageFormat;
use kvtide_core::{Code, TransactionId};
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::{
    DType, Error, HostTensor, PagedKvCache, PagedKvCacheOptions, PagedStep, PromptOptions, StepTokens, Transactional,
};

use crate::outcome::code;

const BLOCK_SIZE: u32 = 4;

fn cache(format: Option<PageFormat>, limit: Option<u64>) -> PagedKvCache {
    PagedKvCache::new(PagedKvCacheOptions {
        capacity: 8,
        block_size: BLOCK_SIZE,
        num_layers: 2,
        head_dim: 2,
        key_format: format,
        value_format: format,
        memory_limit_bytes: limit,
        ..Default::default()
    })
    .unwrap()
}

/// Rows of tokens that count up from `first`, `[layers, 1, tokens, 2]`; without layers those of one.
fn rows(first: u32, tokens: u32, layers: Option<u32>) -> (Vec<u8>, Vec<usize>) {
    let numbers = (0..layers.unwrap_or(1)).flat_map(|_| (first..first + tokens).flat_map(|token| [token as f32; 2]));
    let shape = layers.into_iter().chain([1, tokens, 2]).map(|size| size as usize).collect();
    (numbers.flat_map(f32::to_ne_bytes).collect(), shape)
}

fn append(cache: &mut PagedKvCache, id: u64, first: u32, tokens: u32) -> Result<(), Error> {
    let (bytes, shape) = rows(first, tokens, Some(2));
    let host = || HostTensor::new("k", &bytes, DType::F32, &shape).unwrap();
    let ids: Vec<u32> = (first..first + tokens).collect();
    cache.append_known(&[id], host(), host(), Some(&[0, tokens]), Some(&ids))
}

fn write(cache: &mut PagedKvCache, step: &mut PagedStep, layer: u32, first: u32, tokens: u32) -> Result<(), Error> {
    let (bytes, shape) = rows(first, tokens, None);
    let host = || HostTensor::new("k", &bytes, DType::F32, &shape).unwrap();
    cache.write_layer(step, layer, host(), host())
}

fn begin(cache: &mut PagedKvCache, id: u64, tokens: u32) -> Result<PagedStep, Error> {
    cache.begin_step(StepTokens { sequences: &[id], offsets: Some(&[0, tokens]), parents: None })
}

/// The content of every sequence.
fn shown(cache: &mut PagedKvCache) -> Vec<(u64, Vec<f32>)> {
    cache.check_invariants().unwrap();
    let ids = cache.sequence_ids();
    let mut of = |id| [0, 1].map(|layer| cache.gather(id, layer).unwrap().k.to_f32().unwrap()).concat();
    ids.into_iter().map(|id| (id, of(id))).collect()
}

/// A change of a cache.
type Call = fn(&mut PagedKvCache, u64) -> Result<(), Error>;

#[test]
fn objects_of_another_cache_are_refused() {
    let (mut cache, mut other) = (cache(None, None), cache(None, None));
    let id = cache.create_sequence().unwrap();
    let there = other.create_sequence().unwrap();
    append(&mut cache, id, 0, 5).unwrap();
    append(&mut other, there, 10, 5).unwrap();
    let before = shown(&mut cache);
    // Both have one of the same number.
    let (snapshot, _own) = (other.snapshot(there).unwrap(), cache.snapshot(id).unwrap());
    let prefix = other.find_prefix(&[10, 11, 12, 13, 14], PromptOptions::default(), false).unwrap();
    assert_eq!(prefix.length(), 4);
    let mut step = begin(&mut other, there, 1).unwrap();
    assert_eq!(code(cache.restore(id, &snapshot)), Err(Code::SnapshotInvalid));
    assert_eq!(code(cache.check_prefix(&prefix)), Err(Code::SnapshotInvalid));
    assert_eq!(code(cache.create_sequence_from(prefix)), Err(Code::SnapshotInvalid));
    assert_eq!(code(write(&mut cache, &mut step, 0, 0, 1)), Err(Code::InvalidArgument));
    assert_eq!(code(cache.step_pages(&step, 0)), Err(Code::InvalidArgument));
    assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::InvalidArgument));
    assert_eq!(code(cache.undo_step(&mut step)), Err(Code::InvalidArgument));
    assert_eq!(shown(&mut cache), before);
    // What was refused is still of use where it comes from.
    (0..2).for_each(|layer| write(&mut other, &mut step, layer, 15, 1).unwrap());
    other.commit_step(&mut step, None).unwrap();
    assert_eq!(shown(&mut other)[0].1[10..12], [15.; 2]);
    other.restore(there, &snapshot).unwrap();
    drop(snapshot);
    other.drop_sequence(there).unwrap();
    assert_eq!(other.pools().unwrap()[0].active, 0, "the prefix that was refused holds nothing");
}

#[test]
fn what_outlives_its_cache_does_no_harm() {
    let mut cache = cache(Some(PageFormat::Q8), None);
    let id = cache.create_sequence().unwrap();
    append(&mut cache, id, 0, 6).unwrap();
    let snapshot = cache.snapshot(id).unwrap();
    let prefix = cache.find_prefix(&[0, 1, 2, 3, 4], PromptOptions::default(), true).unwrap();
    let mut step = begin(&mut cache, id, 1).unwrap();
    write(&mut cache, &mut step, 0, 6, 1).unwrap();
    let pages = cache.pages(0, &[id]).unwrap().pinned();
    drop(cache);
    let q = [1f32; 2].map(f32::to_ne_bytes).concat();
    let host = HostTensor::new("q", &q, DType::F32, &[1, 1, 2]).unwrap();
    let options = AttendOptions { query_offsets: Some(&[0, 1]), ..Default::default() };
    assert!(attend(host, &pages, &options).unwrap().out.to_f32().unwrap()[0] > 4.);
    drop((snapshot, prefix, step, pages));
}

/// A change of a cache with two sequences, of which the second one has an open transaction.
type Change = (&'static str, fn(&mut PagedKvCache, TransactionId) -> Result<(), Error>);

const CHANGES: [Change; 16] = [
    ("create", |cache, _| cache.create_sequence().map(drop)),
    ("drop", |cache, _| cache.drop_sequence(0)),
    ("fork", |cache, _| cache.fork(0).map(drop)),
    ("truncate", |cache, _| cache.truncate(0, 1)),
    ("snapshot", |cache, _| cache.snapshot(0).map(drop)),
    ("ensure", |cache, _| cache.ensure_capacity(0, 20)),
    ("append", |cache, _| append(cache, 0, 9, 1)),
    ("find", |cache, _| cache.find_prefix(&[0, 1], PromptOptions::default(), true).map(drop)),
    ("forget", |cache, _| cache.forget_prefixes()),
    ("clock", |cache, _| cache.advance_clock(1)),
    ("retain", |cache, _| cache.retain(0, 0..1, 1, None)),
    ("step", |cache, _| begin(cache, 0, 1).map(drop)),
    ("begin", |cache, _| cache.sequence(0)?.begin_draft(None, Default::default()).map(drop)),
    ("commit", |cache, draft| cache.sequence(1)?.commit_draft(draft, None)),
    ("path", |cache, draft| cache.sequence(1)?.commit_draft_path(draft, &[0])),
    ("roll back", |cache, draft| cache.sequence(1)?.rollback_draft(draft)),
];

#[test]
fn a_reader_in_the_background_stops_all_changes_and_nothing_leaks() {
    for format in [None, Some(PageFormat::Q4)] {
        let mut cache = cache(format, None);
        let [id, other] = [0; 2].map(|_| cache.create_sequence().unwrap());
        append(&mut cache, id, 0, 6).unwrap();
        let draft = cache.sequence(other).unwrap().begin_draft(None, Default::default()).unwrap();
        let mut step = begin(&mut cache, other, 3).unwrap();
        (0..2).for_each(|layer| write(&mut cache, &mut step, layer, 20, 3).unwrap());
        cache.commit_step(&mut step, None).unwrap();
        let (snapshot, kept) = (cache.snapshot(id).unwrap(), cache.snapshot(id).unwrap());
        let prefix = cache.find_prefix(&[0, 1, 2, 3, 4], PromptOptions::default(), false).unwrap();
        let mut step = begin(&mut cache, id, 7).unwrap();
        let before = shown(&mut cache);
        let pages = cache.pages(0, &[id, other]).unwrap().pinned();
        let more = pages.clone();
        drop(pages);
        for (name, change) in CHANGES {
            assert_eq!(code(change(&mut cache, draft)), Err(Code::Busy), "{name}");
        }
        assert_eq!(code(write(&mut cache, &mut step, 0, 6, 7)), Err(Code::Busy));
        assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::Busy));
        assert_eq!(code(cache.undo_step(&mut step)), Err(Code::Busy));
        assert_eq!(code(cache.restore(other, &kept)), Err(Code::Busy));
        assert_eq!(code(cache.create_sequence_from(prefix)), Err(Code::Busy));
        assert_eq!(shown(&mut cache), before);
        // To let go of things is never refused.
        drop((snapshot, step));
        cache.sequence(other).unwrap().drop_draft(draft);
        cache.release_sequence(other);
        cache.check_invariants().unwrap();
        drop(more);
        assert_eq!(code(cache.truncate(id, 6)), Ok(()));
        assert_eq!(
            (cache.sequence_ids(), shown(&mut cache)),
            (vec![id], before[..1].iter().map(|of| (of.0, cut(&of.1, 6))).collect())
        );
        cache.drop_sequence(id).unwrap();
        drop(kept);
        cache.forget_prefixes().unwrap();
        let stats = cache.pools().unwrap()[0];
        assert_eq!((stats.active, stats.free, cache.staged_count()), (0, 8, 0));
    }
}

/// The first tokens of both layers.
fn cut(shown: &[f32], tokens: usize) -> Vec<f32> {
    shown.chunks(shown.len() / 2).flat_map(|layer| layer[..2 * tokens].to_vec()).collect()
}

#[test]
fn a_transaction_that_is_dropped_in_a_step_takes_it_along() {
    for format in [None, Some(PageFormat::Q8)] {
        let mut cache = cache(format, None);
        let id = cache.create_sequence().unwrap();
        append(&mut cache, id, 0, 6).unwrap();
        let (before, free) = (shown(&mut cache), cache.free_count());
        let draft = cache.sequence(id).unwrap().begin_draft(None, Default::default()).unwrap();
        let mut step = begin(&mut cache, id, 5).unwrap();
        write(&mut cache, &mut step, 0, 6, 5).unwrap();
        cache.sequence(id).unwrap().drop_draft(draft);
        assert_eq!((shown(&mut cache), cache.free_count()), (before.clone(), free));
        assert_eq!(code(write(&mut cache, &mut step, 1, 6, 5)), Err(Code::StaleStep));
        cache.undo_step(&mut step).unwrap();
        assert_eq!((shown(&mut cache), cache.free_count()), (before, free));
        append(&mut cache, id, 6, 5).unwrap();
        cache.drop_sequence(id).unwrap();
        assert_eq!((cache.free_count(), cache.staged_count()), (8, 0));
    }
}

#[test]
fn memory_that_runs_out_in_a_copy_or_in_staging_changes_nothing_that_is_seen() {
    let slab = cache(Some(PageFormat::Q8), None).stats().buffer_bytes;
    // A staging page: K and V of four tokens of two floats, in lines of 64 bytes.
    let staged = {
        let mut cache = cache(Some(PageFormat::Q8), None);
        let id = cache.create_sequence().unwrap();
        append(&mut cache, id, 0, 1).unwrap();
        (cache.stats().buffer_bytes - slab) / 2
    };
    let mut refused = [0; 3];
    for pages in 2..16 {
        let calls: [Call; 3] = [
            |cache, id| append(cache, id, 20, 1),
            |cache, id| append(cache, id, 20, 4),
            |cache, id| begin(cache, id, 4).map(drop),
        ];
        for (at, call) in calls.into_iter().enumerate() {
            let mut cache = cache(Some(PageFormat::Q8), Some(slab + pages * staged));
            let id = cache.create_sequence().unwrap();
            append(&mut cache, id, 0, 6).unwrap();
            let fork = cache.fork(id).unwrap();
            let before = (shown(&mut cache), cache.free_count());
            match call(&mut cache, fork) {
                Err(error) => {
                    assert_eq!(error.code(), Code::OutOfMemory);
                    assert_eq!((shown(&mut cache), cache.free_count()), before, "room for {pages} pages");
                    assert_eq!(code(call(&mut cache, fork)), Err(Code::OutOfMemory));
                    assert_eq!((shown(&mut cache), cache.free_count()), before);
                    refused[at] += 1;
                }
                Ok(()) => assert_eq!(shown(&mut cache)[0], before.0[0]),
            }
            [id, fork].into_iter().for_each(|id| cache.drop_sequence(id).unwrap());
            cache.forget_prefixes().unwrap();
            assert_eq!((cache.free_count(), cache.staged_count()), (8, 0));
        }
    }
    assert!(refused.iter().all(|&count| count > 0), "{refused:?}");
}

#[test]
fn a_page_that_a_snapshot_holds_is_quantised_in_a_copy_when_the_draft_is_committed() {
    for (by_path, spare) in [(false, true), (true, true), (false, false)] {
        let mut cache = cache(Some(PageFormat::Q4), None);
        let (id, other) = (cache.create_sequence().unwrap(), cache.create_sequence().unwrap());
        if !spare {
            cache.ensure_capacity(other, 6 * BLOCK_SIZE).unwrap();
        }
        append(&mut cache, id, 1, 2).unwrap();
        let draft = cache.begin(id, None, Default::default()).unwrap();
        let mut step = begin(&mut cache, id, 3).unwrap();
        (0..2).for_each(|layer| write(&mut cache, &mut step, layer, 3, 3).unwrap());
        cache.commit_step(&mut step, Some(&[3, 4, 5])).unwrap();
        let snapshot = cache.snapshot(id).unwrap();
        let drafted = shown(&mut cache);
        match by_path {
            true => cache.commit_path(id, draft, &[0, 1, 2]).unwrap(),
            false => cache.commit(id, draft, None).unwrap(),
        }
        let found = cache.find_prefix(&[1, 2, 3, 4, 5, 6], Default::default(), false).unwrap().length();
        assert_eq!(found, if spare { BLOCK_SIZE } else { 0 });
        // What the snapshot saw is what it gives, to the bit.
        cache.restore(other, &snapshot).unwrap();
        assert_eq!(shown(&mut cache)[1].1, drafted[0].1);
        drop(snapshot);
        cache.drop_sequence(other).unwrap();
        append(&mut cache, id, 6, 3).unwrap();
        assert_eq!(
            cache.staged_count(),
            if spare { 0 } else { 2 },
            "two layers of a page stay in floats without a block"
        );
    }
}
