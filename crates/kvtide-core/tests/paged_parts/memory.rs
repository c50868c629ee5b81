//! Memory of the bookkeeping for each block.

use kvtide_core::paged::parts::{Blocks, PrefixIndex, RankChain, Release};
use kvtide_core::paged::{BlockKey, Extras};

/// Indexes a block under the root, as the prompt number `block`.
fn insert(index: &mut PrefixIndex, block: u32) {
    let root = BlockKey([1; 32]);
    let tokens = [block; 4];
    let key = root.child(&tokens, 0, &Extras::default());
    index.set_tokens(block, 0, &tokens);
    assert!(index.insert(block, &key, &root, 0, &Extras::default()));
}

#[test]
fn counts_and_order_take_less_than_20_bytes_a_block() {
    for capacity in [1000, 100_000] {
        let mut blocks = Blocks::new(capacity).unwrap();
        blocks.reserve(capacity).unwrap();
        for block in 0..capacity {
            blocks.take().unwrap();
            blocks.release(block, Release { cached: true, depth: 0 }, &mut RankChain::default());
        }
        let each = blocks.bytes() as f64 / f64::from(capacity);
        assert!(each < 20.0, "{each} bytes at {capacity}");
    }
}

/// Also while the pool fills, and when everything in it was replaced many times.
#[test]
fn the_index_takes_less_than_60_bytes_a_block_beyond_its_tokens() {
    let capacity = 100_000;
    let mut index = PrefixIndex::new(capacity, 4).unwrap();
    for block in 0..capacity {
        index.reserve(block).unwrap();
        insert(&mut index, block);
        if block % 1000 == 0 && block > 20_000 {
            let each = index.bytes() as f64 / f64::from(block);
            assert!(each < 64.0, "{each} bytes at {block}");
        }
    }
    for block in (0..10 * capacity).map(|number| number * 7 % capacity) {
        assert!(index.remove(block));
        insert(&mut index, block);
    }
    let each = index.bytes() as f64 / f64::from(capacity);
    assert!(each < 60.0, "{each} bytes");
    let tokens = index.token_bytes() as f64 / f64::from(capacity);
    assert!(tokens < 16.5, "{tokens} bytes of tokens");
    index.check_invariants().unwrap();
}
