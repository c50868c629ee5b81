//! Pools of prompts, as in an engine: the blocks of a prompt are scattered.
//!
//! ```text
//! Cached    no block is held, all are in the prefix cache             match; evict, insert, drop
//! Live      half of the blocks in use, the others free               ensureCapacity; fork; snapshot
//! ```
//!
//! A prompt has 64 blocks of 16 tokens. Prompts are made before timing starts, so only the pool's memory is cold.

use std::hint::black_box;
use std::iter::Cycle;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use kvtide_core::paged::{Append, Identity, PagedPlanner, Writer};

use crate::order::shuffled;

const BLOCK_SIZE: u32 = 16;
/// Blocks of a prompt.
const PROMPT: u32 = 64;
/// Prompts of a round.
const PROMPTS: u32 = 8;
/// Forks and snapshots of a round.
const CALLS: usize = 256;

/// The tokens of a prompt like no other.
fn prompt(number: u32) -> Vec<u32> {
    (0..PROMPT * BLOCK_SIZE).map(|token| token.wrapping_mul(2_654_435_761) ^ number.wrapping_mul(97)).collect()
}

/// Writes a prompt into a sequence; without tokens it is not found by them.
fn write(planner: &mut PagedPlanner, sequence: u64, tokens: Option<&[u32]>) {
    let append = Append {
        sequences: &[sequence],
        offsets: Some(&[0, PROMPT * BLOCK_SIZE]),
        parents: None,
        writer: Writer::Direct,
    };
    let plan = planner.plan_append(&append).unwrap();
    planner.commit(&plan, tokens).unwrap();
}

/// As many sequences as fit, with the blocks of a prompt each, which they took one by one in random order.
fn filled(capacity: u32) -> (PagedPlanner, Vec<u64>) {
    let mut planner = PagedPlanner::new(capacity, BLOCK_SIZE, 1).unwrap();
    let sequences: Vec<u64> = (0..capacity / PROMPT).map(|_| planner.create_sequence().unwrap()).collect();
    let mut blocks = vec![0; sequences.len()];
    for turn in shuffled(sequences.len() as u32 * PROMPT, 1) {
        let at = turn as usize % sequences.len();
        blocks[at] += 1;
        planner.ensure_capacity(&[(sequences[at], blocks[at] * BLOCK_SIZE)]).unwrap();
    }
    (planner, sequences)
}

/// A pool of which every block is cached, and found by its tokens.
pub struct Cached {
    planner: PagedPlanner,
    /// Prompts that are there, in random order, over and over.
    order: Cycle<IntoIter<u32>>,
    /// The next prompt that was never there.
    next: u32,
}

impl Cached {
    /// A pool of so many blocks.
    pub fn new(capacity: u32) -> Self {
        let (mut planner, sequences) = filled(capacity);
        let number = sequences.len() as u32;
        for at in shuffled(number, 2) {
            write(&mut planner, sequences[at as usize], Some(&prompt(at)));
            planner.drop_sequence(sequences[at as usize]).unwrap();
        }
        Cached { planner, order: shuffled(number, 3).into_iter().cycle(), next: number }
    }

    /// Bytes of its bookkeeping, with the ids of all tokens.
    pub fn bytes(&self) -> usize {
        self.planner.bytes() + (self.planner.total_count() * BLOCK_SIZE) as usize * size_of::<u32>()
    }

    /// Blocks that were evicted.
    pub fn evictions(&self) -> u64 {
        self.planner.pool_stats().evictions
    }

    /// Finds prompts: how many blocks, and what it took.
    pub fn find(&mut self) -> (u32, Vec<Duration>) {
        let identity = Identity::default();
        let mut took = Duration::ZERO;
        for _ in 0..PROMPTS {
            let mut tokens = prompt(self.order.next().unwrap());
            // The last token of a prompt is never found: one more, so that the last block is.
            tokens.push(0);
            let start = Instant::now();
            let held = self.planner.find(black_box(&tokens), &identity, false).unwrap();
            took += start.elapsed();
            assert_eq!(held.length(), PROMPT * BLOCK_SIZE);
            self.planner.release(held);
        }
        (PROMPTS * PROMPT, vec![took])
    }

    /// New prompts in the place of others: how many blocks, and what it took to evict, to insert and to drop them.
    pub fn replace(&mut self) -> (u32, Vec<Duration>) {
        let mut took = vec![Duration::ZERO; 3];
        for _ in 0..PROMPTS {
            let tokens = prompt(self.next);
            self.next += 1;
            let sequence = self.planner.create_sequence().unwrap();
            let start = Instant::now();
            self.planner.ensure_capacity(&[(sequence, PROMPT * BLOCK_SIZE)]).unwrap();
            let evicted = Instant::now();
            write(&mut self.planner, sequence, Some(black_box(&tokens)));
            let inserted = Instant::now();
            self.planner.drop_sequence(sequence).unwrap();
            let dropped = Instant::now();
            for (of, part) in took.iter_mut().zip([evicted - start, inserted - evicted, dropped - inserted]) {
                *of += part;
            }
        }
        (PROMPTS * PROMPT, took)
    }
}

/// A pool with sequences in half of its blocks, whose other blocks are free.
pub struct Live {
    planner: PagedPlanner,
    /// Its sequences, in random order, over and over.
    order: Cycle<IntoIter<u64>>,
    number: u32,
}

impl Live {
    /// A pool of so many blocks.
    pub fn new(capacity: u32) -> Self {
        let (mut planner, sequences) = filled(capacity);
        sequences.iter().for_each(|&of| write(&mut planner, of, None));
        let mut order: Vec<u64> =
            shuffled(sequences.len() as u32, 2).into_iter().map(|at| sequences[at as usize]).collect();
        let ended = order.split_off(order.len() / 2);
        ended.into_iter().for_each(|of| planner.drop_sequence(of).unwrap());
        Live { planner, number: order.len() as u32, order: order.into_iter().cycle() }
    }

    /// Number of sequences.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Gives new sequences the blocks of a prompt: how many, and what it took.
    pub fn ensure_capacity(&mut self) -> (u32, Vec<Duration>) {
        let mut took = Duration::ZERO;
        for _ in 0..PROMPTS {
            let sequence = self.planner.create_sequence().unwrap();
            let start = Instant::now();
            self.planner.ensure_capacity(&[(sequence, PROMPT * BLOCK_SIZE)]).unwrap();
            took += start.elapsed();
            self.planner.drop_sequence(sequence).unwrap();
        }
        (PROMPTS * PROMPT, vec![took])
    }

    /// Forks sequences: how many, and what it took.
    pub fn fork(&mut self) -> (u32, Vec<Duration>) {
        let sources: Vec<u64> = self.order.by_ref().take(CALLS).collect();
        let mut forks = Vec::with_capacity(CALLS);
        let start = Instant::now();
        for &source in black_box(&sources) {
            forks.push(self.planner.fork(source).unwrap());
        }
        let took = start.elapsed();
        forks.into_iter().for_each(|fork| self.planner.drop_sequence(fork).unwrap());
        (CALLS as u32, vec![took])
    }

    /// Takes snapshots of sequences: how many, and what it took.
    pub fn snapshot(&mut self) -> (u32, Vec<Duration>) {
        let sources: Vec<u64> = self.order.by_ref().take(CALLS).collect();
        let mut held = Vec::with_capacity(CALLS);
        let start = Instant::now();
        for &source in black_box(&sources) {
            held.push(self.planner.snapshot(source).unwrap());
        }
        let took = start.elapsed();
        held.into_iter().for_each(|snapshot| self.planner.release(snapshot));
        (CALLS as u32, vec![took])
    }
}
