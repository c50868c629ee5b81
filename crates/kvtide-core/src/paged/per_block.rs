//! One row of numbers for each block, up to the highest reserved.
//!
//! If the memory for all rows is small, it is reserved at once, so that no row ever moves; larger arrays double. Rows
//! are initialised, and so take memory, a step at a time. Compared with chunks that never move, reading a row takes one
//! address instead of two, and `allocate` from a [`BlockPool`](super::BlockPool) of cached blocks takes half the time
//! (`bench/pool`).
//!
//! Invariant: there are at most `rows_max` rows. Reading and writing a row is O(1); `reserve` is O(rows added)
//! amortised.

use crate::error::{Error, Result};

/// Bytes that are initialised in one step, unless one row is larger.
const STEP_BYTES: usize = 1 << 16;

/// Arrays up to this size are reserved at once. Most systems count that memory only when it is written; some count it
/// at once.
const WHOLE_BYTES: usize = 1 << 27;

/// Rows of numbers.
#[derive(Debug)]
pub struct PerBlock<T> {
    numbers: Vec<T>,
    width: usize,
    rows: u32,
    rows_max: u32,
    fill: T,
}

impl<T: Copy> PerBlock<T> {
    /// Returns no rows yet, and at most `rows_max` later. A row has `width` numbers, which are `fill` at first.
    pub fn new(rows_max: u32, width: u32, fill: T) -> Self {
        PerBlock { numbers: Vec::new(), width: width as usize, rows: 0, rows_max, fill }
    }

    /// Adds this row and those before it.
    pub fn reserve(&mut self, row: u32) -> Result<()> {
        assert!(row < self.rows_max, "row {row} of at most {}", self.rows_max);
        if row < self.rows { Ok(()) } else { self.grow(row) }
    }

    #[cold]
    fn grow(&mut self, row: u32) -> Result<()> {
        let out_of_memory = || Error::OutOfMemory { count: u64::from(row) + 1, what: "blocks" };
        let bytes = |rows: u32| (rows as usize).checked_mul(self.width)?.checked_mul(size_of::<T>());
        let step = (STEP_BYTES / bytes(1).ok_or_else(out_of_memory)?).max(1) as u32;
        let rows = (row / step * step).saturating_add(step).min(self.rows_max);
        bytes(rows).ok_or_else(out_of_memory)?;
        let all = bytes(self.rows_max).filter(|&bytes| bytes <= WHOLE_BYTES);
        let wanted = if all.is_some() { self.rows_max } else { rows } as usize * self.width;
        self.numbers.try_reserve(wanted - self.numbers.len()).map_err(|_| out_of_memory())?;
        self.numbers.resize(rows as usize * self.width, self.fill);
        self.rows = rows;
        Ok(())
    }

    #[inline]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    #[inline]
    pub fn row(&self, row: u32) -> &[T] {
        &self.numbers[row as usize * self.width..][..self.width]
    }

    #[inline]
    pub fn row_mut(&mut self, row: u32) -> &mut [T] {
        &mut self.numbers[row as usize * self.width..][..self.width]
    }

    /// Copies the first numbers of a row to another.
    pub fn copy(&mut self, source: u32, target: u32, numbers: usize) {
        let from = source as usize * self.width;
        self.numbers.copy_within(from..from + numbers, target as usize * self.width);
    }

    /// Bytes of the rows; memory that is reserved and was never written does not count.
    pub fn bytes(&self) -> usize {
        self.numbers.len() * size_of::<T>()
    }
}

/// Rows of one number each can be indexed like an array.
impl<T: Copy> std::ops::Index<u32> for PerBlock<T> {
    type Output = T;

    #[inline]
    fn index(&self, row: u32) -> &T {
        debug_assert_eq!(self.width, 1);
        &self.numbers[row as usize]
    }
}

impl<T: Copy> std::ops::IndexMut<u32> for PerBlock<T> {
    #[inline]
    fn index_mut(&mut self, row: u32) -> &mut T {
        debug_assert_eq!(self.width, 1);
        &mut self.numbers[row as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_what_they_are_while_it_grows() {
        let mut rows = PerBlock::new(100_000, 3, 7u32);
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
        let mut rows = PerBlock::new(5, 1, 0u8);
        rows.reserve(0).unwrap();
        rows[4] = 1;
        assert_eq!(rows.rows(), 5);
        assert!(rows.bytes() < 200);
    }

    #[test]
    fn rows_wider_than_a_chunk_and_than_memory() {
        let mut wide = PerBlock::new(3, 100_000, 0u32);
        wide.reserve(1).unwrap();
        assert_eq!((wide.rows(), wide.row(1).len()), (2, 100_000));
        let mut huge = PerBlock::new(i32::MAX as u32, i32::MAX as u32, [0u64; 1 << 14]);
        assert_eq!(huge.reserve(2), Err(Error::OutOfMemory { count: 3, what: "blocks" }));
        assert_eq!(huge.rows(), 0);
    }
}
