//! Pages in place, for attention: where each page of a sequence lies, with zeros where nobody wrote.
//!
//! ```text
//! cache.settle(sequence, layer)?              zeroes what a read in place would expose
//! cache.walk(sequence, layer)?                page 0: block 7    page 1: block 2    page 2: staging page 0
//! cache.in_place(|slab, staging| ...)?        the bytes that the places are in
//! ```
//!
//! A place is a block of the slab, laid out as [`PagedKvCache::layout`] says, or a staging page, laid out as
//! [`PagedKvCache::staged_layout`]. Settling costs O(pages), and O(bytes) for each page that is zeroed, once; so does a walk.

use candle_core::Tensor;
use kvtide_core::paged::{HeadPlace, PageLayout, PageRead, Part};

use crate::error::Result;
use crate::kernels::quantise::Codec;
use crate::paged_kv_cache::PagedKvCache;

/// Where the rows of one head of K or V of a page lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadRows {
    /// In the slab: codes, or rows of the cache's dtype where that part is not low-bit.
    Slab(HeadPlace),
    /// In the staging slab: rows of the cache's dtype. K of them is not rotated.
    Staged(HeadPlace),
}

impl PagedKvCache {
    /// Where the rows of a staging page lie: one block is one page, with one layer.
    pub(crate) fn staged_layout(&self) -> PageLayout {
        self.shape.staged
    }

    /// The slab, and the staging slab, as tensors of the shape that their layouts give.
    pub(crate) fn tensors(&self) -> [&Tensor; 2] {
        [&self.slab.tensor, &self.staging.tensor]
    }

    /// Runs `work` on the bytes of the slab and of the staging slab, in which the offsets of a [`HeadPlace`] count.
    pub(crate) fn in_place<T>(&self, work: impl FnOnce(&[u8], &[u8]) -> Result<T>) -> Result<T> {
        self.check()?;
        self.slab.inspect(|slab| self.staging.inspect(|staging| work(slab, staging)))
    }

    /// How K or V is quantised in the slab; nothing when its rows are kept as they are.
    pub(crate) fn codec(&self, part: Part) -> Option<&Codec> {
        self.shape.codecs[part as usize].as_ref()
    }

    /// True when K of the slab (not of staging) is rotated: a query is rotated as well before it meets it.
    pub(crate) fn is_rotated(&self) -> bool {
        self.shape.hadamard
    }

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

    /// As [`PagedKvCache::settle`], for the first `length` tokens of a row of a block table. `row` is named when it is refused: a
    /// block outside the slab, or more tokens than the blocks have slots.
    pub(crate) fn settle_table(&mut self, row: usize, layer: u32, blocks: &[i32], length: u32) -> Result<()> {
        let exposed: Vec<PageRead> =
            self.walk_table(row, layer, blocks, length)?.filter(|page| self.exposes(page, layer)).collect();
        self.zero(&exposed, layer)
    }

    /// As [`PagedKvCache::walk`], for the first `length` tokens of a row of a block table.
    pub(crate) fn walk_table<'a>(
        &'a self,
        row: usize,
        layer: u32,
        blocks: &'a [i32],
        length: u32,
    ) -> Result<impl Iterator<Item = PageRead> + 'a> {
        self.check()?;
        self.planner.check_table(row, layer, blocks, length)?;
        Ok(self.planner.pages_of(blocks.iter().map(|&block| block as u32), length, layer))
    }

    /// Where the rows of a head of a page lie.
    pub(crate) fn head_rows(&self, page: &PageRead, layer: u32, part: Part, head: u32) -> HeadRows {
        match page.staged {
            Some(staged) => HeadRows::Staged(self.shape.staged.head_place(staged, 0, part, head)),
            None => HeadRows::Slab(self.shape.pages.head_place(page.block, layer, part, head)),
        }
    }

    fn exposes(&self, page: &PageRead, layer: u32) -> bool {
        self.planner.exposes(page.block, layer, page.tokens)
    }

    /// Zeroes the slots of these pages that nobody wrote.
    fn zero(&mut self, pages: &[PageRead], layer: u32) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let (layout, block_size) = (self.shape.pages, self.block_size());
        self.slab.edit(&[], |slab, _| {
            for page in pages {
                let start = layout.page_offset(page.block, layer);
                // A low-bit page that is not staged is written as a whole or not at all.
                if layout.is_low_bit() {
                    slab[start..start + layout.page_bytes()].fill(0);
                    continue;
                }
                for run in self.planner.unwritten(page.block, layer, block_size) {
                    zero_rows(slab, &layout, page.block, layer, run);
                }
            }
        })?;
        pages.iter().for_each(|page| self.planner.cleaned(page.block, layer));
        Ok(())
    }
}

