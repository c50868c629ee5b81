//! Memory that runs out in the middle of a call on a paged cache: the call fails, and everything is as it was.
//!
//! Each call of a scenario is tried while the allocator fails the first large allocation, then the second, and so on; and
//! then with every memory limit from zero on. The whole visible state is compared after each failure.

mod allocator;
mod contiguous;

use std::fmt::Debug;
use std::sync::Arc;

use kvtide_core::Code;
use kvtide_core::model::{LayerDescription, ModelDescription};
use kvtide_core::paged::PageFormat;
use kvtide_tensor::buffers::Source;
use kvtide_tensor::runtime::{Budget, Kernels};
use kvtide_tensor::{
    BeginOptions, DType, HostTensor, KvTransaction, PagedKvCache, PagedKvCacheOptions, PagedModelOptions, PoolRoom,
    Result, StepTokens, Tokens, Transactional,
};

const LAYERS: u32 = 2;
const DIM: usize = 64;
const BLOCK: u32 = 8;

/// A cache, and the budget that its memory is taken from.
struct Subject {
    cache: PagedKvCache,
    budget: Arc<Budget>,
}

/// The source of an out-of-memory error: the allocator, or a limit.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Allocator,
    Limit,
}

/// The allocator may refuse where bytes are moved in place; candle's operations, and copies for a device, take memory of their own
/// in the middle of a call.
fn are_moved_in_place() -> bool {
    !["opaque", "portable", "emulated"].contains(&Kernels::current().unwrap().name())
}

fn refusals() -> impl Iterator<Item = Refusal> {
    are_moved_in_place().then_some(Refusal::Allocator).into_iter().chain([Refusal::Limit])
}

const FORMATS: [[Option<PageFormat>; 2]; 4] = [
    [Some(PageFormat::Q4), Some(PageFormat::Q4)],
    [Some(PageFormat::Q8), None],
    [None, Some(PageFormat::F8E4M3)],
    [None, None],
];

fn subject([key_format, value_format]: [Option<PageFormat>; 2]) -> Subject {
    let budget = Budget::new(None);
    let cache = PagedKvCache::new(PagedKvCacheOptions {
        capacity: 64,
        block_size: BLOCK,
        num_layers: LAYERS,
        head_dim: DIM as u32,
        key_format,
        value_format,
        budget: Some(budget.clone()),
        ..Default::default()
    })
    .unwrap();
    Subject { cache, budget }
}

/// Rows that no other call writes.
fn rows(seed: u32, rows: usize) -> Vec<u8> {
    (0..rows * DIM).flat_map(|at| ((at as f32 + 1.) * 0.013 * (seed as f32 + 1.)).sin().to_ne_bytes()).collect()
}

fn all_layers(bytes: &[u8]) -> Source<'_> {
    let tokens = bytes.len() / 4 / DIM / LAYERS as usize;
    HostTensor::new("k", bytes, DType::F32, &[LAYERS as usize, 1, tokens, DIM]).unwrap().into()
}

fn one_layer(bytes: &[u8]) -> Source<'_> {
    HostTensor::new("k", bytes, DType::F32, &[1, bytes.len() / 4 / DIM, DIM]).unwrap().into()
}

/// Everything that can be seen of a cache.
fn seen(cache: &mut PagedKvCache) -> (Vec<u64>, Vec<Vec<u8>>) {
    cache.check_invariants().unwrap();
    let stats = cache.stats();
    let mut numbers = vec![
        cache.free_count().into(),
        cache.staged_count().into(),
        stats.buffer_bytes,
        stats.used_bytes,
        stats.growths,
        stats.copies_on_write,
        stats.copied_bytes,
    ];
    let mut rows = Vec::new();
    for id in cache.sequence_ids() {
        numbers.extend([id, cache.sequence_length(id).into(), cache.committed_length(id).into()]);
        numbers.push(cache.sequence_capacity(id));
        for layer in 0..LAYERS {
            let gathered = cache.gather(id, layer).unwrap();
            rows.extend([gathered.k.to_bytes().unwrap(), gathered.v.to_bytes().unwrap()]);
        }
    }
    (numbers, rows)
}

impl Subject {
    /// As [`tried`]; gives what the call gives at last.
    fn tried<T>(&mut self, refusal: Refusal, call: impl FnMut(&mut PagedKvCache) -> Result<T>) -> T {
        tried(refusal, &self.budget, &mut self.cache, seen, call).1
    }
}

