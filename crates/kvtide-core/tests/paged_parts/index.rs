//! The prefix index: misuse, single cases, and explanations of prompts that it does not find.

use kvtide_core::paged::parts::PrefixIndex;
use kvtide_core::paged::{BlockKey, Event, Explanation, Extra, Extras, MissReason};
use kvtide_core::{Code, Error};

fn root(salt: &str) -> BlockKey {
    BlockKey::root(&[3; 32], b"model", salt.as_bytes())
}

fn index(capacity: u32, block_size: u32) -> PrefixIndex {
    let mut index = PrefixIndex::new(capacity, block_size).unwrap();
    index.keep_events(100);
    index.reserve(capacity - 1).unwrap();
    index
}

/// Fills blocks with the tokens of a prompt, and lets them be found. Gives their keys.
fn fill(index: &mut PrefixIndex, salt: &str, tokens: &[u32], blocks: &[u32]) -> Vec<BlockKey> {
    fill_with(index, salt, tokens, blocks, &Extras::default())
}

fn fill_with(index: &mut PrefixIndex, salt: &str, tokens: &[u32], blocks: &[u32], extras: &Extras) -> Vec<BlockKey> {
    let mut keys = vec![root(salt)];
    for (at, (of_block, &block)) in tokens.chunks_exact(index.block_size() as usize).zip(blocks).enumerate() {
        let (parent, position) = (keys[at], at as u32 * index.block_size());
        let key = parent.child(of_block, position, extras);
        index.set_tokens(block, 0, of_block);
        index.insert(block, &key, &parent, position, extras);
        keys.push(key);
    }
    keys.split_off(1)
}

fn found(index: &PrefixIndex, salt: &str, tokens: &[u32]) -> Vec<u32> {
    index.find_prefix(&root(salt), tokens, &Extras::default()).unwrap().blocks
}

fn why(index: &PrefixIndex, tokens: &[u32]) -> Explanation {
    index.explain(&root("a"), tokens, &Extras::default()).unwrap()
}