/// Zeroes neighbouring slots of a page, in each head of K and V.
fn zero_rows(slab: &mut [u8], layout: &PageLayout, block: u32, layer: u32, slots: std::ops::Range<u32>) {
    for (part, head) in
        Part::BOTH.into_iter().flat_map(|part| (0..layout.shape().num_kv_heads).map(move |head| (part, head)))
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
    use crate::dtype::DType;
    use crate::kernels::quantise::{hadamard, to_f32};
    use crate::options::PagedKvCacheOptions;
    use crate::source::HostTensor;

    const FORMATS: [Option<PageFormat>; 4] =
        [None, Some(PageFormat::F8E4M3), Some(PageFormat::Q8), Some(PageFormat::Q4)];

    /// 4 blocks of 4 tokens, 2 layers, 2 heads of 6 elements.
    fn cache(format: Option<PageFormat>) -> PagedKvCache {
        PagedKvCache::new(PagedKvCacheOptions {
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

    fn write(cache: &mut PagedKvCache, sequence: u64, layer: u32, position: u32, tokens: usize) {
        let values: Vec<u8> = (0..tokens * 12).flat_map(|i| (i as f32 * 0.37 + 1.).to_ne_bytes()).collect();
        let rows = || HostTensor::new("k", &values, DType::F32, &[2, tokens, 6]).unwrap();
        cache.write_tokens(sequence, layer, position, rows(), rows()).unwrap();
    }

    /// Tokens of a part as they lie in place, `[heads, tokens, dim]`.
    fn in_place(cache: &PagedKvCache, pages: &[PageRead], layer: u32, part: Part) -> Vec<f32> {
        let mut values = Vec::new();
        for (head, page) in (0..2).flat_map(|head| pages.iter().map(move |page| (head, page))) {
            let mut rows = vec![0f32; page.tokens as usize * 6];
            cache
                .in_place(|slab, staging| {
                    match (cache.head_rows(page, layer, part, head), cache.codec(part)) {
                        (HeadRows::Slab(at), Some(codec)) => {
                            let scales = at.scales.map_or(&[][..], |scales| &slab[scales..]);
                            codec.decode(&slab[at.codes..][..4 * at.row_bytes], scales, 0, &mut rows);
                        }
                        (HeadRows::Slab(at), None) => {
                            to_f32(DType::F32, &slab[at.codes..][..rows.len() * 4], &mut rows)
                        }
                        (HeadRows::Staged(at), _) => {
                            to_f32(DType::F32, &staging[at.codes..][..rows.len() * 4], &mut rows);
                        }
                    }
                    Ok(())
                })
                .unwrap();
            values.extend(rows);
        }
        values
    }

    #[test]
    fn nothing_of_another_sequence_is_met_in_place() {
        for format in FORMATS {
            let mut cache = cache(format);
            let first = cache.create_sequence().unwrap();
            (0..2).for_each(|layer| write(&mut cache, first, layer, 0, 14));
            cache.drop_sequence(first).unwrap();
            let second = cache.create_sequence().unwrap();
            // A page with a hole, one that nobody wrote, and the beginning of one.
            write(&mut cache, second, 0, 1, 2);
            write(&mut cache, second, 0, 9, 1);
            for layer in [0, 1] {
                cache.settle(second, layer).unwrap();
                let pages: Vec<_> = cache.walk(second, layer).unwrap().collect();
                let gathered = cache.gather(second, layer).unwrap();
                for (part, view) in Part::BOTH.into_iter().zip([&gathered.k, &gathered.v]) {
                    assert_eq!(in_place(&cache, &pages, layer, part), view.to_f32().unwrap(), "{format:?}");
                }
            }
            assert!(
                in_place(&cache, &cache.walk(second, 1).unwrap().collect::<Vec<_>>(), 1, Part::Key)
                    .iter()
                    .all(|&v| v == 0.)
            );
        }
    }

    #[test]
    fn a_block_table_shows_what_a_sequence_shows() {
        for format in FORMATS {
            let mut cache = cache(format);
            let sequence = cache.create_sequence().unwrap();
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
        let code = |cache: &PagedKvCache, layer, blocks: &[i32], length| {
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

    #[test]
    fn what_attention_needs_is_there() {
        let mut cache = cache(Some(PageFormat::Q8));
        let sequence = cache.create_sequence().unwrap();
        write(&mut cache, sequence, 0, 0, 4);
        assert!(cache.is_rotated());
        let [slab, staging] = cache.tensors();
        assert_eq!(
            (slab.dims(), staging.dims()),
            (&cache.layout().slab_shape(4)[..], &cache.staged_layout().slab_shape(0)[..])
        );
        // A query that is rotated as K is gives the same product.
        let page = cache.walk(sequence, 0).unwrap().next().unwrap();
        let key = &in_place(&cache, &[page], 0, Part::Key)[..6];
        let (mut rotated, mut query) = (key.to_vec(), vec![0.3f32, -2., 1., 5., 0.1, 4.]);
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let expected = product(key, &query);
        hadamard(&mut rotated);
        hadamard(&mut query);
        assert!((product(&rotated, &query) - expected).abs() < 1e-3);
    }
}
