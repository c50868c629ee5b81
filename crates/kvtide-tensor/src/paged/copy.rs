//! Copies of blocks that others hold as well, before they are written.
//!
//! A block is one piece of the slab, all its layers; what of it lies in floats is copied in the staging slab. O(bytes of the
//! blocks).

use std::ops::Range;

use kvtide_core::paged::{CopyPlan, PageLayout, Target};

use super::portable;
use super::slab::Slab;
use crate::error::Result;
use crate::paged_kv_cache::PagedKvCache;

impl PagedKvCache {
    /// Copies the blocks that these writes would change and others see. Refused, before anything changes, where there are not
    /// enough blocks for the copies and the writes.
    pub(super) fn copy_shared(&mut self, targets: &[Target]) -> Result<()> {
        let plan = self.planner.plan_copies(targets)?;
        if plan.copies().is_empty() {
            return Ok(());
        }
        self.reserve_staging(plan.staging_pages())?;
        self.copy_blocks(&plan)?;
        self.copied_bytes += plan.copies().len() as u64 * self.shape.pages.block_bytes() as u64;
        Ok(self.planner.commit_copies(&plan)?)
    }

    /// The targets are in nobody's hands yet: what fails half-way is seen by nobody.
    fn copy_blocks(&self, plan: &CopyPlan) -> Result<()> {
        let of_block = |layout: &PageLayout, block: u32| {
            let start = layout.page_offset(block, 0);
            start..start + layout.block_bytes()
        };
        let slab = plan.copies().iter().map(|copy| (copy.source, copy.target));
        let staged = plan.copies().iter().flat_map(|copy| copy.staged.iter().map(|&(_, from, to)| (from, to)));
        for (memory, copies) in [(&self.slab, slab.collect::<Vec<_>>()), (&self.staging, staged.collect())] {
            let places =
                copies.iter().map(|&(from, to)| (of_block(&memory.layout, from), of_block(&memory.layout, to)));
            copy_within(memory, &places.collect::<Vec<_>>())?;
        }
        Ok(())
    }
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
