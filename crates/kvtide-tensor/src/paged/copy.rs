//! Copies of blocks that others hold as well, before they are written, and of rows that go to another slot.
//!
//! A block is one piece of the slab, all its layers; what of it lies in floats is copied in the staging slab. O(bytes of the
//! blocks and rows).

use std::ops::Range;

use kvtide_core::paged::{CopyPlan, HeadPlace, KeyOrValue, PageLayout, RowMove};

use super::launched;
use super::portable;
use super::slab::Slab;
use crate::base::error::Result;
use crate::kernels::pages::heads;
use crate::paged::PageGroup;

impl PageGroup {
    /// The targets are in nobody's hands yet: what fails half-way is seen by nobody.
    pub(super) fn copy_blocks(&mut self, plan: &CopyPlan) -> Result<()> {
        if plan.copies().is_empty() {
            return Ok(());
        }
        let of_block = |layout: &PageLayout, block: u32| {
            let start = layout.page_offset(block, 0);
            start..start + layout.block_bytes()
        };
        let slab = plan.copies().iter().map(|copy| (copy.source, copy.target));
        let staged = plan.copies().iter().flat_map(|copy| copy.staged.iter().map(|&(_, from, to)| (from, to)));
        for (memory, copies) in [(&self.slab, slab.collect::<Vec<_>>()), (&self.staging, staged.collect())] {
            if let Some(stream) = memory.stream()? {
                let start = |block: u32| memory.layout.page_offset(block, 0);
                let pieces: Vec<_> = copies.iter().map(|&(from, to)| (start(from), start(to))).collect();
                launched::copy_pieces(&stream, (memory, memory), memory.layout.block_bytes(), 1, &pieces)?;
                continue;
            }
            let places =
                copies.iter().map(|&(from, to)| (of_block(&memory.layout, from), of_block(&memory.layout, to)));
            copy_within(memory, &places.collect::<Vec<_>>())?;
        }
        self.copied_bytes += plan.copies().len() as u64 * self.shape.pages.block_bytes() as u64;
        Ok(())
    }

    /// Moves rows of all layers, one after the other.
    pub(super) fn move_rows(&self, moves: &[RowMove]) -> Result<()> {
        if let Some(stream) = self.slab.stream()? {
            return launched::move_rows(&stream, self, moves);
        }
        for moved in moves {
            for layer in 0..self.shape.pages.shape().num_layers {
                let [source, target] = [moved.source, moved.target].map(|slot| {
                    let staged = self.planner.staged(slot.block, layer);
                    let (memory, block, layer) = match staged {
                        Some(page) => (&self.staging, page, 0),
                        None => (&self.slab, slot.block, layer),
                    };
                    (memory, rows_of(&memory.layout, block, layer, slot.index))
                });
                move_bytes((source.0, source.1), (target.0, target.1))?;
            }
        }
        Ok(())
    }
}

/// The rows of a slot: each head of K, then of V.
fn rows_of(layout: &PageLayout, block: u32, layer: u32, slot: u32) -> Vec<Range<usize>> {
    let row = |(part, head): (KeyOrValue, u32)| {
        let HeadPlace { codes, row_bytes, .. } = layout.head_place(block, layer, part, head);
        let start = codes + slot as usize * row_bytes;
        start..start + row_bytes
    };
    heads(layout).map(row).collect()
}

/// Copies rows from one place to another, in the same slab or between two.
fn move_bytes((from, rows): (&Slab, Vec<Range<usize>>), (to, places): (&Slab, Vec<Range<usize>>)) -> Result<()> {
    let pairs: Vec<_> = rows.into_iter().zip(places).collect();
    if std::ptr::eq(from, to) {
        return copy_within(to, &pairs);
    }
    to.edit(&[from.storage()], |target, sources| {
        let source = from.pages(sources[0]);
        for (row, place) in &pairs {
            target[place.clone()].copy_from_slice(&source[row.clone()]);
        }
    })
}

/// Copies pieces of a slab to other places in it.
fn copy_within(slab: &Slab, pieces: &[(Range<usize>, Range<usize>)]) -> Result<()> {
    if pieces.is_empty() {
        return Ok(());
    }
    if portable::is_chosen(slab)? {
        return pieces.iter().try_for_each(|(from, to)| portable::copy(slab, from, to));
    }
    slab.edit(&[], |bytes, _| pieces.iter().for_each(|(from, to)| bytes.copy_within(from.clone(), to.start)))
}
