//! Pages in place, for attention: where each page of a sequence lies, with zeros where nobody wrote.
//!
//! ```text
//! cache.settle(sequence, layer)?              zeroes what a read in place would expose
//! cache.walk(sequence, layer)?                page 0: block 7    page 1: block 2    page 2: staging page 0
//! ```
//!
//! Settling costs O(pages), and O(bytes) for each page that is zeroed, once; so does a walk.

use std::ops::Range;

use kvtide_core::paged::{HeadPlace, KeyOrValue, NO_BLOCK, PageLayout, PageRead};

use crate::base::error::Result;
use crate::paged::PageGroup;
use crate::paged::{Slab, portable};

impl PageGroup {
    /// Zeroes what a read in place of a layer of a sequence would show of another sequence.
    pub(crate) fn settle(&mut self, sequence: u64, layer: u32) -> Result<()> {
        self.check()?;
        let pages = self.planner.pages(sequence, layer)?;
        let exposed: Vec<PageRead> = pages.filter(|page| self.exposes(page, layer)).collect();
        self.zero(&exposed, layer)
    }

    /// The pages of a layer of a sequence, in order. What nobody wrote is zeros in them once it was [settled](Self::settle).
    pub(crate) fn walk(&self, sequence: u64, layer: u32) -> Result<impl Iterator<Item = PageRead> + '_> {
        self.check()?;
        Ok(self.planner.pages(sequence, layer)?)
    }

    /// As [`PageGroup::settle`], for the first `length` tokens of a row of a block table. `row` is named when it is refused: a
    /// block outside the slab, or more tokens than the blocks have slots.
    pub(crate) fn settle_table(&mut self, row: usize, layer: u32, blocks: &[i32], length: u32) -> Result<()> {
        let exposed: Vec<PageRead> =
            self.walk_table(row, layer, blocks, length)?.filter(|page| self.exposes(page, layer)).collect();
        self.zero(&exposed, layer)
    }

    /// As [`PageGroup::walk`], for the first `length` tokens of a row of a block table.
    pub(crate) fn walk_table<'a>(
        &'a self,
        row: usize,
        layer: u32,
        blocks: &'a [i32],
        length: u32,
    ) -> Result<impl Iterator<Item = PageRead> + 'a> {
        let gap = self.table_gap(row, layer, blocks, length)?;
        let held = blocks.iter().filter(|&&block| block != NO_BLOCK).map(|&block| block as u32);
        Ok(self.planner.pages_of(held, length - gap.len() as u32, layer))
    }

    /// The positions that left the window by a row of a block table.
    pub(crate) fn table_gap(&self, row: usize, layer: u32, blocks: &[i32], length: u32) -> Result<Range<u32>> {
        self.check()?;
        Ok(self.planner.check_table(row, layer, blocks, length)?)
    }

    fn exposes(&self, page: &PageRead, layer: u32) -> bool {
        self.planner.exposes(page.block, layer, page.tokens)
    }

    /// Zeroes the slots of these pages that nobody wrote.
    fn zero(&mut self, pages: &[PageRead], layer: u32) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        // Whoever reads in the background would be waited for.
        self.life.check_idle()?;
        let (staged, plain): (Vec<PageRead>, Vec<_>) = pages.iter().partition(|page| page.staged.is_some());
        let places = |page: &PageRead| page.staged.map_or((page.block, layer), |staged| (staged, 0));
        for (slab, pages) in [(&self.staging, staged), (&self.slab, plain)] {
            let holes = pages.iter().map(|page| {
                let (block, layer_of_slab) = places(page);
                let runs = self.planner.unwritten(page.block, layer, self.block_size()).collect();
                Holes { block, layer: layer_of_slab, runs }
            });
            self.zero_slots(slab, &holes.collect::<Vec<_>>())?;
        }
        pages.iter().for_each(|page| self.planner.cleaned(page.block, layer));
        Ok(())
    }

    /// Zeroes slots of pages of a slab.
    fn zero_slots(&self, slab: &Slab, pages: &[Holes]) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        if portable::is_chosen(slab)? {
            let all = pages.iter().flat_map(|page| page.runs.iter().map(move |run| (page, run.clone())));
            return all.into_iter().try_for_each(|(page, run)| portable::zero(slab, page.block, page.layer, run));
        }
        if let Some(slabs) = self.both_slabs().launched()? {
            return if slab.layout.is_low_bit() { slabs.zero_codes(pages) } else { slabs.zero_rows(slab, pages) };
        }
        slab.edit(&[], |bytes, _| {
            for Holes { block, layer, runs } in pages {
                if slab.layout.is_low_bit() {
                    let start = slab.layout.page_offset(*block, *layer);
                    self.shape.zero(&mut bytes[start..start + slab.layout.page_bytes()], runs);
                } else {
                    runs.iter().for_each(|run| zero_rows(bytes, &slab.layout, *block, *layer, run.clone()));
                }
            }
        })
    }
}

