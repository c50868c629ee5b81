//! The sequences that a call names, each once.

use crate::error::{Result, reserve};

/// A bit for each sequence, by its seat.
pub struct Named(Vec<u64>);

impl Named {
    /// None of so many yet.
    pub fn of(seats: usize) -> Result<Self> {
        let mut words = Vec::new();
        reserve(&mut words, seats.div_ceil(64), "sequences and blocks of a call")?;
        words.resize(seats.div_ceil(64), 0);
        Ok(Named(words))
    }

    /// False for one that was named before.
    pub fn insert(&mut self, seat: u32) -> bool {
        let (word, bit) = (&mut self.0[seat as usize / 64], 1 << (seat % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}
