//! Rows of elements and of floats, as the kernels of a tile take them.

use super::ahead::{Ahead, AheadOf};

/// Every vector has at most so many floats: rows of floats are padded to a multiple of it.
pub(crate) const LANES_MAX: usize = 16;

/// How elements lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    F32,
    F16,
    Bf16,
    F8,
    I8,
    Nibbles,
}

impl Elements {
    /// Bytes of a row of `dim` elements.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            Elements::F32 => 4 * dim,
            Elements::F16 | Elements::Bf16 => 2 * dim,
            Elements::F8 | Elements::I8 => dim,
            Elements::Nibbles => dim.div_ceil(2),
        }
    }

    /// True when the kernels read rows of `dim` elements as they lie; others are widened first.
    pub fn is_direct(self, dim: usize) -> bool {
        self != Elements::Nibbles || dim.is_multiple_of(32)
    }
}

/// Rows of elements at equal distances, as many for each of some heads, which lie at one distance too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    pub elements: Elements,
    pub bytes: &'a [u8],
    /// The byte of the first row of the first head.
    pub offset: usize,
    pub heads: usize,
    /// Bytes from a head to the next.
    pub head_stride: usize,
    /// Bytes from a row of a head to its next.
    pub stride: usize,
    /// Rows of each head.
    pub count: usize,
    /// Elements of a row.
    pub dim: usize,
    /// What is asked for while they are read.
    pub ahead: Ahead,
}

impl Rows<'_> {
    /// The rows of one head.
    pub fn head(self, head: usize) -> Self {
        Rows { offset: self.offset + head * self.head_stride, heads: 1, ..self }
    }

    /// Rows `first .. first + count` of each head.
    pub fn part(self, first: usize, count: usize) -> Self {
        Rows { offset: self.offset + first * self.stride, count, ..self }
    }

    /// Refuses rows that reach outside their memory.
    pub(super) fn check(&self) {
        let last =
            self.offset + self.heads.saturating_sub(1) * self.head_stride + self.count.saturating_sub(1) * self.stride;
        assert!(last + self.elements.row_bytes(self.dim) <= self.bytes.len(), "rows reach outside their memory");
    }

    /// What is asked for, from an address on.
    pub(super) fn ahead_of_first(&self) -> AheadOf {
        let Ahead { near, far, turn } = self.ahead;
        AheadOf { near, far, turn: self.first().addr().saturating_add(turn) }
    }

    /// The address of the first one.
    pub(super) fn first(&self) -> *const u8 {
        self.bytes[self.offset..].as_ptr()
    }
}

/// `count` rows of floats, `stride` apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub floats: &'a [f32],
    pub stride: usize,
    pub count: usize,
}

/// The same, to change.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a> {
    pub floats: &'a mut [f32],
    pub stride: usize,
}

/// Floats of a row with `dim` elements.
pub(crate) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(LANES_MAX)
}

/// Codes of 4 bits whose last group has fewer than 32 of them.
pub(super) fn widen_nibbles(row: &[u8], dim: usize, out: &mut [f32]) {
    for group in (0..dim).step_by(32) {
        let codes = 32.min(dim - group);
        let half = codes.div_ceil(2);
        for index in 0..codes {
            let byte = row[group / 2 + index % half];
            out[group + index] = f32::from(if index < half { byte & 15 } else { byte >> 4 });
        }
    }
}