/// The slots of a page that nobody wrote.
pub(super) struct Holes {
    pub block: u32,
    pub layer: u32,
    pub runs: Vec<Range<u32>>,
}

/// Zeroes neighbouring slots of a page, in each head of K and V.
fn zero_rows(slab: &mut [u8], layout: &PageLayout, block: u32, layer: u32, slots: Range<u32>) {
    for (part, head) in
        KeyOrValue::BOTH.into_iter().flat_map(|part| (0..layout.shape().num_kv_heads).map(move |head| (part, head)))
    {
        let HeadPlace { codes, row_bytes, .. } = layout.head_place(block, layer, part, head);
        slab[codes + slots.start as usize * row_bytes..codes + slots.end as usize * row_bytes].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use kvtide_core::Code;
    use kvtide_core::paged::PageFormat;

    use super::*;
    use crate::base::dtype::DType;
    use crate::paged::PagedKvCacheOptions;
    use crate::tensor::source::HostTensor;

    const FORMATS: [Option<PageFormat>; 4] =
        [None, Some(PageFormat::F8E4M3), Some(PageFormat::Q8), Some(PageFormat::Q4)];

    /// 4 blocks of 4 tokens, 2 layers, 2 heads of 6 elements.
    fn cache(format: Option<PageFormat>) -> PageGroup {
        PageGroup::new(PagedKvCacheOptions {
            capacity: 4,
            block_size: 4,
            num_layers: 2,
            num_kv_heads: 2,
            head_dim: 6,
            key_format: format,
            value_format: format,
            hadamard: format == Some(PageFormat::Q8),
            ..Default::default()
        })
        .unwrap()
    }

    fn write(cache: &mut PageGroup, sequence: u64, layer: u32, position: u32, tokens: usize) {
        let values: Vec<u8> = (0..tokens * 12).flat_map(|i| (i as f32 * 0.37 + 1.).to_ne_bytes()).collect();
        let rows = || HostTensor::new("k", &values, DType::F32, &[2, tokens, 6]).unwrap();
        cache.write_tokens(sequence, layer, position, [rows().into(), rows().into()]).unwrap();
    }

    #[test]
    fn nothing_of_another_sequence_is_met_in_place() {
        for format in FORMATS {
            let mut cache = cache(format);
            let first = cache.create_sequence_of(Default::default()).unwrap();
            (0..2).for_each(|layer| write(&mut cache, first, layer, 0, 14));
            cache.drop_sequence(first).unwrap();
            let second = cache.create_sequence_of(Default::default()).unwrap();
            // A page with a hole, one that nobody wrote, and the beginning of one.
            write(&mut cache, second, 0, 1, 2);
            write(&mut cache, second, 0, 9, 1);
            for layer in [0, 1] {
                let gathered = cache.gather(second, layer).unwrap();
                let pages = cache.pages(layer, &[second]).unwrap();
                for (part, view) in KeyOrValue::BOTH.into_iter().zip([&gathered.k, &gathered.v]) {
                    let floats = pages.floats(0, part, 0, pages.tokens(0)).unwrap();
                    let floats: Vec<f32> = floats.flatten_all().unwrap().to_vec1().unwrap();
                    assert_eq!(floats, view.to_f32().unwrap(), "{format:?}");
                    assert!(layer == 0 || floats.iter().all(|&v| v == 0.));
                }
            }
        }
    }

    #[test]
    fn what_was_cut_off_a_quantised_page_is_zero_in_place_and_the_rest_of_it_as_it_was() {
        for format in FORMATS {
            let mut cache = cache(format);
            let sequence = cache.create_sequence_of(Default::default()).unwrap();
            (0..2).for_each(|layer| write(&mut cache, sequence, layer, 0, 8));
            cache.truncate(sequence, 6).unwrap();
            let before = cache.gather(sequence, 0).unwrap();
            // The sequence grows past it in one layer, and leaves two slots that nobody wrote.
            write(&mut cache, sequence, 0, 8, 2);
            assert_eq!(cache.staged_count(), u32::from(format.is_some()));
            let pages = cache.pages(0, &[sequence]).unwrap();
            for (part, view) in KeyOrValue::BOTH.into_iter().zip([&before.k, &before.v]) {
                let floats: Vec<f32> = pages.floats(0, part, 0, 10).unwrap().flatten_all().unwrap().to_vec1().unwrap();
                let before = view.to_f32().unwrap();
                for head in 0..2 {
                    let rows = &floats[head * 60..][..60];
                    assert!(rows[36..48].iter().all(|&value| value == 0.), "{format:?} {part:?}: {rows:?}");
                    // K in q4 has its scales for all rows of the page, and gets one that has a zero.
                    let moved =
                        if format == Some(PageFormat::Q4) && part == KeyOrValue::Key { 0.5 * 37. / 15. } else { 0. };
                    let off = rows[..36].iter().zip(&before[head * 36..]).map(|(a, b)| (a - b).abs());
                    assert!(off.clone().all(|off| off <= moved), "{format:?} {part:?}: {:?}", off.collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn a_block_table_shows_what_a_sequence_shows() {
        for format in FORMATS {
            let mut cache = cache(format);
            let sequence = cache.create_sequence_of(Default::default()).unwrap();
            write(&mut cache, sequence, 1, 0, 10);
            let walked: Vec<_> = cache.walk(sequence, 1).unwrap().collect();
            let table: Vec<i32> = walked.iter().map(|page| page.block as i32).collect();
            cache.settle_table(0, 1, &table, 10).unwrap();
            assert_eq!(cache.walk_table(0, 1, &table, 10).unwrap().collect::<Vec<_>>(), walked);
            assert_eq!(
                walked.iter().map(|page| page.staged.is_some()).collect::<Vec<_>>(),
                [false, false, format.is_some()]
            );
            assert_eq!(cache.walk_table(0, 1, &table, 5).unwrap().map(|page| page.tokens).collect::<Vec<_>>(), [4, 1]);
            assert_eq!(
                cache.walk_table(0, 1, &[-1, 99], 0).unwrap().count(),
                0,
                "a block without tokens is not looked at"
            );
        }
    }

    #[test]
    fn a_table_that_points_outside_is_refused() {
        let mut cache = cache(None);
        let code = |cache: &PageGroup, layer, blocks: &[i32], length| {
            cache.walk_table(3, layer, blocks, length).map(|_| ()).map_err(|error| error.code())
        };
        for blocks in [[0, 4], [0, -1], [i32::MIN, 1], [i32::MAX, 1]] {
            assert_eq!(code(&cache, 0, &blocks, 8), Err(Code::InvalidBlock));
            assert_eq!(cache.settle_table(0, 0, &blocks, 8).unwrap_err().code(), Code::InvalidBlock);
        }
        assert_eq!(code(&cache, 0, &[0, 1], 9), Err(Code::PositionOutOfRange));
        assert_eq!(code(&cache, 0, &[], 1), Err(Code::PositionOutOfRange));
        assert_eq!(code(&cache, 2, &[0], 1), Err(Code::InvalidArgument));
        assert_eq!(code(&cache, 0, &[3, 0], 8), Ok(()));
    }
}
