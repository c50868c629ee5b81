//! What moves or is zeroed inside slabs: blocks that are copied on write, rows of an accepted path, slots that nobody wrote.

use std::collections::BTreeMap;
use std::ops::Range;

use kvtide_core::paged::RowMove;
use kvtide_cuda::{Hole, Stream, copy_chains, zero_pieces, zero_slots};

use super::staging::{Slabs, pages_of};
use crate::base::error::Result;
use crate::kernels::pages::heads;
use crate::kernels::quantise::LaunchedRows;
use crate::paged::PageGroup;
use crate::paged::Slab;
use crate::paged::walk::Holes;

/// Copies pieces of `bytes` bytes of a slab to other places in it, or in another one: `moves` neighbours of the list one after the
/// other.
pub(in crate::paged) fn copy_pieces(
    stream: &Stream,
    (from, to): (&Slab, &Slab),
    bytes: usize,
    moves: usize,
    pieces: &[(usize, usize)],
) -> Result<()> {
    if pieces.is_empty() {
        return Ok(());
    }
    if std::ptr::eq(from, to) {
        return to.launch(&[], |memory, _| Ok(copy_chains(stream, (memory, memory), bytes, moves, pieces)?));
    }
    to.launch(&[from.storage()], |memory, sources| {
        Ok(copy_chains(stream, (from.span(sources[0]), memory), bytes, moves, pieces)?)
    })
}

impl Slabs<'_> {
    /// Zeroes slots of pages of rows.
    pub fn zero_rows(&self, slab: &Slab, pages: &[Holes]) -> Result<()> {
        // As many launches as there are sizes of holes, which are mostly one or two.
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

    /// Zeroes slots of low-bit pages, to the bit.
    pub fn zero_codes(&self, pages: &[Holes]) -> Result<()> {
        let layout = &self.shape.pages;
        let hole = |page: &Holes, slots: &Range<u32>| Hole {
            page: layout.page_offset(page.block, page.layer) as u64,
            start: slots.start,
            end: slots.end,
        };
        let holes: Vec<Hole> =
            pages.iter().flat_map(|page| page.runs.iter().map(move |slots| hole(page, slots))).collect();
        self.slab.launch(&[], |memory, _| {
            let rows = [LaunchedRows { memory, head: 0, token: 0, dtype: self.shape.dtype }; 2];
            let of = pages_of(layout, self.shape.codecs.each_ref().map(Option::as_ref), memory, rows);
            Ok(zero_slots(&self.stream, &of, &holes)?)
        })
    }
}

/// From which slab rows go to which, by whether it is the staging one, and bytes of a row.
type Way = (bool, bool, usize);

/// Moves rows of all layers, one after the other: in one launch where all lie in one slab.
pub(in crate::paged) fn move_rows(stream: &Stream, cache: &PageGroup, moves: &[RowMove]) -> Result<()> {
    if let Some(ways) = chains(cache, moves) {
        return carry(stream, cache, moves.len(), &ways);
    }
    for moved in moves.chunks(1) {
        carry(stream, cache, 1, &chains(cache, moved).expect("one move goes one way"))?;
    }
    Ok(())
}

fn carry(stream: &Stream, cache: &PageGroup, moves: usize, ways: &BTreeMap<Way, Vec<(usize, usize)>>) -> Result<()> {
    let slab = |is_staged: bool| if is_staged { &*cache.staging } else { &*cache.slab };
    ways.iter()
        .try_for_each(|(&(from, to, bytes), pieces)| copy_pieces(stream, (slab(from), slab(to)), bytes, moves, pieces))
}

/// The moves of each row by the way they go, those of one row as neighbours; nothing when moves of a row go several ways.
fn chains(cache: &PageGroup, moves: &[RowMove]) -> Option<BTreeMap<Way, Vec<(usize, usize)>>> {
    let mut ways: BTreeMap<Way, Vec<(usize, usize)>> = BTreeMap::new();
    let staged = |block: u32, layer: u32| cache.planner.staged(block, layer);
    for layer in 0..cache.shape.pages.shape().num_layers {
        let way = |moved: &RowMove| [moved.source, moved.target].map(|slot| staged(slot.block, layer).is_some());
        let first = moves.first().map(way)?;
        if moves.len() > 1 && (first[0] != first[1] || moves.iter().any(|moved| way(moved) != first)) {
            return None;
        }
        for (part, head) in heads(&cache.shape.pages) {
            for moved in moves {
                let [from, to] = [moved.source, moved.target].map(|slot| match staged(slot.block, layer) {
                    Some(page) => cache.staging.layout.row_offset(page, 0, part, head, slot.index),
                    None => cache.slab.layout.row_offset(slot.block, layer, part, head, slot.index),
                });
                let layout = if first[1] { &cache.staging.layout } else { &cache.slab.layout };
                ways.entry((first[0], first[1], layout.section(part).row_bytes)).or_default().push((from, to));
            }
        }
    }
    Some(ways)
}
