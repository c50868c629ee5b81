//! Moves and zeroing inside slabs: copies of blocks on write, rows of an accepted path, unwritten slots.

use std::collections::BTreeMap;
use std::ops::Range;

use kvtide_core::paged::{KeyOrValue, PagedPlanner, RowMove};
use kvtide_cuda::{Hole, copy_chains, zero_pieces, zero_slots};

use super::slabs::{Launched, quantised_pages};
use crate::base::error::Result;
use crate::kernels::pages::heads;
use crate::kernels::quantise::LaunchedRows;
use crate::paged::slabs::{Holes, Slab};

/// Source and target slab of rows (true for the staging slab), and the bytes of a row.
type Way = (bool, bool, usize);

/// The source and target offsets of rows, by their way; consecutive moves of one row are neighbours.
type Chains = BTreeMap<Way, Vec<(usize, usize)>>;

impl Launched<'_> {
    /// Copies pieces of `bytes` bytes of a slab to other places in it, or in another slab; groups of `moves` neighbours in
    /// the list are copied one after the other.
    pub fn copy_pieces(
        &self,
        (from, to): (&Slab, &Slab),
        bytes: usize,
        moves: usize,
        pieces: &[(usize, usize)],
    ) -> Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        if std::ptr::eq(from, to) {
            return to.launch(&[], |memory, _| Ok(copy_chains(&self.stream, (memory, memory), bytes, moves, pieces)?));
        }
        to.launch(&[from.storage()], |memory, sources| {
            Ok(copy_chains(&self.stream, (from.span(sources[0]), memory), bytes, moves, pieces)?)
        })
    }

    /// Moves rows of all layers in order: in one launch if all are in one slab.
    pub fn move_rows(&self, planner: &PagedPlanner, moves: &[RowMove]) -> Result<()> {
        if let Some(chains) = self.chains(planner, moves) {
            return self.carry(moves.len(), &chains);
        }
        moves.chunks(1).try_for_each(|one| {
            let chains = self.chains(planner, one).expect("one move goes one way");
            self.carry(1, &chains)
        })
    }

    fn carry(&self, moves: usize, chains: &Chains) -> Result<()> {
        let slab = |is_staging: bool| if is_staging { &*self.slabs.staging } else { &*self.slabs.slab };
        chains
            .iter()
            .try_for_each(|(&(from, to, bytes), pieces)| self.copy_pieces((slab(from), slab(to)), bytes, moves, pieces))
    }

    /// The chains of some moves; `None` if the moves of a row go different ways.
    fn chains(&self, planner: &PagedPlanner, moves: &[RowMove]) -> Option<Chains> {
        let (mut chains, pages) = (Chains::new(), &self.slabs.shape.pages);
        for layer in 0..pages.shape().num_layers {
            let staged = |block: u32| planner.staged(block, layer);
            let way = |moved: &RowMove| [moved.source, moved.target].map(|slot| staged(slot.block).is_some());
            let first = moves.first().map(way)?;
            if moves.len() > 1 && (first[0] != first[1] || moves.iter().any(|moved| way(moved) != first)) {
                return None;
            }
            for (part, head) in heads(pages) {
                for moved in moves {
                    let [(from, _), (to, row)] = [moved.source, moved.target].map(|slot| {
                        let (slab, block, layer) = self.slabs.page(slot.block, layer, staged(slot.block));
                        let layout = &slab.layout;
                        (layout.row_offset(block, layer, part, head, slot.index), layout.section(part).row_bytes)
                    });
                    chains.entry((first[0], first[1], row)).or_default().push((from, to));
                }
            }
        }
        Some(chains)
    }

    /// Zeroes slots of unquantised pages.
    pub fn zero_rows(&self, slab: &Slab, pages: &[Holes]) -> Result<()> {
        // One launch per size of hole; there are mostly one or two sizes.
        let mut sizes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (page, slots) in pages.iter().flat_map(|page| page.runs.iter().map(move |slots| (page, slots))) {
            for (part, head) in heads(&slab.layout) {
                let start = slab.layout.row_offset(page.block, page.layer, part, head, slots.start);
                sizes.entry(slots.len() * slab.layout.section(part).row_bytes).or_default().push(start);
            }
        }
        slab.launch(&[], |memory, _| {
            Ok(sizes.iter().try_for_each(|(&bytes, starts)| zero_pieces(&self.stream, memory, bytes, starts))?)
        })
    }

    /// Zeroes slots of low-bit pages, exactly.
    pub fn zero_codes(&self, pages: &[Holes]) -> Result<()> {
        let shape = &self.slabs.shape;
        let hole = |page: &Holes, slots: &Range<u32>| Hole {
            page: shape.pages.page_offset(page.block, page.layer) as u64,
            start: slots.start,
            end: slots.end,
        };
        let holes: Vec<Hole> =
            pages.iter().flat_map(|page| page.runs.iter().map(move |slots| hole(page, slots))).collect();
        self.slabs.slab.launch(&[], |memory, _| {
            let rows =
                KeyOrValue::BOTH.map(|part| LaunchedRows { memory, head: 0, token: 0, dtype: shape.row_dtype(part) });
            let of = quantised_pages(&shape.pages, shape.codecs.each_ref().map(Option::as_ref), memory, rows);
            Ok(zero_slots(&self.stream, &of, &holes)?)
        })
    }
}