/// Tries a call with less memory than it needs, then a little more, and so on; gives the number of refusals, and what the call
/// gives at last. After each refusal, the cache is as it was.
fn tried<C, S: PartialEq + Debug, T>(
    refusal: Refusal,
    budget: &Budget,
    cache: &mut C,
    mut seen: impl FnMut(&mut C) -> S,
    mut call: impl FnMut(&mut C) -> Result<T>,
) -> (u32, T) {
    let before = seen(cache);
    for more in 0..10_000 {
        let done = match refusal {
            Refusal::Allocator => allocator::with(more, || call(cache)),
            Refusal::Limit => {
                budget.set_limit(budget.used() + 512 * u64::from(more));
                let done = call(cache);
                budget.set_limit(u64::MAX);
                done
            }
        };
        match done {
            Ok(value) => return (more, value),
            Err(error) => assert_eq!(error.code(), Code::OutOfMemory, "{error}"),
        }
        assert_eq!(seen(cache), before, "{refusal:?}: {more}");
    }
    panic!("it always needs more");
}

fn each(scenario: impl Fn(Subject, Refusal)) {
    for (refusal, formats) in refusals().flat_map(|refusal| FORMATS.map(|formats| (refusal, formats))) {
        scenario(subject(formats), refusal);
    }
}

#[test]
fn writes_that_copy_what_others_hold() {
    each(|mut of, refusal| {
        let append = |of: &mut Subject, ids: &[u64], tokens: u32| {
            let bytes = rows(tokens, ids.len() * tokens as usize * LAYERS as usize);
            let offsets: Vec<u32> = (0..=ids.len() as u32).map(|place| place * tokens).collect();
            of.tried(refusal, |cache| cache.append(ids, all_layers(&bytes), all_layers(&bytes), Some(&offsets)));
        };
        let id = of.cache.create_sequence().unwrap();
        append(&mut of, &[id], 3);
        let forks: Vec<u64> = (0..5).map(|_| of.cache.fork(id).unwrap()).collect();
        append(&mut of, &forks[..1], 1);
        append(&mut of, &forks[1..4], 9);
        append(&mut of, &forks[..3], 30);
        // Into the middle of what is quantised, and shared.
        let last = of.cache.fork(forks[1]).unwrap();
        for (sequence, layer, position, tokens) in [(last, 0, 4, 1), (last, 1, 2, 13), (forks[2], 1, 20, 2)] {
            let bytes = rows(position, tokens);
            of.tried(refusal, |cache| {
                cache.write_tokens(sequence, layer, position, one_layer(&bytes), one_layer(&bytes))
            });
        }
        // Behind a truncation into a quantised page, and after a restore.
        let snapshot = of.cache.snapshot(forks[3]).unwrap();
        of.cache.truncate(forks[3], 5).unwrap();
        append(&mut of, &[forks[3]], 2);
        of.tried(refusal, |cache| cache.restore(forks[3], &snapshot));
        append(&mut of, &[forks[3]], 7);
        of.cache.truncate(forks[0], 10).unwrap();
        append(&mut of, &[forks[0], forks[4]], 2);
        // A read in place may have to zero slots first.
        of.cache.truncate(forks[0], 5).unwrap();
        let bytes = rows(1, 1);
        of.cache.write_tokens(forks[0], 0, 20, one_layer(&bytes), one_layer(&bytes)).unwrap();
        of.tried(refusal, |cache| cache.pages(0, &[forks[0]]).map(|_| ()));
    });
}

#[test]
fn steps_that_copy_what_others_hold() {
    each(|mut of, refusal| {
        let id = of.cache.create_sequence().unwrap();
        let bytes = rows(1, 14 * LAYERS as usize);
        of.cache.append(&[id], all_layers(&bytes), all_layers(&bytes), Some(&[0, 14])).unwrap();
        let other = of.cache.fork(id).unwrap();
        for (committed, tokens) in [(false, 3), (true, 3), (true, 20), (false, 1)] {
            let offsets = [0, tokens, 2 * tokens];
            let step = StepTokens { sequences: &[id, other], offsets: Some(&offsets), parents: None };
            let mut step = of.tried(refusal, |cache| cache.begin_step(step));
            let bytes = rows(tokens, 2 * tokens as usize);
            for layer in 0..LAYERS {
                of.tried(refusal, |cache| cache.write_layer(&mut step, layer, one_layer(&bytes), one_layer(&bytes)));
            }
            match committed {
                true => of.tried(refusal, |cache| cache.commit_step(&mut step, None)),
                false => of.tried(refusal, |cache| cache.undo_step(&mut step)),
            }
            of.cache.check_invariants().unwrap();
        }
    });
}

