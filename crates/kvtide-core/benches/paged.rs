//! What the bookkeeping of blocks and prefixes costs: `cargo bench -p kvtide-core`.
//!
//! ```text
//! take_and_free, evict_and_cache, revive_and_cache     two calls each; blocks in random order
//! find_prefix     hash, look up and compare, as a share of hashing alone; prompts of 64 blocks in random order
//! ```
//!
//! Both on one core, with small pools and with large ones, whose bookkeeping lies outside of every cache.

#[path = "pool/order.rs"]
mod order;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use kvtide_core::paged::parts::{Blocks, PrefixIndex, RankChain, Release};
use kvtide_core::paged::{BlockKey, Extras};
use order::shuffled;

const BLOCK_SIZE: u32 = 16;
/// Blocks of a prompt.
const PROMPT: u32 = 64;
const SIZES: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];

fn main() {
    divan::main();
}

/// A pool whose blocks are all cached, to be evicted in a random order.
fn cached(capacity: u32) -> Blocks {
    let mut blocks = Blocks::new(capacity).unwrap();
    blocks.reserve(capacity).unwrap();
    while blocks.free_count() > 0 {
        blocks.take();
    }
    let how = Release { cached: true, depth: 0 };
    for block in shuffled(capacity, 0) {
        blocks.release(block, how, &mut RankChain::default());
    }
    blocks
}

/// Takes a block and lets go of it, to be free.
#[divan::bench(args = SIZES, sample_size = 10_000)]
fn take_and_free(bencher: Bencher<'_, '_>, capacity: u32) {
    let mut blocks = cached(capacity);
    let how = Release { cached: false, depth: 0 };
    // Half of them free, in random order, so that a block that comes back is not the next one.
    for block in shuffled(capacity, 0).into_iter().filter(|block| block % 2 == 0) {
        blocks.forget(block);
    }
    bencher.bench_local(|| {
        let taken = blocks.take().unwrap();
        blocks.release(taken.block, how, &mut RankChain::default())
    });
}

/// Evicts a block and caches it again.
#[divan::bench(args = SIZES, sample_size = 10_000)]
fn evict_and_cache(bencher: Bencher<'_, '_>, capacity: u32) {
    let mut blocks = cached(capacity);
    let how = Release { cached: true, depth: 0 };
    bencher.bench_local(|| {
        let taken = blocks.take().unwrap();
        blocks.release(taken.block, how, &mut RankChain::default())
    });
}

/// Revives a cached block in the middle of the order, and caches it again.
#[divan::bench(args = SIZES, sample_size = 10_000)]
fn revive_and_cache(bencher: Bencher<'_, '_>, capacity: u32) {
    let mut blocks = cached(capacity);
    let how = Release { cached: true, depth: 0 };
    let mut order = shuffled(capacity, 0).into_iter().cycle();
    bencher.bench_local(|| {
        let block = order.next().unwrap();
        blocks.retain(block);
        blocks.release(block, how, &mut RankChain::default())
    });
}

fn root() -> BlockKey {
    BlockKey::root(&[7; 32], b"bench", b"")
}

/// The tokens of a prompt, and one more.
fn prompt(number: u32) -> Vec<u32> {
    (0..PROMPT * BLOCK_SIZE + 1).map(|token| token.wrapping_mul(2_654_435_761) ^ number.wrapping_mul(97)).collect()
}

/// An index full of prompts; their blocks lie anywhere.
fn index_of(capacity: u32) -> (PrefixIndex, Vec<Vec<u32>>) {
    let mut index = PrefixIndex::new(capacity, BLOCK_SIZE).unwrap();
    index.reserve(capacity - 1).unwrap();
    let mut blocks = shuffled(capacity, 0).into_iter();
    let prompts: Vec<_> = (0..capacity / PROMPT).map(prompt).collect();
    for tokens in &prompts {
        let mut parent = root();
        for (at, of_block) in tokens.chunks_exact(BLOCK_SIZE as usize).enumerate() {
            let (block, position) = (blocks.next().unwrap(), at as u32 * BLOCK_SIZE);
            let key = parent.child(of_block, position, &Extras::default());
            index.set_tokens(block, 0, of_block);
            assert!(index.insert(block, &key, &parent, position, &Extras::default()));
            parent = key;
        }
    }
    (index, prompts)
}

/// The tokens of one prompt after another, in random order, so that in a large index each one is cold.
fn over_prompts(bencher: Bencher<'_, '_>, prompts: &[Vec<u32>], mut each: impl FnMut(&[u32]) -> usize) {
    let order = shuffled(prompts.len() as u32, 0);
    let mut order = order.iter().cycle();
    bencher.counter(ItemsCount::new(PROMPT * BLOCK_SIZE)).bench_local(|| {
        let found = each(black_box(&prompts[*order.next().unwrap() as usize]));
        assert_eq!(found, PROMPT as usize);
    });
}

/// Hashing alone, what `find_prefix` is compared with; `items` are tokens.
#[divan::bench(args = SIZES, sample_count = 3000)]
fn hash_alone(bencher: Bencher<'_, '_>, capacity: u32) {
    let prompts: Vec<_> = (0..capacity / PROMPT).map(prompt).collect();
    over_prompts(bencher, &prompts, |tokens| {
        let blocks = tokens.chunks_exact(BLOCK_SIZE as usize);
        let number = blocks.len();
        let key = blocks.fold(root(), |key, block| key.child(block, 0, &Extras::default()));
        black_box(key);
        number
    });
}

/// Hash, look up and compare; `items` are tokens.
#[divan::bench(args = SIZES, sample_count = 3000)]
fn find_prefix(bencher: Bencher<'_, '_>, capacity: u32) {
    let (index, prompts) = index_of(capacity);
    over_prompts(bencher, &prompts, |tokens| {
        index.find_prefix(&root(), tokens, &Extras::default()).unwrap().blocks.len()
    });
}

/// Takes a block out of a full index and puts it back, in random order.
#[divan::bench(args = SIZES, sample_size = 1000)]
fn remove_and_insert(bencher: Bencher<'_, '_>, capacity: u32) {
    let (mut index, prompts) = index_of(capacity);
    // All first blocks have one parent, the largest family that there is.
    let first_blocks: Vec<_> = prompts
        .iter()
        .map(|tokens| {
            let key = root().child(&tokens[..BLOCK_SIZE as usize], 0, &Extras::default());
            (index.find(&key, &root(), &tokens[..BLOCK_SIZE as usize], 0, &Extras::default()).unwrap(), key)
        })
        .collect();
    let mut order = shuffled(first_blocks.len() as u32, 0).into_iter().cycle();
    let parent = root();
    bencher.bench_local(|| {
        let (block, key) = first_blocks[order.next().unwrap() as usize];
        index.remove(block);
        assert!(index.insert(block, &key, &parent, 0, &Extras::default()));
    });
}
