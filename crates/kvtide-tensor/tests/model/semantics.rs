//! The semantics of a model's cache, for each kind of layers.

use kvtide_core::Code;
use kvtide_tensor::{PagedKvCache, StepTokens};

use crate::model::{Id, rows, source};
use crate::subject::{Blocks, KINDS, append, cache, code, everything, mixed, own_layers, write, written};

/// A sequence with the tokens 1 to `tokens`, and its cache.
pub fn filled(kind: Blocks, tokens: Id) -> (PagedKvCache, u64) {
    let mut cache = cache(mixed(), kind);
    let id = cache.create_sequence().unwrap();
    (1..=tokens).for_each(|token| append(&mut cache, id, &[token]).unwrap());
    (cache, id)
}

/// The full layers show these tokens.
pub fn shows(cache: &mut PagedKvCache, id: u64, tokens: &[Id]) {
    assert_eq!(cache.sequence_length(id) as usize, tokens.len());
    for layer in [0, 2, 3, 5] {
        let from = source(cache.model(), layer);
        let of = cache.model().layers()[from as usize];
        let expected = [0, 1].map(|part| rows(&of, from, part, tokens));
        let kv = cache.kv(id, layer).unwrap();
        assert!([kv.k, kv.v].map(|view| view.to_f32().unwrap()) == expected, "layer {layer}");
    }
}

#[test]
fn a_step_counts_once_every_layer_of_its_own_is_written() {
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 9);
        let tokens = StepTokens { sequences: &[id], offsets: Some(&[0, 2]), parents: None };
        let mut step = cache.begin_step(tokens).unwrap();
        assert_eq!((step.tokens(), step.sequences()), (2, &[id][..]));
        for layer in [0, 1, 3] {
            write(&mut cache, &mut step, layer, &[20, 21]).unwrap();
        }
        let error = cache.commit_step(&mut step, None).unwrap_err();
        assert_eq!((error.code(), error.to_string().contains('5')), (Code::StepIncomplete, true), "{error}");
        assert_eq!(cache.sequence_length(id), 9);
        write(&mut cache, &mut step, 5, &[20, 21]).unwrap();
        assert_eq!(code(cache.commit_step(&mut step, Some(&[1]))), Err(Code::InvalidArgument), "{kind:?}");
        cache.commit_step(&mut step, Some(&[1, 2])).unwrap();
        assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::TransactionClosed));
        cache.undo_step(&mut step).unwrap();
        drop(step);
        shows(&mut cache, id, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21]);
    }
}

#[test]
fn a_step_that_is_undone_or_dropped_leaves_no_trace() {
    for kind in KINDS {
        for (tokens, layers, undo) in [(1, 0, true), (3, 2, true), (3, 4, false), (1, 0, false), (0, 0, true)] {
            let (mut cache, id) = filled(kind, 9);
            let before = everything(&mut cache);
            let ids: Vec<Id> = (30..30 + tokens).collect();
            let offsets = [0, tokens as u32];
            let step = StepTokens { sequences: &[id], offsets: Some(&offsets), parents: None };
            let mut step = cache.begin_step(step).unwrap();
            for layer in own_layers(&cache).into_iter().take(layers) {
                write(&mut cache, &mut step, layer, &ids).unwrap();
            }
            if undo {
                cache.undo_step(&mut step).unwrap();
            }
            drop(step);
            append(&mut cache, id, &[]).unwrap();
            assert_eq!(everything(&mut cache), before, "{kind:?}");
            append(&mut cache, id, &[10]).unwrap();
            shows(&mut cache, id, &(1..11).collect::<Vec<_>>());
        }
    }
}

