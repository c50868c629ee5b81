//! Where the rows of K or V lie: outside pages at three strides, in a page head by head.

use bytemuck::{Pod, Zeroable};

use crate::divisor::Divisor;
use crate::span::Span;
use crate::unit::Unit;

/// Where the rows of K or V lie outside pages, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Their memory.
    pub memory: Span<'a>,
    /// The first row.
    pub offset: usize,
    /// From a layer to the next.
    pub layer: usize,
    /// From a head to the next.
    pub head: usize,
    /// From a token to the next.
    pub token: usize,
}

/// Where they lie in a page, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The first row of the first head.
    pub offset: usize,
    /// From a head to the next.
    pub head: usize,
    /// Of a row; 0 where there is none.
    pub row: usize,
}

/// Both, as kernels read it.
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
    /// Those that there are.
    pub fn present(&self) -> impl Iterator<Item = (&Section, &Rows<'_>)> {
        self.0.iter().zip(self.1).filter(|(section, _)| section.row > 0)
    }

    /// The numbers that a unit has to divide.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.present().flat_map(|(section, rows)| {
            let first = rows.memory.address() + rows.offset as u64;
            let distances = [rows.layer, rows.head, rows.token, section.offset, section.head, section.row];
            std::iter::once(first).chain(distances.map(|bytes| bytes as u64))
        })
    }

    /// Units of the wider row.
    pub fn widest(&self, unit: Unit) -> usize {
        self.0.iter().map(|section| section.row).max().unwrap_or(0) / unit.bytes()
    }

    /// As kernels read them.
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

    /// Refuses rows and slots that reach outside their memory, where the last layer, token and slot are these.
    pub fn check(&self, heads: usize, page_bytes: usize, slots: usize, layer: usize, token: usize) {
        for (section, rows) in self.present().filter(|_| heads > 0) {
            assert!(slots * section.row <= section.head, "slots reach outside their head");
            assert!(section.offset + heads * section.head <= page_bytes, "heads reach outside their page");
            let last = rows.offset + layer * rows.layer + (heads - 1) * rows.head + token * rows.token;
            assert!(last + section.row <= rows.memory.bytes(), "rows reach outside their memory");
        }
    }
}
