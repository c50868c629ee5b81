//! Copies of shared blocks before they are written (copy on write), of rows that move to another slot, and of a growing
//! staging slab.
//!
//! A block is one contiguous piece of the slab, with all its layers; pages of it that are still floats are copied in the
//! staging slab. O(bytes of the blocks and rows).

use std::ops::Range;
use std::sync::Arc;

use kvtide_core::paged::{CopyPlan, PageLayout, PagedPlanner, RowMove};

use super::launched::Launched;
use super::portable;
use super::slabs::{Slab, Slabs};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::device::form::Form;
use crate::kernels::pages::heads;

impl Slabs {
    /// Copies blocks. The targets are not visible yet, so a copy that fails half-way has no effect on readers.
    pub(super) fn copy_blocks(&self, plan: &CopyPlan) -> Result<()> {
        let slab = plan.copies().iter().map(|copy| (copy.source, copy.target));
        let staged = plan.copies().iter().flat_map(|copy| copy.staged.iter().map(|&(_, from, to)| (from, to)));
        for (slab, copies) in [(&self.slab, slab.collect::<Vec<_>>()), (&self.staging, staged.collect())] {
            let start = |block: u32| slab.layout.page_offset(block, 0);
            let starts: Vec<_> = copies.iter().map(|&(from, to)| (start(from), start(to))).collect();
            let bytes = slab.layout.block_bytes();
            match slab.form()? {
                Form::Launched(stream) => {
                    Launched { stream, slabs: self }.copy_pieces((slab, slab), bytes, 1, &starts)?;
                }
                _ => copy_within(slab, starts.into_iter().map(|(from, to)| (from..from + bytes, to)))?,
            }
        }
        Ok(())
    }

    /// Grows the staging slab to this many pages, or to twice its size if that fits. Returns the number of bytes copied.
    pub(super) fn grow_staging(&mut self, pages: u32, budget: &Arc<Budget>) -> Result<u64> {
        let old = &self.staging;
        let wanted = old.blocks.saturating_mul(2).max(pages);
        let grown =
            Slab::new(self.shape.staged, wanted, budget).or_else(|_| Slab::new(self.shape.staged, pages, budget))?;
        let kept = old.bytes() as usize;
        if kept > 0 {
            match old.form()? {
                Form::Launched(stream) => {
                    Launched { stream, slabs: self }.copy_pieces((old, &grown), kept, 1, &[(0, 0)])?;
                }
                Form::Portable => portable::copy(old, 0..kept, &grown, 0)?,
                Form::Bytes(_) => grown.edit(&[old.storage()], |new, sources| {
                    new[..kept].copy_from_slice(old.pages(sources[0]));
                })?,
            }
        }
        self.staging = Arc::new(grown);
        Ok(kept as u64)
    }

    /// Moves rows of all layers, in order.
    pub(super) fn move_rows(&self, planner: &PagedPlanner, moves: &[RowMove]) -> Result<()> {
        if let Form::Launched(stream) = self.slab.form()? {
            return Launched { stream, slabs: self }.move_rows(planner, moves);
        }
        for moved in moves {
            for layer in 0..self.shape.pages.shape().num_layers {
                let [(from, rows), (to, places)] = [moved.source, moved.target].map(|at| {
                    let (slab, block, layer) = self.page(at.block, layer, planner.staged(at.block, layer));
                    (slab, rows_of(&slab.layout, block, layer, at.index))
                });
                let rows: Vec<_> = rows.into_iter().zip(places).collect();
                move_rows(from, to, &rows)?;
            }
        }
        Ok(())
    }
}

/// The rows of a slot: each head of K, then of V.
fn rows_of(layout: &PageLayout, block: u32, layer: u32, slot: u32) -> Vec<Range<usize>> {
    let rows = heads(layout).map(|(part, head)| {
        let start = layout.row_offset(block, layer, part, head, slot);
        start..start + layout.section(part).row_bytes
    });
    rows.collect()
}

/// Copies rows from one place to another, in the same slab or between two.
fn move_rows(from: &Slab, to: &Slab, rows: &[(Range<usize>, Range<usize>)]) -> Result<()> {
    if std::ptr::eq(from, to) {
        return copy_within(to, rows.iter().map(|(row, place)| (row.clone(), place.start)));
    }
    if matches!(to.form()?, Form::Portable) {
        return rows.iter().try_for_each(|(row, place)| portable::copy(from, row.clone(), to, place.start));
    }
    to.edit(&[from.storage()], |target, sources| {
        let source = from.pages(sources[0]);
        for (row, place) in rows {
            target[place.clone()].copy_from_slice(&source[row.clone()]);
        }
    })
}

/// Copies bytes of a slab to other places in it.
fn copy_within(slab: &Slab, copies: impl Iterator<Item = (Range<usize>, usize)>) -> Result<()> {
    let copies: Vec<_> = copies.collect();
    if copies.is_empty() {
        return Ok(());
    }
    if matches!(slab.form()?, Form::Portable) {
        return copies.into_iter().try_for_each(|(from, to)| portable::copy(slab, from, slab, to));
    }
    slab.edit(&[], |bytes, _| copies.iter().for_each(|(from, to)| bytes.copy_within(from.clone(), *to)))
}
