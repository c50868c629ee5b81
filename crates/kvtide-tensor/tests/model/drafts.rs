//! Room that a transaction reserves, and the masks of its tokens.

use kvtide_core::Code;
use kvtide_core::model::{LayerDescription, ModelDescription};
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{BeginOptions, PagedKvCache, PagedModelOptions, PoolRoom};

use crate::semantics::filled;
use crate::subject::{KINDS, append, code, everything, written};

const fn room(tokens: u32) -> BeginOptions {
    BeginOptions { max_tokens: Some(tokens) }
}

/// Full layers of two sizes, of which one group has `blocks[0]` blocks of 2 tokens and the other `blocks[1]`.
fn two_groups(blocks: [u32; 2]) -> PagedKvCache {
    let model = ModelDescription::new(vec![LayerDescription::full(1, 2), LayerDescription::full(1, 3)]).unwrap();
    let room = PoolRoom::Blocks(blocks.to_vec());
    PagedKvCache::of_model(PagedModelOptions { block_size: 2, ..PagedModelOptions::new(model, room) }).unwrap()
}

#[test]
fn blocks_for_a_draft_are_taken_in_every_group_or_in_none() {
    for blocks in [[8, 3], [3, 8]] {
        let mut cache = two_groups(blocks);
        let id = cache.create_sequence().unwrap();
        append(&mut cache, id, &[1, 2, 3]).unwrap();
        let before = everything(&mut cache);
        assert_eq!(code(cache.begin(id, None, room(4))), Err(Code::OutOfBlocks));
        assert_eq!(code(cache.begin(id, None, room(u32::MAX))), Err(Code::InvalidArgument));
        assert_eq!(everything(&mut cache), before);
        let outer = cache.begin(id, None, Default::default()).unwrap();
        assert_eq!(code(cache.begin(id, Some(outer), room(4))), Err(Code::OutOfBlocks));
        assert_eq!(everything(&mut cache), before);
        let inner = cache.begin(id, Some(outer), room(3)).unwrap();
        // They are its own from now on.
        let other = cache.create_sequence().unwrap();
        assert_eq!(code(append(&mut cache, other, &[9])), Err(Code::OutOfBlocks));
        append(&mut cache, id, &[4, 5, 6]).unwrap();
        cache.commit(id, inner, Some(1)).unwrap();
        cache.commit(id, outer, None).unwrap();
        assert_eq!(cache.sequence_length(id), 4);
        append(&mut cache, other, &[9]).unwrap();
        cache.drop_sequence(other).unwrap();
        cache.truncate(id, 3).unwrap();
        // One that is rolled back gives them back.
        let dropped = cache.begin(id, None, room(3)).unwrap();
        cache.rollback(id, dropped);
        assert_eq!(everything(&mut cache), before);
    }
}

#[test]
fn masks_and_positions_are_those_of_an_innermost_transaction_at_rest() {
    for kind in KINDS {
        let (mut cache, id) = filled(kind, 9);
        let (budget, draft) = (Budget::process(), cache.begin(id, None, Default::default()).unwrap());
        let mut step = written(&mut cache, id, &[20, 21, 22], Some(&[-1, -1, 0])).unwrap();
        assert_eq!(code(cache.draft_positions(id, draft)), Err(Code::TransactionOpen), "{kind:?}");
        assert_eq!(code(cache.draft_mask(id, draft, 0, &budget)), Err(Code::TransactionOpen), "{kind:?}");
        cache.commit_step(&mut step, None).unwrap();
        assert_eq!(cache.draft_positions(id, draft).unwrap(), [9, 9, 10]);
        assert_eq!(cache.draft_mask(id, draft, 0, &budget).unwrap().shape(), [3, 12]);
        assert_eq!(code(cache.draft_mask(id, draft, 6, &budget)), Err(Code::InvalidArgument));
        assert_eq!(code(cache.draft_mask(7, draft, 0, &budget)), Err(Code::SequenceNotFound));
        let child = cache.begin(id, Some(draft), Default::default()).unwrap();
        assert_eq!(code(cache.draft_positions(id, draft)), Err(Code::TransactionOpen));
        cache.rollback(id, child);
        cache.rollback(id, draft);
        assert_eq!(code(cache.draft_positions(id, draft)), Err(Code::TransactionClosed));
        assert_eq!(code(cache.draft_mask(id, draft, 0, &budget)), Err(Code::TransactionClosed));
    }
}