#[test]
fn while_a_step_is_open_its_sequence_does_not_change_otherwise() {
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 3);
        let snapshot = cache.snapshot(id).unwrap();
        let mut step = written(&mut cache, id, &[4], None).unwrap();
        assert_eq!(code(written(&mut cache, id, &[5], None)), Err(Code::TransactionOpen));
        assert_eq!(code(cache.begin(id, None, Default::default())), Err(Code::TransactionOpen));
        assert_eq!(code(cache.truncate(id, 0)), Err(Code::TransactionOpen));
        assert_eq!(code(cache.restore(id, &snapshot)), Err(Code::TransactionOpen));
        // Copies are made of what it had before.
        let fork = cache.fork(id).unwrap();
        shows(&mut cache, fork, &[1, 2, 3]);
        cache.drop_sequence(fork).unwrap();
        cache.commit_step(&mut step, None).unwrap();
        shows(&mut cache, id, &[1, 2, 3, 4]);
        // One that is dropped takes its step along.
        let mut step = written(&mut cache, id, &[5], None).unwrap();
        cache.drop_sequence(id).unwrap();
        assert_eq!(code(write(&mut cache, &mut step, 0, &[5])), Err(Code::StaleStep));
        assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::StaleStep));
        cache.undo_step(&mut step).unwrap();
        assert_eq!(cache.sequence_ids(), [0; 0]);
    }
}

#[test]
fn a_step_may_be_of_several_sequences() {
    let (mut cache, id) = filled(Blocks(2, 32), 3);
    let other = cache.create_sequence().unwrap();
    let mut step =
        cache.begin_step(StepTokens { sequences: &[id, other], offsets: Some(&[0, 1, 3]), parents: None }).unwrap();
    for layer in own_layers(&cache) {
        write(&mut cache, &mut step, layer, &[4, 11, 12]).unwrap();
    }
    cache.commit_step(&mut step, None).unwrap();
    shows(&mut cache, id, &[1, 2, 3, 4]);
    shows(&mut cache, other, &[11, 12]);
}

#[test]
fn transactions_take_all_layers_along() {
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 9);
        let before = everything(&mut cache);
        let outer = cache.begin(id, None, Default::default()).unwrap();
        append(&mut cache, id, &[20, 21]).unwrap();
        let inner = cache.begin(id, Some(outer), Default::default()).unwrap();
        append(&mut cache, id, &[22]).unwrap();
        assert_eq!((cache.drafted(id, outer).unwrap(), cache.drafted(id, inner).unwrap()), (2, 1));
        assert_eq!((cache.sequence_length(id), cache.committed_length(id)), (12, 9));
        assert_eq!(code(cache.begin(id, None, Default::default())), Err(Code::TransactionOpen));
        assert_eq!(code(cache.commit(id, outer, None)), Err(Code::TransactionOpen));
        assert_eq!(code(cache.truncate(id, 0)), Err(Code::TransactionOpen));
        assert_eq!(code(cache.commit(id, inner, Some(2))), Err(Code::InvalidArgument));
        let snapshot = cache.snapshot(id).unwrap();
        let fork = cache.fork(id).unwrap();
        cache.commit(id, inner, None).unwrap();
        assert_eq!(code(cache.commit(id, inner, None)), Err(Code::TransactionClosed));
        // 20 and 21 are a chain, 23 and 24 follow 22 each.
        let parents = [2, 2];
        let mut step = written(&mut cache, id, &[23, 24], Some(&parents)).unwrap();
        cache.commit_step(&mut step, None).unwrap();
        assert_eq!(code(cache.commit_path(id, outer, &[0, 1, 3, 4])), Err(Code::InvalidPath));
        cache.commit_path(id, outer, &[0, 1, 2, 4]).unwrap();
        shows(&mut cache, id, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 24]);
        cache.restore(id, &snapshot).unwrap();
        for of in [id, fork] {
            shows(&mut cache, of, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22]);
        }
        cache.drop_sequence(fork).unwrap();
        drop(snapshot);
        let (mut cache, id) = filled(kind, 9);
        let outer = cache.begin(id, None, Default::default()).unwrap();
        append(&mut cache, id, &[20, 21]).unwrap();
        cache.begin(id, Some(outer), Default::default()).unwrap();
        append(&mut cache, id, &[22]).unwrap();
        cache.rollback(id, outer);
        cache.rollback(id, outer);
        assert_eq!(everything(&mut cache), before, "{kind:?}");
    }
}

