//! A call that fails in the second layer or group changes none of them, and a background reader of one blocks all of them.

use kvtide_core::model::{LayerDescription, ModelDescription};
use kvtide_core::{BlockHolders, Code};
use kvtide_tensor::{Error, PagedKvCache, PagedModelOptions, PoolRoom, StepTokens};

use crate::semantics::{filled, shows};
use crate::subject::{KINDS, append, code, everything, written};

/// Full layers of two sizes.
fn two_groups() -> ModelDescription {
    ModelDescription::new(vec![LayerDescription::full(1, 2), LayerDescription::full(1, 3)]).unwrap()
}

#[test]
fn a_step_that_has_no_room_in_the_second_group_takes_none_in_the_first() {
    for blocks in [[8, 1], [1, 8]] {
        let room = PoolRoom::Blocks(blocks.to_vec());
        let options = PagedModelOptions { block_size: 2, ..PagedModelOptions::new(two_groups(), room) };
        let mut cache = PagedKvCache::of_model(options).unwrap();
        let id = cache.create_sequence().unwrap();
        append(&mut cache, id, &[1]).unwrap();
        let before = everything(&mut cache);
        let tokens = StepTokens { sequences: &[id], offsets: Some(&[0, 4]), parents: None };
        match cache.begin_step(tokens) {
            Err(Error::OutOfBlocks { group, needed, free, holders }) => {
                assert_eq!((group, needed, free), (usize::from(blocks[0] == 8), 2, 0));
                assert_eq!(holders, Some(BlockHolders { sequences: 1, blocks: 1 }));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(everything(&mut cache), before);
        assert!(!cache.can_allocate(3, 0).unwrap() && !cache.can_allocate(1, 0).unwrap());
        append(&mut cache, id, &[2]).unwrap();
        assert_eq!(cache.sequence_length(id), 2);
    }
}

/// A change of a sequence with an open transaction, or without.
type Change = (&'static str, bool, fn(&mut PagedKvCache, u64) -> Result<(), Error>);

const CHANGES: [Change; 7] = [
    ("begin", false, |cache, id| cache.begin(id, None, Default::default()).map(drop)),
    ("step", false, |cache, id| written(cache, id, &[50], None).map(drop)),
    ("truncate", false, |cache, id| cache.truncate(id, 6)),
    ("restore", false, |cache, id| {
        let snapshot = cache.snapshot(id)?;
        cache.restore(id, &snapshot)
    }),
    ("commit", true, |cache, id| cache.commit(id, kvtide_core::TransactionId::from_raw(0), None)),
    ("commit_path", true, |cache, id| cache.commit_path(id, kvtide_core::TransactionId::from_raw(0), &[0])),
    ("step in a transaction", true, |cache, id| written(cache, id, &[50], None).map(drop)),
];

#[test]
fn a_layer_that_is_read_in_the_background_keeps_all_layers_as_they_are() {
    for (name, open, change) in CHANGES {
        for layer in [0, 1, 3, 5] {
            let (mut cache, id) = filled(KINDS[0], 6);
            let draft = open.then(|| {
                let draft = cache.begin(id, None, Default::default()).unwrap();
                append(&mut cache, id, &[20, 21]).unwrap();
                draft
            });
            let before = everything(&mut cache);
            let pinned = cache.layer_pages(layer, &[id]).unwrap().pinned();
            // A number that each transaction has is that of the first one.
            let done = match (name, draft) {
                ("commit", Some(draft)) => cache.commit(id, draft, None),
                ("commit_path", Some(draft)) => cache.commit_path(id, draft, &[0]),
                _ => change(&mut cache, id),
            };
            assert_eq!(code(done), Err(Code::Busy), "{name} while layer {layer} is read");
            drop(pinned);
            assert_eq!(everything(&mut cache), before, "{name} while layer {layer} is read");
            if let Some(draft) = draft {
                cache.commit(id, draft, Some(1)).unwrap();
                shows(&mut cache, id, &[1, 2, 3, 4, 5, 6, 20]);
            }
            append(&mut cache, id, &[30]).unwrap();
        }
    }
}

#[test]
fn a_step_whose_layer_is_read_in_the_background_is_committed_later() {
    for layer in [0, 1, 3, 5] {
        let (mut cache, id) = filled(KINDS[0], 6);
        let mut step = written(&mut cache, id, &[7, 8], None).unwrap();
        let pinned = cache.layer_pages(layer, &[id]).unwrap().pinned();
        assert_eq!(code(cache.commit_step(&mut step, None)), Err(Code::Busy));
        drop(pinned);
        cache.commit_step(&mut step, None).unwrap();
        shows(&mut cache, id, &(1..9).collect::<Vec<_>>());
        // To be dropped is never refused.
        let draft = cache.begin(id, None, Default::default()).unwrap();
        append(&mut cache, id, &[9]).unwrap();
        let pinned = cache.layer_pages(layer, &[id]).unwrap().pinned();
        cache.rollback(id, draft);
        drop(pinned);
        shows(&mut cache, id, &(1..9).collect::<Vec<_>>());
    }
}
