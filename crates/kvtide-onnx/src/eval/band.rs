//! Tables that are banded: a causal mask for all positions, with or without a window. A graph cuts the rows of its queries
//! and the columns of its keys out of such a table.
//!
//! ```text
//! 1 0 0 0 0
//! 1 1 0 0 0      window 3: every row has its own column, and at most two before it
//! 1 1 1 0 0
//! 0 1 1 1 0
//! ```
//! All numbers of a table are compared once, a few rows at a time; afterwards the table is its band.

use crate::error::Result;
use crate::proto::{ElementType, Tensor};
use crate::source::Source;

/// The most numbers of a table.
const TABLE_MAX: u64 = 1 << 28;
/// The numbers that are read at once.
const READ: u64 = 1 << 16;

/// A table with one number inside of the band and another one outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Band {
    inside: f64,
    outside: f64,
    /// The most columns of a row that are inside; they end with the row's own.
    window: usize,
}

impl Band {
    pub fn at(&self, row: usize, column: usize) -> f64 {
        if column <= row && row - column < self.window { self.inside } else { self.outside }
    }

    /// The same band with other numbers.
    pub fn map(self, function: impl Fn(f64) -> f64) -> Self {
        Self { inside: function(self.inside), outside: function(self.outside), ..self }
    }

    /// The band of a table; [`None`] if a number disagrees, or the tensor is no table. `O(numbers)`, and `O(columns)`
    /// for a matrix of weights.
    pub fn of(tensor: &Tensor, source: &dyn Source) -> Result<Option<Self>> {
        let Some([rows, columns]) = sizes(tensor) else { return Ok(None) };
        let Some(first) = tensor.load_part(source, 0, columns)? else { return Ok(None) };
        let &[inside, outside, ..] = first.as_slice() else { return Ok(None) };
        let mut band = Self { inside, outside, window: usize::MAX };
        if inside == outside || !band.has(0, &first) {
            return Ok(None);
        }
        let mut row = 1;
        while row < rows {
            let count = (READ / columns).clamp(1, rows - row);
            let Some(numbers) = tensor.load_part(source, row * columns, count * columns)? else { return Ok(None) };
            for (index, numbers) in numbers.chunks(columns as usize).enumerate() {
                let row = row as usize + index;
                // The window is as long as the first row that lacks its first column.
                if band.window == usize::MAX && numbers[0] == outside {
                    band.window = row;
                }
                if !band.has(row, numbers) {
                    return Ok(None);
                }
            }
            row += count;
        }
        Ok(Some(band))
    }

    fn has(&self, row: usize, numbers: &[f64]) -> bool {
        numbers.iter().enumerate().all(|(column, &number)| number == self.at(row, column))
    }
}

/// The rows and columns of a tensor that may be the table of a mask.
fn sizes(tensor: &Tensor) -> Option<[u64; 2]> {
    let &[ref front @ .., rows, columns] = tensor.dims.as_slice() else { return None };
    let is_truth = [ElementType::BOOL, ElementType(2)].contains(&tensor.element);
    // A matrix of floats is a weight.
    let is_table = front.iter().all(|&dim| dim == 1) && (is_truth || !front.is_empty());
    let count = rows.checked_mul(columns)?;
    (is_table && rows > 1 && columns > 1 && count <= TABLE_MAX).then_some([rows, columns])
}
