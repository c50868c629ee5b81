//! A layer of a step with a background reader: no call that would change it succeeds, and it outlives the cache.

use kvtide_core::{Code, TransactionId};
use kvtide_tensor::attention::AttendOptions;
use kvtide_tensor::pages::LayerPages;
use kvtide_tensor::{DType, Error, HostTensor, PagedKvCache, PagedStep};

use crate::semantics::{filled, shows};
use crate::subject::{KINDS, append, code, everything, floats, write, written};

type Call = fn(&mut PagedKvCache, u64, &mut PagedStep) -> Result<(), Error>;

/// Calls that would change the sequence of an open step, in an open transaction.
const CHANGES: [(&str, Call); 8] = [
    ("write", |cache, _, step| write(cache, step, 5, &[20, 21])),
    ("commit", |cache, _, step| cache.commit_step(step, None)),
    ("undo", |cache, _, step| cache.undo_step(step)),
    ("drop", |cache, id, _| cache.drop_sequence(id)),
    ("another step", |cache, id, _| written(cache, id, &[30], None).map(drop)),
    ("commit of the transaction", |cache, id, _| cache.commit(id, TransactionId::from_raw(1), None)),
    ("end of the transaction", |cache, id, _| cache.check_draft(id, TransactionId::from_raw(1))),
    ("truncate", |cache, id, _| cache.truncate(id, 1)),
];

const QUERIES: [f32; 2 * 2 * 4] = [0.25; 16];

fn attended(rows: &LayerPages<'_>) -> Vec<f32> {
    let bytes = floats(&QUERIES);
    let q = HostTensor::new("q", &bytes, DType::F32, &[2, 2, 4]).unwrap();
    rows.attend(q, &AttendOptions::default()).unwrap().out.to_f32().unwrap()
}

#[test]
fn whatever_layer_is_read_all_changes_of_the_sequence_wait() {
    for (kind, layer) in KINDS.into_iter().flat_map(|kind| [0, 2, 5].map(|layer| (kind, layer))) {
        let (mut cache, id) = filled(kind, 9);
        let draft = cache.begin(id, None, Default::default()).unwrap();
        append(&mut cache, id, &[10]).unwrap();
        let mut step = written(&mut cache, id, &[20, 21], None).unwrap();
        let expected = attended(&cache.step_layer(&step, layer).unwrap());
        let rows = cache.step_layer(&step, layer).unwrap().pinned();
        for (name, change) in CHANGES {
            let refused = code(change(&mut cache, id, &mut step)).unwrap_err();
            // A refusal because of the open step may be reported first.
            assert!(refused == Code::Busy || refused == Code::TransactionOpen, "{name} on {kind:?}: {refused:?}");
            let ends = ["write", "commit", "undo", "drop"].contains(&name);
            assert!(!ends || refused == Code::Busy, "{name} on {kind:?} while layer {layer} is read");
            cache.check_invariants().unwrap();
        }
        assert_eq!(attended(&cache.step_layer(&step, layer).unwrap()), expected, "others read meanwhile");
        let rows = std::thread::spawn(move || {
            assert_eq!(attended(&rows), expected);
            rows
        });
        drop(rows.join().unwrap());
        cache.commit_step(&mut step, None).unwrap();
        cache.commit(id, draft, Some(2)).unwrap();
        shows(&mut cache, id, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20]);
    }
}

#[test]
fn what_is_dropped_while_a_layer_is_read_ends_at_the_next_change() {
    for (kind, layer) in KINDS.into_iter().flat_map(|kind| [0, 5].map(|layer| (kind, layer))) {
        let (mut cache, id) = filled(kind, 9);
        let other = cache.create_sequence().unwrap();
        let before = {
            cache.drop_sequence(id).unwrap();
            everything(&mut cache)
        };
        let id = cache.create_sequence().unwrap();
        append(&mut cache, id, &[1, 2, 3]).unwrap();
        let step = written(&mut cache, id, &[20, 21], None).unwrap();
        let rows = cache.step_layer(&step, layer).unwrap().pinned();
        let expected = attended(&rows);
        drop(step);
        cache.release_sequence(id);
        cache.release_sequence(99);
        cache.check_invariants().unwrap();
        assert_eq!(attended(&rows), expected);
        drop(rows);
        append(&mut cache, other, &[]).unwrap();
        assert_eq!(everything(&mut cache), before, "{kind:?}");
        // A cache that is gone is read to the end.
        append(&mut cache, other, &[1, 2, 3]).unwrap();
        let step = written(&mut cache, other, &[20, 21], None).unwrap();
        let rows = cache.step_layer(&step, layer).unwrap().pinned();
        drop(cache);
        assert_eq!(attended(&rows), expected);
        drop(step);
    }
}
