//! One random read of memory: the minimum cost of a call that uses a block that was not used for long.
//!
//! ```text
//! lines   0 -> 7 -> 3 -> 9 -> ...     each line contains the index of the next: no two reads overlap
//! ```
//!
//! The lines form one cycle. The memory is like that of the bookkeeping: plain, in pages of the same size.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::order::shuffled;

/// Numbers of a line of the processor's caches.
const LINE: usize = 16;
const READS: u32 = 4096;

/// So many bytes, of which a line is read at a time.
pub struct Memory {
    numbers: Vec<u32>,
    at: u32,
}

impl Memory {
    /// Memory of this many bytes.
    pub fn new(bytes: usize) -> Self {
        let lines = shuffled((bytes / (LINE * size_of::<u32>())).max(1) as u32, 0);
        let mut numbers = vec![0; lines.len() * LINE];
        for (place, &line) in lines.iter().enumerate() {
            numbers[line as usize * LINE] = lines[(place + 1) % lines.len()];
        }
        Memory { numbers, at: 0 }
    }

    /// Lines that it has.
    pub fn lines(&self) -> u32 {
        (self.numbers.len() / LINE) as u32
    }

    /// Reads lines; returns their number and the duration.
    pub fn read(&mut self) -> (u32, Duration) {
        let start = Instant::now();
        for _ in 0..READS {
            self.at = self.numbers[self.at as usize * LINE];
        }
        let took = start.elapsed();
        black_box(self.at);
        (READS, took)
    }
}