#[test]
fn drafts_whose_end_copies_what_others_hold() {
    each(|mut of, refusal| {
        let id = of.cache.create_sequence().unwrap();
        let bytes = rows(1, 6 * LAYERS as usize);
        of.cache.append(&[id], all_layers(&bytes), all_layers(&bytes), Some(&[0, 6])).unwrap();
        let _fork = of.cache.fork(id).unwrap();
        // Two siblings at the root, then a chain.
        let parents: Vec<i32> = (0..14).map(|node| if node < 2 { -1 } else { node - 1 }).collect();
        let bytes = rows(2, 14 * LAYERS as usize);
        for path in [None, Some((1..14).collect::<Vec<u32>>()), Some(vec![1, 2])] {
            let options = BeginOptions { max_tokens: Some(20) };
            let draft = of.tried(refusal, |cache| cache.sequence(id)?.begin_draft(None, options));
            of.tried(refusal, |cache| {
                cache.sequence(id)?.append_draft(draft, all_layers(&bytes), all_layers(&bytes), Some(&parents))
            });
            // From now on, a fork holds the rows that a path overwrites.
            let fork = of.cache.fork(id).unwrap();
            of.tried(refusal, |cache| match &path {
                Some(path) => cache.sequence(id)?.commit_draft_path(draft, path),
                None => cache.sequence(id)?.commit_draft(draft, Some(11)),
            });
            of.cache.drop_sequence(fork).unwrap();
        }
        let mut sequence = of.cache.sequence(id).unwrap();
        sequence.begin(BeginOptions::default()).unwrap().rollback().unwrap();
    });
}

/// Full layers of two sizes, in q4 and q8: two groups.
fn model(blocks: [u32; 2], budget: u64) -> PagedKvCache {
    let model =
        ModelDescription::new(vec![LayerDescription::full(1, 32), LayerDescription::full(1, DIM as u32)]).unwrap();
    PagedKvCache::of_model(PagedModelOptions {
        block_size: BLOCK,
        key_format: Some(PageFormat::Q4),
        value_format: Some(PageFormat::Q8),
        memory_limit_bytes: Some(budget),
        ..PagedModelOptions::new(model, PoolRoom::Blocks(blocks.to_vec()))
    })
    .unwrap()
}

/// Appends tokens of both groups to a sequence.
fn append_model(cache: &mut PagedKvCache, id: u64, tokens: usize) -> Result<()> {
    let bytes = rows(tokens as u32, tokens);
    let narrow = || HostTensor::new("k", &bytes[..tokens * 32 * 4], DType::F32, &[1, tokens, 32]).unwrap();
    let layers = [[narrow().into(), narrow().into()], [one_layer(&bytes), one_layer(&bytes)]];
    cache.append_to(id, None, Tokens::of_layers(&layers))
}

#[test]
fn groups_of_layers_copy_all_or_none() {
    let free = |cache: &mut PagedKvCache| {
        let pools = cache.pools().unwrap();
        pools.iter().map(|pool| (pool.free, pool.counters.copies)).collect::<Vec<_>>()
    };
    // One group has a block for the copy, the other has not: once this one, once that one.
    for blocks in [[8, 1], [1, 8]] {
        let mut cache = model(blocks, u64::MAX);
        let id = cache.create_sequence().unwrap();
        append_model(&mut cache, id, 3).unwrap();
        let fork = cache.fork(id).unwrap();
        let before = free(&mut cache);
        assert_eq!(append_model(&mut cache, fork, 1).unwrap_err().code(), Code::OutOfBlocks);
        assert_eq!(free(&mut cache), before);
        cache.check_invariants().unwrap();
    }
    for refused in 0..if are_moved_in_place() { 12 } else { 0 } {
        let mut cache = model([8, 8], u64::MAX);
        let id = cache.create_sequence().unwrap();
        append_model(&mut cache, id, 3).unwrap();
        let fork = cache.fork(id).unwrap();
        let before = free(&mut cache);
        match allocator::with(refused, || append_model(&mut cache, fork, 1)) {
            Ok(()) => assert_eq!(cache.sequence_length(fork), 4),
            Err(error) => {
                assert_eq!(error.code(), Code::OutOfMemory);
                assert_eq!((free(&mut cache), cache.sequence_length(fork)), (before, 3), "{refused}");
            }
        }
        cache.check_invariants().unwrap();
    }
}
