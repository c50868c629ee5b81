//! What sequences cost in bookkeeping, through the planner: `cargo bench -p kvtide-core --bench sequences`.
//!
//! ```text
//! fork, snapshot       of a sequence of 100,000 tokens, and giving it up again
//! append_to_1000       a token each, in one plan; one layer, so that marks do not hide the rest
//! find_prompt          1,000 blocks, in pools of 2,000 to 1,000,000; items are tokens
//! allocate_and_free    a block: a sequence of it is made and dropped
//! evict_prompt         64 blocks, written and dropped in a full pool: each evicts another; items are blocks
//! ```

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use kvtide_core::paged::{Append, Identity, PagedPlanner, Writer};

const BLOCK_SIZE: u32 = 16;
const SIZES: [u32; 4] = [2_000, 10_000, 100_000, 1_000_000];

fn main() {
    divan::main();
}

fn append(planner: &mut PagedPlanner, sequence: u64, tokens: &[u32]) {
    let offsets = [0, tokens.len() as u32];
    let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Direct };
    let plan = planner.plan_append(&append).unwrap();
    planner.commit(&plan, Some(tokens)).unwrap();
}

/// A prompt like no other, and one token more.
fn prompt(number: u32, blocks: u32) -> Vec<u32> {
    (0..blocks * BLOCK_SIZE + 1).map(|token| token.wrapping_mul(2_654_435_761) ^ number.wrapping_mul(97)).collect()
}

/// A pool full of prompts of so many blocks, and how many those are; nobody holds them.
fn full(capacity: u32, blocks: u32) -> (PagedPlanner, u32) {
    let mut planner = PagedPlanner::new(capacity, BLOCK_SIZE, 1).unwrap();
    let number = capacity / (blocks + 1);
    for at in 0..number {
        let sequence = planner.create_sequence().unwrap();
        append(&mut planner, sequence, &prompt(at, blocks));
        planner.drop_sequence(sequence).unwrap();
    }
    (planner, number)
}

fn long() -> (PagedPlanner, u64) {
    let mut planner = PagedPlanner::new(10_000, BLOCK_SIZE, 32).unwrap();
    let sequence = planner.create_sequence().unwrap();
    append(&mut planner, sequence, &prompt(0, 100_000 / BLOCK_SIZE));
    (planner, sequence)
}

#[divan::bench(sample_size = 1000)]
fn fork_and_drop(bencher: Bencher<'_, '_>) {
    let (mut planner, sequence) = long();
    bencher.bench_local(|| {
        let fork = planner.fork(sequence).unwrap();
        planner.drop_sequence(fork).unwrap();
    });
}

#[divan::bench(sample_size = 1000)]
fn snapshot_and_release(bencher: Bencher<'_, '_>) {
    let (mut planner, sequence) = long();
    bencher.bench_local(|| {
        let held = planner.snapshot(black_box(sequence)).unwrap();
        planner.release(held);
    });
}

#[divan::bench(sample_count = 400)]
fn append_to_1000(bencher: Bencher<'_, '_>) {
    let mut planner = PagedPlanner::new(200_000, BLOCK_SIZE, 1).unwrap();
    let sequences: Vec<u64> = (0..1000).map(|_| planner.create_sequence().unwrap()).collect();
    let tokens = vec![7; 1000];
    bencher.counter(ItemsCount::new(1000u32)).bench_local(|| {
        let append = Append { sequences: &sequences, offsets: None, parents: None, writer: Writer::Direct };
        let plan = planner.plan_append(&append).unwrap();
        planner.commit(&plan, Some(&tokens)).unwrap();
    });
}

#[divan::bench(args = SIZES, sample_count = 400)]
fn find_prompt(bencher: Bencher<'_, '_>, capacity: u32) {
    let (mut planner, number) = full(capacity, 1000);
    let mut prompts = (0..number).map(|at| prompt(at * 7919 % number, 1000)).collect::<Vec<_>>().into_iter().cycle();
    let identity = Identity::default();
    bencher.counter(ItemsCount::new(1000 * BLOCK_SIZE)).with_inputs(|| prompts.next().unwrap()).bench_local_refs(
        |tokens| {
            let held = planner.find(tokens, &identity, false).unwrap();
            assert_eq!(held.length(), 1000 * BLOCK_SIZE);
            planner.release(held);
        },
    );
}

#[divan::bench(args = SIZES, sample_size = 1000)]
fn allocate_and_free(bencher: Bencher<'_, '_>, capacity: u32) {
    let (mut planner, _) = full(capacity, 64);
    planner.forget_prefixes();
    bencher.bench_local(|| {
        let sequence = planner.create_sequence().unwrap();
        planner.ensure_capacity(&[(sequence, 1)]).unwrap();
        planner.drop_sequence(sequence).unwrap();
    });
}

#[divan::bench(args = SIZES, sample_count = 400)]
fn evict_prompt(bencher: Bencher<'_, '_>, capacity: u32) {
    let (mut planner, number) = full(capacity, 64);
    let mut numbers = number..;
    let input = || prompt(numbers.next().unwrap(), 64);
    bencher.counter(ItemsCount::new(65u32)).with_inputs(input).bench_local_refs(|tokens| {
        let sequence = planner.create_sequence().unwrap();
        append(&mut planner, sequence, tokens);
        planner.drop_sequence(sequence).unwrap();
    });
}
