//! The public pool with half of its blocks handed out; the free half is in random order.
//!
//! ```text
//! allocate   256 blocks
//! free       the 256 blocks that were handed out longest ago, in random order
//! ```
//!
//! A freed block is handed out last, so all other blocks are used between two uses of a block.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use kvtide_core::paged::{BlockHandle, BlockPool};

use crate::order::shuffled;

const CALLS: usize = 256;
/// Bytes that the pool uses for a block.
const BLOCK_BYTES: usize = 20;

/// A pool, and the handles that are out.
pub struct Handles {
    pool: BlockPool,
    /// In the order in which they go back.
    held: VecDeque<BlockHandle>,
}

impl Handles {
    /// A pool of so many blocks.
    pub fn new(capacity: u32) -> Self {
        let mut pool = BlockPool::new(capacity).unwrap();
        let all = pool.allocate_many(capacity).unwrap();
        let order: Vec<BlockHandle> = shuffled(capacity, 0).into_iter().map(|at| all[at as usize]).collect();
        let (free, held) = order.split_at(order.len() / 2);
        free.iter().for_each(|&block| pool.free(block).unwrap());
        Handles { pool, held: held.iter().copied().collect() }
    }

    /// Bytes of its bookkeeping.
    pub fn bytes(&self) -> usize {
        self.pool.capacity() as usize * BLOCK_BYTES
    }

    /// Allocates and frees blocks; returns their number, and the duration of each.
    pub fn round(&mut self) -> (u32, Vec<Duration>) {
        let given: Vec<BlockHandle> = self.held.drain(..CALLS).collect();
        let mut taken = Vec::with_capacity(CALLS);
        let start = Instant::now();
        for _ in 0..CALLS {
            taken.push(self.pool.allocate().unwrap());
        }
        let allocated = Instant::now();
        for &block in black_box(&given) {
            self.pool.free(block).unwrap();
        }
        let freed = Instant::now();
        self.held.extend(taken);
        (CALLS as u32, vec![allocated - start, freed - allocated])
    }
}
