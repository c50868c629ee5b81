//! The naive paged cache: every value of every token, and which pages were full.

use std::collections::BTreeMap;

use kvtide_core::Code;
use kvtide_core::paged::PageFormat;
use kvtide_tensor::DType;
use kvtide_tensor::runtime::Kernels;

use super::steps::{Rows, check, rotated};
use super::values::exact;

#[derive(Clone, Debug)]
pub struct Setup {
    pub capacity: u32,
    pub block_size: u32,
    pub layers: u32,
    pub heads: u32,
    pub dims: [u32; 2],
    pub dtype: DType,
    pub formats: [Option<PageFormat>; 2],
    pub rotated: [bool; 2],
    pub kernels: Kernels,
}

impl Setup {
    pub fn is_low_bit(&self, part: usize) -> bool {
        self.formats[part].is_some_and(PageFormat::is_low_bit) && self.dims[part] > 0
    }

    pub fn elements(&self, part: usize) -> usize {
        (self.heads * self.dims[part]) as usize
    }

    /// True when pages are quantised when they are full.
    pub fn seals(&self) -> bool {
        self.formats.iter().flatten().any(|format| format.is_low_bit())
    }
}

/// K and V of one token, head by head.
pub type Token = [Vec<f32>; 2];

/// One layer of one block of a sequence.
#[derive(Clone, Debug)]
pub struct Page {
    pub tokens: Vec<Option<Token>>,
    /// Quantised, and checked against what went in.
    pub sealed: bool,
    /// Full since the last check.
    pub fresh: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Sequence {
    pub blocks: u32,
    pub length: u32,
    pub pages: BTreeMap<(u32, u32), Page>,
}

pub struct Model {
    pub setup: Setup,
    pub sequences: BTreeMap<u64, Sequence>,
    pub created: u64,
}

impl Model {
    pub fn free(&self) -> u32 {
        self.setup.capacity - self.sequences.values().map(|sequence| sequence.blocks).sum::<u32>()
    }

    /// Blocks missing for sequences to have these lengths, or why they cannot be had.
    pub fn missing(&self, wanted: &[(u64, u32)]) -> Result<u32, Code> {
        let mut missing = 0;
        for (id, length) in wanted {
            let sequence = self.sequences.get(id).ok_or(Code::SequenceNotFound)?;
            missing += length.div_ceil(self.setup.block_size).saturating_sub(sequence.blocks);
        }
        if missing > self.free() { Err(Code::OutOfBlocks) } else { Ok(missing) }
    }

    /// Writes neighbouring tokens of one layer, one call.
    pub fn write(&mut self, id: u64, layer: u32, position: u32, tokens: &[Token]) {
        if tokens.is_empty() {
            return;
        }
        let Setup { block_size, dtype, .. } = self.setup;
        let sequence = self.sequences.get_mut(&id).unwrap();
        let end = position + tokens.len() as u32;
        sequence.blocks = sequence.blocks.max(end.div_ceil(block_size));
        sequence.length = sequence.length.max(end);
        for (token, position) in tokens.iter().zip(position..) {
            let empty = || Page { tokens: vec![None; block_size as usize], sealed: false, fresh: false };
            let page = sequence.pages.entry((layer, position / block_size)).or_insert_with(empty);
            if page.sealed {
                // Back to floats of the dtype.
                for value in page.tokens.iter_mut().flatten().flatten().flatten() {
                    *value = exact(dtype, *value);
                }
                page.sealed = false;
            }
            page.tokens[(position % block_size) as usize] = Some(token.clone());
            page.fresh = self.setup.seals() && page.tokens.iter().all(Option::is_some);
        }
    }

    /// Compares a page that has just been quantised with what it came from, and takes what is there for its content.
    pub fn seal(setup: &Setup, page: &mut Page, found: Vec<Token>) -> Result<(), String> {
        for part in (0..2).filter(|&part| setup.is_low_bit(part)) {
            let dim = setup.dims[part] as usize;
            for head in 0..setup.heads as usize {
                let row = |token: &Token| -> Vec<f64> {
                    let row: Vec<f64> =
                        token[part][head * dim..(head + 1) * dim].iter().map(|&value| value.into()).collect();
                    if setup.rotated[part] { rotated(&row) } else { row }
                };
                let before: Vec<_> = page.tokens.iter().flatten().map(row).collect();
                let after: Vec<_> = found.iter().map(row).collect();
                let grain = if setup.rotated[part] { 1e-5 } else { 1e-6 };
                let rows = Rows { before: &before, after: &after };
                check(setup.formats[part].unwrap(), part == 0, grain, &rows)?;
            }
        }
        for (token, found) in page.tokens.iter_mut().flatten().zip(found) {
            for part in (0..2).filter(|&part| setup.is_low_bit(part)) {
                token[part].clone_from(&found[part]);
            }
        }
        (page.sealed, page.fresh) = (true, false);
        Ok(())
    }
}