#[test]
fn sizes_that_are_none_are_refused() {
    let refused = PrefixIndex::new(1 << 31, 16).unwrap_err();
    assert_eq!(refused, Error::argument("capacity", 1u32 << 31, "at most 2147483647"));
    assert_eq!(PrefixIndex::new(1, 0).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn an_empty_index_finds_nothing() {
    let index = PrefixIndex::new(0, 2).unwrap();
    assert!(found(&index, "a", &[1, 2, 3]).is_empty());
    assert_eq!(index.find_partial(&root("a"), &[1], 0, &Extras::default()), None);
    assert_eq!(why(&index, &[1, 2, 3]), Explanation { matched: 0, missing: Some((0, MissReason::NeverSeen)) });
    assert_eq!(why(&index, &[1, 2]), Explanation { matched: 0, missing: None });
    assert!(index.is_empty() && index.key(0).is_none() && !index.is_indexed(7));
    index.check_invariants().unwrap();
}

#[test]
fn the_last_token_is_never_found() {
    let mut index = index(8, 2);
    fill(&mut index, "a", &[1, 2, 3, 4], &[5, 2]);
    for (length, expected) in [(0, &[][..]), (1, &[]), (2, &[]), (3, &[5]), (4, &[5]), (5, &[5, 2]), (6, &[5, 2])] {
        assert_eq!(found(&index, "a", &[1, 2, 3, 4, 9, 9][..length]), expected, "{length} tokens");
    }
}

#[test]
fn another_salt_and_other_tokens_find_nothing() {
    let mut index = index(8, 2);
    fill(&mut index, "a", &[1, 2, 3, 4], &[5, 2]);
    assert!(found(&index, "b", &[1, 2, 3, 4, 5]).is_empty());
    assert!(found(&index, "a", &[3, 4, 3, 4, 5]).is_empty());
    assert_eq!(found(&index, "a", &[1, 2, 4, 3, 5]), [5]);
}

/// With no bit of a key that counts, everything collides.
#[test]
fn keys_that_collide_can_only_miss() {
    let mut index = PrefixIndex::new(8, 2).unwrap().with_key_bits(0);
    index.reserve(7).unwrap();
    fill(&mut index, "a", &[1, 2], &[5]);
    assert_eq!(found(&index, "a", &[1, 2, 3]), [5]);
    assert!(found(&index, "a", &[2, 1, 3]).is_empty(), "other tokens");
    assert!(found(&index, "b", &[1, 2, 3]).is_empty(), "another parent");
    assert_eq!(found(&index, "a", &[1, 2, 1, 2, 3]), [5], "the same tokens further on");
    let image = Extras::new(vec![Extra { start: 1, end: 2, key: vec![7] }]).unwrap();
    assert!(index.find_prefix(&root("a"), &[1, 2, 3], &image).unwrap().blocks.is_empty(), "an image");
    fill(&mut index, "b", &[8, 8], &[6]);
    assert_eq!((index.len(), index.is_indexed(6)), (1, false));
    index.check_invariants().unwrap();
}

/// With 8 bits of a key that count, many collide: a block is found by the prompts that it was computed for, or by none.
#[test]
fn keys_of_eight_bits_never_find_another_block() {
    const BLOCKS: u32 = 400;
    let collided = std::cell::Cell::new(0);
    let prompt = (proptest::option::of(proptest::num::u8::ANY), proptest::bool::ANY);
    let traces = proptest::collection::vec((prompt, proptest::collection::vec(0..2u32, 2..24)), 20..60);
    // The image in the second block if there is one, the salt, and all tokens up to the end of a block.
    let of = |(image, is_other): (Option<u8>, bool), tokens: &[u32]| {
        (image.filter(|_| tokens.len() > 2), is_other, tokens.to_vec())
    };
    super::support::run("index of 8 bits", 300, traces, |prompts| {
        let mut index = PrefixIndex::new(BLOCKS, 2).unwrap().with_key_bits(8);
        index.reserve(BLOCKS - 1).unwrap();
        let (mut content, mut next) = (vec![(None, false, Vec::new()); BLOCKS as usize], 0);
        for (prompt, tokens) in &prompts {
            let (image, salt) = (prompt.0, if prompt.1 { "b" } else { "a" });
            let image = image.map(|image| Extra { start: 2, end: 3, key: vec![image] });
            let extras = Extras::new(image.into_iter().collect()).unwrap();
            let found =
                |index: &PrefixIndex, tokens: &[u32]| index.find_prefix(&root(salt), tokens, &extras).unwrap().blocks;
            for (at, &block) in found(&index, tokens).iter().enumerate() {
                let expected = of(*prompt, &tokens[..2 * at + 2]);
                proptest::prop_assert_eq!(&content[block as usize], &expected, "another block is found");
            }
            let blocks: Vec<u32> = (0..tokens.len() as u32 / 2).map(|at| (next + at) % BLOCKS).collect();
            next += blocks.len() as u32;
            for (at, &block) in blocks.iter().enumerate() {
                index.evict(block);
                content[block as usize] = of(*prompt, &tokens[..2 * at + 2]);
            }
            fill_with(&mut index, salt, tokens, &blocks, &extras);
            let missed = found(&index, &[&tokens[..], &[9]].concat()).len() < blocks.len();
            collided.set(collided.get() + u32::from(missed));
            index.check_invariants().map_err(proptest::test_runner::TestCaseError::fail)?;
        }
        Ok(())
    });
    assert!(collided.get() > 0, "nothing collided");
}

#[test]
fn two_that_fill_the_same_block_both_keep_theirs() {
    let mut index = index(8, 2);
    let first = fill(&mut index, "a", &[1, 2], &[5]);
    let second = fill(&mut index, "a", &[1, 2, 3, 4], &[6, 7]);
    assert_eq!(first[0], second[0]);
    assert_eq!((index.key(5), index.key(6)), (Some(&first[0]), Some(&first[0])));
    assert_eq!((index.is_indexed(5), index.is_indexed(6), index.len()), (true, false, 2));
    assert_eq!(found(&index, "a", &[1, 2, 3, 4, 5]), [5, 7]);
    assert!(!index.remove(6) && index.remove(5));
    assert_eq!((index.key(6), index.len()), (None, 1));
}

#[test]
fn of_blocks_of_one_name_another_is_found_once_the_first_is_gone() {
    let image = Extras::new(vec![Extra { start: 0, end: 1, key: vec![7] }]).unwrap();
    for extras in [Extras::default(), image] {
        let mut index = index(8, 2);
        let key = root("a").child(&[1, 2], 0, &extras);
        for block in [3, 5, 6, 7] {
            index.set_tokens(block, 0, &[1, 2]);
            assert_eq!(index.insert(block, &key, &root("a"), 0, &extras), block == 3);
        }
        assert!(!index.remove(6), "it waited");
        let mut left = vec![];
        while let [block] = index.find_prefix(&root("a"), &[1, 2, 3], &extras).unwrap().blocks[..] {
            index.check_invariants().unwrap();
            assert!(index.evict(block) && index.key(block).is_none());
            left.push(block);
        }
        assert_eq!((left, index.len()), (vec![3, 7, 5], 0));
        let stored = Event::Stored { key, parent: root("a"), tokens: [1, 2].into(), is_first: true };
        assert_eq!(index.events().since(0).events.concat(), [stored, Event::Removed { key }]);
        index.check_invariants().unwrap();
    }
}

#[test]
fn a_part_of_a_block_is_found_by_its_longest_start() {
    let mut index = index(200, 4);
    let keys = fill(&mut index, "a", &[1, 2, 3, 4], &[5]);
    for block in 10..14 {
        let mut tokens = [1, 2, 3, 4, 9, 9, 9, 9];
        tokens[4..][..block as usize - 10].fill(7);
        fill(&mut index, "a", &tokens, &[1, block]);
        index.remove(1);
    }
    let part = |tokens: &[u32]| {
        let found = index.find_prefix(&root("a"), tokens, &Extras::default()).unwrap();
        assert_eq!(found.keys, keys[..found.blocks.len()]);
        index.find_rest(&root("a"), tokens, &Extras::default(), &found.keys)
    };
    assert_eq!(part(&[1, 2, 3, 4, 7, 7, 7, 0, 0]), Some((13, 3)));
    assert_eq!(part(&[1, 2, 3, 4, 7, 7, 7]).map(|part| part.1), Some(2));
    assert_eq!(part(&[1, 2, 3, 4, 8, 7]), None);
    assert_eq!(part(&[1, 2, 3, 4]), Some((5, 3)));
    assert_eq!(part(&[1]), None);
    let image = Extras::new(vec![Extra { start: 7, end: 8, key: vec![7] }]).unwrap();
    assert_eq!(index.find_partial(&keys[0], &[7], 4, &image), None, "an image within the block");
    assert_eq!(index.find_partial(&root("b"), &[1], 0, &Extras::default()), None, "another salt");
}

#[test]
fn says_why_a_prompt_is_not_found() {
    let mut index = index(8, 2);
    let prompt = [1, 2, 3, 4, 5];
    let keys = fill(&mut index, "a", &prompt, &[0, 1]);
    assert_eq!(why(&index, &prompt), Explanation { matched: 4, missing: None });
    index.remove(1);
    let missing = |reason| Explanation { matched: 2, missing: Some((1, reason)) };
    assert_eq!(why(&index, &prompt), missing(MissReason::NeverSeen), "written over");
    assert_eq!(fill(&mut index, "a", &prompt, &[2, 1]), keys);
    index.evict(1);
    assert_eq!(why(&index, &prompt), missing(MissReason::Evicted));
    fill(&mut index, "b", &[1, 2, 7, 7], &[4, 5]);
    assert_eq!(why(&index, &[1, 2, 7, 7, 0]), missing(MissReason::OtherSalt));
    assert_eq!(why(&index, &[1, 2, 7, 8, 0]), missing(MissReason::NeverSeen));
}

#[test]
fn events_tell_what_can_be_found() {
    let mut index = index(8, 2);
    let keys = fill(&mut index, "a", &[1, 2, 3, 4], &[0, 1]);
    fill(&mut index, "a", &[1, 2], &[2]);
    index.remove(2);
    index.remove(1);
    index.clear();
    let stored = |at: usize, parent| Event::Stored {
        key: keys[at],
        parent,
        tokens: [[1, 2], [3, 4]][at].into(),
        is_first: at == 0,
    };
    let expected = [stored(0, root("a")), stored(1, keys[0]), Event::Removed { key: keys[1] }, Event::Cleared];
    assert_eq!(index.events().since(0).events.concat(), expected);
    assert_eq!((found(&index, "a", &[1, 2, 3]), index.len()), (vec![], 0));
    index.check_invariants().unwrap();
}

#[test]
fn a_prompt_longer_than_what_is_looked_up_at_once() {
    let mut index = index(100, 1);
    let prompt: Vec<u32> = (0..50).collect();
    let blocks: Vec<u32> = (40..90).rev().collect();
    fill(&mut index, "a", &prompt, &blocks);
    for length in 0..50 {
        assert_eq!(found(&index, "a", &prompt[..length]), blocks[..length.saturating_sub(1)]);
        let mut other = prompt.clone();
        other[length] = 99;
        assert_eq!(found(&index, "a", &other), blocks[..length.min(49)], "{length}");
    }
}
