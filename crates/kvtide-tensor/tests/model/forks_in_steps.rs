//! Forks and snapshots of a sequence in the middle of a step: they have the tokens from before it, bit for bit, and the step
//! continues as if they had not been taken.

use kvtide_core::paged::PageFormat;
use kvtide_core::{Code, TransactionId};
use kvtide_tensor::{PagedKvCache, PagedModelOptions, PagedStep, StepTokens};

use crate::model::Id;
use crate::subject::{Blocks, KINDS, append, code, mixed, options, own_layers, with_rows, write};

const FORMATS: [Option<PageFormat>; 4] = [None, Some(PageFormat::F8E4M3), Some(PageFormat::Q8), Some(PageFormat::Q4)];

/// The mixed model in pages of some format, with a sequence of so many tokens, of which the last `cut` were cut off again.
fn filled(format: Option<PageFormat>, kind: Blocks, tokens: Id, cut: Id) -> (PagedKvCache, u64) {
    let options = PagedModelOptions { key_format: format, value_format: format, ..options(mixed(), kind) };
    let mut cache = PagedKvCache::of_model(options).unwrap();
    let id = cache.create_sequence().unwrap();
    append(&mut cache, id, &(1..=tokens + cut).collect::<Vec<_>>()).unwrap();
    // If the window has dropped too much, the sequence keeps its length.
    let _ = cache.truncate(id, tokens as u32);
    (cache, id)
}

fn begin(cache: &mut PagedKvCache, id: u64, tokens: usize) -> PagedStep {
    cache.begin_step(StepTokens { sequences: &[id], offsets: Some(&[0, tokens as u32]), parents: None }).unwrap()
}

/// The content of all layers, as bits.
fn bits(cache: &mut PagedKvCache, id: u64) -> Vec<Vec<u32>> {
    let layers = 0..cache.model().layers().len() as u32;
    let of_layer = |layer| {
        let kv = cache.kv(id, layer).unwrap();
        let floats = [kv.k, kv.v].map(|view| view.to_f32().unwrap());
        floats.concat().into_iter().map(f32::to_bits).collect()
    };
    layers.map(of_layer).collect()
}

/// A sequence of an equal cache, without forks or snapshots in its steps.
fn alone(format: Option<PageFormat>, kind: Blocks, (tokens, cut): (Id, Id), steps: &[&[Id]]) -> Vec<Vec<u32>> {
    let (mut cache, id) = filled(format, kind, tokens, cut);
    steps.iter().for_each(|ids| append(&mut cache, id, ids).unwrap());
    bits(&mut cache, id)
}

#[test]
fn a_fork_has_what_was_there_before_the_step_and_the_step_goes_on() {
    let steps = [(0, 0, 9), (3, 0, 1), (7, 0, 1), (7, 0, 5), (8, 0, 11), (9, 2, 1), (9, 2, 3), (6, 1, 4)];
    for (format, kind) in FORMATS.into_iter().flat_map(|format| KINDS.map(|kind| (format, kind))) {
        for (tokens, cut, new) in steps {
            let ids: Vec<Id> = (40..40 + new).collect();
            let (mut cache, id) = filled(format, kind, tokens, cut);
            let (before, length) = (bits(&mut cache, id), cache.sequence_length(id));
            let mut step = begin(&mut cache, id, ids.len());
            let mut forks = vec![cache.fork(id).unwrap()];
            for layer in own_layers(&cache) {
                write(&mut cache, &mut step, layer, &ids).unwrap();
                forks.push(cache.fork(*forks.last().unwrap()).unwrap());
                forks.push(cache.fork(id).unwrap());
            }
            let snapshot = cache.snapshot(id).unwrap();
            assert_eq!(snapshot.length(), length);
            let why = format!("{format:?} {kind:?} {tokens} {cut} {new}");
            forks.iter().for_each(|&fork| assert_eq!(bits(&mut cache, fork), before, "{why}"));
            cache.commit_step(&mut step, None).unwrap();
            cache.check_invariants().unwrap();
            assert_eq!(bits(&mut cache, id), alone(format, kind, (tokens, cut), &[&ids]), "{why}");
            let (restored, last) = (forks[1], forks.pop().unwrap());
            cache.restore(restored, &snapshot).unwrap();
            forks.iter().for_each(|&fork| assert_eq!(bits(&mut cache, fork), before, "{why}"));
            // Each goes on as if it were alone.
            let twin = alone(format, kind, (tokens, cut), &[&[70, 71], &ids]);
            for fork in [last, restored] {
                append(&mut cache, fork, &[70, 71]).unwrap();
                append(&mut cache, fork, &ids).unwrap();
                assert_eq!(bits(&mut cache, fork), twin, "{why}");
            }
            append(&mut cache, id, &[80]).unwrap();
            assert_eq!(bits(&mut cache, id), alone(format, kind, (tokens, cut), &[&ids, &[80]]), "{why}");
            drop(snapshot);
            cache.sequence_ids().into_iter().for_each(|id| cache.drop_sequence(id).unwrap());
            assert_eq!(cache.pools().unwrap().iter().map(|pool| pool.active).sum::<u32>(), 0, "{why}");
        }
    }
}