#[test]
fn a_transaction_that_is_dropped_takes_its_open_step_along() {
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 9);
        let other = cache.create_sequence().unwrap();
        let before = everything(&mut cache);
        let draft = cache.begin(id, None, Default::default()).unwrap();
        append(&mut cache, id, &[20]).unwrap();
        let mut old = written(&mut cache, id, &[21, 22, 23, 24, 25], None).unwrap();
        cache.rollback(id, draft);
        assert_eq!(code(write(&mut cache, &mut old, 0, &[1, 2, 3, 4, 5])), Err(Code::StaleStep), "{kind:?}");
        assert_eq!(code(cache.commit_step(&mut old, None)), Err(Code::StaleStep), "{kind:?}");
        // Another one is open meanwhile: the old one's end is none of its business.
        let mut step = written(&mut cache, id, &[10, 11, 12, 13, 14], None).unwrap();
        cache.undo_step(&mut old).unwrap();
        assert_eq!(code(cache.truncate(id, 0)), Err(Code::TransactionOpen), "{kind:?}");
        cache.undo_step(&mut step).unwrap();
        append(&mut cache, other, &[]).unwrap();
        assert_eq!(everything(&mut cache), before, "{kind:?}");
        append(&mut cache, id, &[10]).unwrap();
        shows(&mut cache, id, &(1..11).collect::<Vec<_>>());
    }
}

#[test]
fn what_one_group_refuses_is_done_in_none() {
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 30);
        let before = everything(&mut cache);
        assert_eq!(code(cache.truncate(id, 31)), Err(Code::CannotRollBack));
        assert_eq!(code(cache.truncate(id, 12)), Err(Code::CannotRollBack), "{kind:?}");
        assert_eq!(everything(&mut cache), before);
        cache.truncate(id, 30).unwrap();
        append(&mut cache, id, &[31]).unwrap();
        let (mut cache, id) = filled(kind, 5);
        cache.truncate(id, 4).unwrap();
        shows(&mut cache, id, &[1, 2, 3, 4]);
    }
}

#[test]
fn tokens_are_taken_out_of_a_whole_present() {
    use kvtide_tensor::buffers::SequenceLayout;
    use kvtide_tensor::{DType, HostTensor};
    for kind in KINDS {
        let mut cache = cache(mixed(), kind);
        let id = cache.create_sequence().unwrap();
        let tokens = StepTokens { sequences: &[id], offsets: Some(&[0, 2]), parents: None };
        let mut step = cache.begin_step(tokens).unwrap();
        for layer in own_layers(&cache) {
            let of = cache.model().layers()[layer as usize];
            // Seven tokens `[1, tokens, heads, dim]`, two of which are new.
            let all = [0, 1].map(|part| {
                let heads = 0..of.num_kv_heads as usize;
                let tokens = (1..8).flat_map(|token| heads.clone().map(move |head| (token, head)));
                let rows = tokens.flat_map(|(token, head)| crate::model::row(&of, layer, part, token, head));
                crate::subject::floats(&rows.collect::<Vec<_>>())
            });
            let shape = [1, 7, of.num_kv_heads as usize, of.head_dim as usize];
            let host = |part: usize| {
                let host = HostTensor::new("k", &all[part], DType::F32, &shape).unwrap();
                host.with_layout("k", SequenceLayout::Bshd).unwrap().with_range(4, 6)
            };
            cache.write_layer(&mut step, layer, host(0), host(1)).unwrap();
        }
        cache.commit_step(&mut step, None).unwrap();
        shows(&mut cache, id, &[5, 6]);
    }
}

#[test]
fn a_cache_may_move_to_another_thread() {
    fn send<T: Send>() {}
    send::<PagedKvCache>();
    send::<kvtide_tensor::PagedSnapshot>();
    send::<kvtide_tensor::PagedStep>();
    let (mut cache, id) = filled(Blocks(4, 32), 3);
    let snapshot = cache.snapshot(id).unwrap();
    let mut cache = std::thread::spawn(move || {
        append(&mut cache, id, &[4]).unwrap();
        cache
    })
    .join()
    .unwrap();
    cache.restore(id, &snapshot).unwrap();
    shows(&mut cache, id, &[1, 2, 3]);
}
