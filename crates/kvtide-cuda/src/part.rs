//! The places of the rows of K or V: outside pages at three strides, in a page head by head.

use bytemuck::{Pod, Zeroable};

use crate::divisor::Divisor;
use crate::span::Span;
use crate::unit::Unit;

/// The places of the rows of K or V outside pages, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Their memory.
    pub memory: Span<'a>,
    /// The offset of the first row.
    pub offset: usize,
    /// The distance from one layer to the next.
    pub layer: usize,
    /// The distance from one head to the next.
    pub head: usize,
    /// The distance from one token to the next.
    pub token: usize,
}

/// The places of the rows of K or V in a page, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The offset of the first row of the first head.
    pub offset: usize,
    /// The distance from one head to the next.
    pub head: usize,
    /// The length of a row; 0 if there are no rows.
    pub row: usize,
}

/// Rows and section, in the format of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct PassedPart {
    rows: u64,
    layer_bytes: u64,
    head_bytes: u64,
    token_bytes: u64,
    section: u64,
    section_head_bytes: u64,
    row_bytes: u32,
    row_units: Divisor,
}

/// K and V of a call.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a>(pub &'a [Section; 2], pub &'a [Rows<'a>; 2]);

impl Parts<'_> {
    /// The parts that have rows.
    pub fn present(&self) -> impl Iterator<Item = (&Section, &Rows<'_>)> {
        self.0.iter().zip(self.1).filter(|(section, _)| section.row > 0)
    }

    /// The numbers that a unit must divide.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.present().flat_map(|(section, rows)| {
            let first = rows.memory.address() + rows.offset as u64;
            let distances = [rows.layer, rows.head, rows.token, section.offset, section.head, section.row];
            std::iter::once(first).chain(distances.map(|bytes| bytes as u64))
        })
    }

    /// The number of units in the wider row.
    pub fn widest(&self, unit: Unit) -> usize {
        self.0.iter().map(|section| section.row).max().unwrap_or(0) / unit.bytes()
    }

    /// The parts in the format of the kernels.
    pub fn of(&self, unit: Unit) -> [PassedPart; 2] {
        [0, 1].map(|part| {
            let (section, rows) = (&self.0[part], &self.1[part]);
            PassedPart {
                rows: rows.memory.address() + rows.offset as u64,
                layer_bytes: rows.layer as u64,
                head_bytes: rows.head as u64,
                token_bytes: rows.token as u64,
                section: section.offset as u64,
                section_head_bytes: section.head as u64,
                row_bytes: section.row as u32,
                row_units: if section.row == 0 { Divisor::default() } else { Divisor::new(section.row / unit.bytes()) },
            }
        })
    }

    /// Panics if rows or slots reach outside their memory, for these last layers, tokens and slots.
    pub fn check(&self, heads: usize, page_bytes: usize, slots: usize, layer: usize, token: usize) {
        for (section, rows) in self.present().filter(|_| heads > 0) {
            assert!(slots * section.row <= section.head, "slots reach outside their head");
            assert!(section.offset + heads * section.head <= page_bytes, "heads reach outside their page");
            let last = rows.offset + layer * rows.layer + (heads - 1) * rows.head + token * rows.token;
            assert!(last + section.row <= rows.memory.bytes(), "rows reach outside their memory");
        }
    }
}