#[test]
fn a_fork_outlives_a_step_that_ends_early() {
    type End = fn(&mut PagedKvCache, u64, PagedStep);
    let ends: [End; 4] = [
        |cache, _, mut step| cache.undo_step(&mut step).unwrap(),
        |_, _, step| drop(step),
        |cache, id, _step| cache.drop_sequence(id).unwrap(),
        |cache, id, mut step| {
            cache.drop_sequence(id).unwrap();
            assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::StaleStep));
        },
    ];
    for (format, kind) in FORMATS.into_iter().flat_map(|format| KINDS.map(|kind| (format, kind))) {
        for ((tokens, cut), layers, end) in [(7, 0), (9, 2), (6, 1)]
            .into_iter()
            .flat_map(|of| (0..=4).flat_map(move |at| ends.map(|end| (of, at, end))))
        {
            let (mut cache, id) = filled(format, kind, tokens, cut);
            let before = bits(&mut cache, id);
            let mut step = begin(&mut cache, id, 3);
            let fork = cache.fork(id).unwrap();
            for layer in own_layers(&cache).into_iter().take(layers) {
                write(&mut cache, &mut step, layer, &[40, 41, 42]).unwrap();
            }
            end(&mut cache, id, step);
            assert_eq!(bits(&mut cache, fork), before, "{format:?} {kind:?} {layers}");
            append(&mut cache, fork, &[70]).unwrap();
            append(&mut cache, fork, &[71, 72, 73]).unwrap();
            let twin = alone(format, kind, (tokens, cut), &[&[70], &[71, 72, 73]]);
            assert_eq!(bits(&mut cache, fork), twin, "{format:?} {kind:?} {tokens} {layers}");
            cache.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_fork_is_made_while_the_step_is_computed_elsewhere() {
    for (format, kind) in FORMATS.into_iter().flat_map(|format| KINDS.map(|kind| (format, kind))) {
        for (tokens, cut) in [(7, 0), (9, 2), (6, 1), (0, 0)] {
            let ids = [40, 41, 42];
            let (mut cache, id) = filled(format, kind, tokens, cut);
            let before = bits(&mut cache, id);
            let mut step = begin(&mut cache, id, ids.len());
            let mut run = cache.run_step(&mut step).unwrap();
            let mut forks = Vec::new();
            for layer in own_layers(&cache) {
                with_rows(&mut cache, layer, &ids, |_, k, v| run.write_layer(layer, k, v)).unwrap();
                forks.push(cache.fork(id).unwrap());
                assert_eq!(bits(&mut cache, forks[forks.len() - 1]), before, "{format:?} {kind:?}");
                assert_eq!(code(append(&mut cache, forks[0], &[70])), Err(Code::Busy));
            }
            cache.end_run(&mut step, run).unwrap();
            cache.commit_step(&mut step, None).unwrap();
            forks.iter().for_each(|&fork| assert_eq!(bits(&mut cache, fork), before, "{format:?} {kind:?}"));
            assert_eq!(bits(&mut cache, id), alone(format, kind, (tokens, cut), &[&ids]), "{format:?} {kind:?}");
            append(&mut cache, forks[0], &[70]).unwrap();
            assert_eq!(bits(&mut cache, forks[0]), alone(format, kind, (tokens, cut), &[&[70]]), "{format:?} {kind:?}");
            cache.check_invariants().unwrap();
        }
    }
}

#[test]
fn a_fork_in_a_drafted_step_has_the_draft_before_it() {
    for (format, kind) in FORMATS.into_iter().flat_map(|format| KINDS.map(|kind| (format, kind))) {
        let (mut cache, id) = filled(format, kind, 6, 0);
        let draft = cache.begin(id, None, Default::default()).unwrap();
        append(&mut cache, id, &[40]).unwrap();
        let before = bits(&mut cache, id);
        let mut step = begin(&mut cache, id, 3);
        let fork = cache.fork(id).unwrap();
        own_layers(&cache).into_iter().for_each(|layer| write(&mut cache, &mut step, layer, &[41, 42, 43]).unwrap());
        let other = cache.fork(id).unwrap();
        assert_eq!((cache.sequence_length(fork), cache.committed_length(fork), cache.committed_length(id)), (7, 7, 6));
        cache.commit_step(&mut step, None).unwrap();
        // A child of it, whose step ends with it.
        let child = cache.begin(id, Some(draft), Default::default()).unwrap();
        assert_eq!(child, TransactionId::from_raw(2));
        let step = begin(&mut cache, id, 2);
        let third = cache.fork(id).unwrap();
        cache.rollback(id, child);
        drop(step);
        assert_eq!((cache.sequence_length(third), cache.sequence_length(id)), (10, 10));
        cache.commit(id, draft, Some(2)).unwrap();
        assert_eq!(cache.sequence_length(id), 8);
        [fork, other].iter().for_each(|&fork| assert_eq!(bits(&mut cache, fork), before, "{format:?} {kind:?}"));
        append(&mut cache, fork, &[50, 51]).unwrap();
        cache.check_invariants().unwrap();
    }
}
