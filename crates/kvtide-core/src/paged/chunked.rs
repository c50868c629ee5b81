//! One row of numbers per block, for as many blocks as were ever reserved.
//!
//! ```text
//! row      0 .. 1023   1024 .. 2047   2048 ..
//! chunk    [........]  [..........]   not there yet
//! ```
//!
//! Rows never move once they are there, so growing costs what is added and nothing else, and never leaves more than one
//! chunk unused.
//!
//! Invariants: every chunk but the last of all has `1 << shift` rows; no row lies behind the last of `rows_max`. Reading and
//! writing a row is O(1), `reserve` O(rows added). A chunk has about 64 KiB, or one row where that is larger.

use crate::error::{Error, Result};

/// The bytes of a chunk, if a row is not larger.
const CHUNK_BYTES: usize = 1 << 16;

#[derive(Debug)]
pub struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    shift: u32,
    width: usize,
    rows_max: u32,
    fill: T,
}

impl<T: Copy> Chunked<T> {
    /// No rows yet, and never more than `rows_max`; a row has `width` numbers, which are `fill` at first.
    pub fn new(rows_max: u32, width: u32, fill: T) -> Self {
        let width = width as usize;
        let rows = (CHUNK_BYTES / (width * size_of::<T>())).max(1);
        Chunked { chunks: Vec::new(), shift: rows.ilog2(), width, rows_max, fill }
    }

    /// Makes room for a row and for those before it.
    pub fn reserve(&mut self, row: u32) -> Result<()> {
        assert!(row < self.rows_max, "row {row} of at most {}", self.rows_max);
        let out_of_memory = |_| Error::OutOfMemory { count: u64::from(row) + 1, what: "blocks" };
        while self.rows() <= row {
            let rows = (self.rows_max - self.rows()).min(1 << self.shift) as usize;
            let mut chunk = Vec::new();
            chunk.try_reserve_exact(rows * self.width).map_err(out_of_memory)?;
            self.chunks.try_reserve(1).map_err(out_of_memory)?;
            chunk.resize(rows * self.width, self.fill);
            self.chunks.push(chunk);
        }
        Ok(())
    }

    /// Rows there are.
    pub fn rows(&self) -> u32 {
        let full = (self.chunks.len() as u64) << self.shift;
        full.min(self.rows_max.into()) as u32
    }

    #[inline]
    pub fn row(&self, row: u32) -> &[T] {
        let start = self.start(row);
        &self.chunks[(row >> self.shift) as usize][start..start + self.width]
    }

    #[inline]
    pub fn row_mut(&mut self, row: u32) -> &mut [T] {
        let start = self.start(row);
        &mut self.chunks[(row >> self.shift) as usize][start..start + self.width]
    }

    /// Copies the first numbers of a row to another.
    pub fn copy(&mut self, source: u32, target: u32, numbers: usize) {
        let (from, to) = (self.start(source), self.start(target));
        let chunk = |row: u32| (row >> self.shift) as usize;
        match self.chunks.get_disjoint_mut([chunk(source), chunk(target)]) {
            Ok([source, target]) => target[to..to + numbers].copy_from_slice(&source[from..from + numbers]),
            Err(_) => self.chunks[chunk(source)].copy_within(from..from + numbers, to),
        }
    }

    /// Bytes taken for rows.
    pub fn bytes(&self) -> usize {
        let rows: usize = self.chunks.iter().map(|chunk| chunk.capacity() * size_of::<T>()).sum();
        rows + self.chunks.capacity() * size_of::<Vec<T>>()
    }

    #[inline]
    fn start(&self, row: u32) -> usize {
        (row as usize & ((1 << self.shift) - 1)) * self.width
    }
}

/// Rows of one number each are indexed like an array.
impl<T: Copy> std::ops::Index<u32> for Chunked<T> {
    type Output = T;

    #[inline]
    fn index(&self, row: u32) -> &T {
        debug_assert_eq!(self.width, 1);
        &self.chunks[(row >> self.shift) as usize][row as usize & ((1 << self.shift) - 1)]
    }
}

impl<T: Copy> std::ops::IndexMut<u32> for Chunked<T> {
    #[inline]
    fn index_mut(&mut self, row: u32) -> &mut T {
        debug_assert_eq!(self.width, 1);
        &mut self.chunks[(row >> self.shift) as usize][row as usize & ((1 << self.shift) - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_what_they_are_while_it_grows() {
        let mut rows = Chunked::new(100_000, 3, 7u32);
        assert_eq!((rows.rows(), rows.bytes()), (0, 0));
        rows.reserve(0).unwrap();
        rows.row_mut(0).copy_from_slice(&[1, 2, 3]);
        rows.reserve(99_999).unwrap();
        rows.row_mut(99_999)[1] = 9;
        assert_eq!((rows.row(0), rows.row(1), rows.row(99_999)), (&[1, 2, 3][..], &[7; 3][..], &[7, 9, 7][..]));
        assert_eq!(rows.rows(), 100_000);
        assert!(rows.bytes() < 100_000 * 12 + 20_000, "{}", rows.bytes());
    }

    #[test]
    fn takes_no_more_than_it_may_ever_need() {
        let mut rows = Chunked::new(5, 1, 0u8);
        rows.reserve(0).unwrap();
        rows[4] = 1;
        assert_eq!(rows.rows(), 5);
        assert!(rows.bytes() < 200);
    }

    #[test]
    fn rows_wider_than_a_chunk_and_than_memory() {
        let mut wide = Chunked::new(3, 100_000, 0u32);
        wide.reserve(1).unwrap();
        assert_eq!((wide.rows(), wide.row(1).len()), (2, 100_000));
        let mut huge = Chunked::new(i32::MAX as u32, i32::MAX as u32, [0u64; 1 << 14]);
        assert_eq!(huge.reserve(2), Err(Error::OutOfMemory { count: 3, what: "blocks" }));
        assert_eq!(huge.rows(), 0);
    }
}
