//! The pages of some sequences in one layer, in place, for attention.
//!
//! ```text
//! cache.pages(layer, &[sequence])     page 0: block 7    page 1: block 2    page 2: staging page 0
//! ```
//!
//! Old bytes are never visible in them: slots within the length of a sequence that it has not written are zeroed when the
//! pages are requested. The cache is borrowed meanwhile, so that nothing changes; pinned pages make it refuse changes
//! instead. A request costs O(pages), plus O(bytes) once for each page that is zeroed.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::Tree;
use kvtide_core::paged::{KeyOrValue, NO_BLOCK, PageRead, Window};
use kvtide_cuda::KeptWords;

use super::group::PageGroup;
use super::slabs::{Holes, Slabs};
use crate::base::error::{Error, Result};
use crate::base::life::{Life, Pin};
use crate::base::memory::Budget;
use crate::base::zeroed::{zeroed_bytes, zeroed_vec};
use crate::kernels::quantise::to_f32;

/// The pages of some sequences in one layer.
#[derive(Clone, Debug)]
pub struct PageRows<'a> {
    cache: PhantomData<&'a PageGroup>,
    life: Arc<Life>,
    /// Keeps the cache from changing once it is no longer borrowed.
    _pin: Option<Arc<Pin>>,
    pub(crate) slabs: Slabs,
    /// The block tables that were last uploaded to a device.
    pub(crate) tables: Arc<KeptWords>,
    layer: u32,
    /// The default window of queries.
    window: Option<Window>,
    /// True if the pages come from the caller's block tables.
    are_of_tables: bool,
    pages: Arc<Vec<PageRead>>,
    /// The content of each sequence.
    sequences: Arc<Vec<ShownSequence>>,
}

/// The content of one sequence.
#[derive(Clone, Debug)]
struct ShownSequence {
    /// The index of its first page.
    first: usize,
    tokens: usize,
    /// The positions outside its window that were dropped, whole pages.
    gap: Range<u32>,
    /// The tree of its last tokens.
    tree: Option<Tree>,
}

/// A page that is staged in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StagedAt {
    pub layer: u32,
    /// Its index among the pages.
    pub place: usize,
    /// Its staging page.
    pub staged: u32,
    /// True if the slab has its quantised form too.
    pub is_sealed: bool,
}

impl PageGroup {
    /// The pages of these sequences in a layer, with the trees at their ends: those of open transactions and steps.
    pub fn pages(&mut self, layer: u32, sequences: &[u64]) -> Result<PageRows<'_>> {
        self.collect()?;
        let mut rows = self.no_pages(layer);
        for &sequence in sequences {
            let pages = self.planner.pages(sequence, layer)?;
            rows.add(pages, self.planner.gap(sequence)?, self.planner.tree(sequence)?)?;
        }
        self.zero_unwritten(&rows.pages, layer)?;
        Ok(rows)
    }

    /// The pages of block tables: for each sequence one row of block indices, all rows equally long, and its length in
    /// tokens. Blocks outside the window of the cache are [`NO_BLOCK`] in a row.
    pub fn pages_of_tables(&mut self, layer: u32, tables: &[i32], lengths: &[i32]) -> Result<PageRows<'_>> {
        self.collect()?;
        let width = tables.len().checked_div(lengths.len()).unwrap_or(0);
        if width * lengths.len() != tables.len() {
            let expected = format!("a multiple of {}, one row for each length", lengths.len());
            return Err(Error::ShapeMismatch { argument: "blockTables", value: vec![tables.len()], expected });
        }
        let mut rows = PageRows { are_of_tables: true, ..self.no_pages(layer) };
        for (index, &length) in lengths.iter().enumerate() {
            let length = u32::try_from(length)
                .map_err(|_| Error::argument("lengths", format!("{length} at {index}"), "lengths of at least 0"))?;
            let blocks = &tables[index * width..(index + 1) * width];
            let gap = self.planner.check_table(index, layer, blocks, length)?;
            let held = blocks.iter().filter(|&&block| block != NO_BLOCK).map(|&block| block as u32);
            rows.add(self.planner.pages_of(held, length - gap.len() as u32, layer), gap, None)?;
        }
        self.zero_unwritten(&rows.pages, layer)?;
        Ok(rows)
    }

    /// Zeroes the unwritten slots of these pages if a read in place would show their old content.
    pub(super) fn zero_unwritten(&mut self, pages: &[PageRead], layer: u32) -> Result<()> {
        let is_exposed = |page: &&PageRead| self.planner.exposes(page.block, layer, page.tokens);
        let exposed: Vec<&PageRead> = pages.iter().filter(is_exposed).collect();
        if exposed.is_empty() {
            return Ok(());
        }
        // Zeroing would race with background readers, and could overwrite what a step writes on another thread.
        self.check_pages()?;
        for slab in [&self.slabs.staging, &self.slabs.slab] {
            let holes = exposed.iter().filter_map(|page| {
                let (of, block, layer_there) = self.slabs.page(page.block, layer, page.staged);
                let runs = || self.planner.unwritten(page.block, layer, self.planner.block_size()).collect();
                std::ptr::eq(of, &**slab).then(|| Holes { block, layer: layer_there, runs: runs() })
            });
            self.slabs.zero(slab, &holes.collect::<Vec<_>>())?;
        }
        exposed.iter().for_each(|page| self.planner.cleaned(page.block, layer));
        Ok(())
    }

    pub(super) fn no_pages(&self, layer: u32) -> PageRows<'static> {
        PageRows {
            cache: PhantomData,
            life: self.life.clone(),
            _pin: None,
            slabs: self.slabs.clone(),
            tables: self.tables.clone(),
            layer,
            window: self.planner.window(),
            are_of_tables: false,
            pages: Arc::default(),
            sequences: Arc::default(),
        }
    }
}

impl PageRows<'_> {
    /// The same pages, independent of the borrow of the cache: until they and their clones are dropped, calls that would
    /// change the cache fail with `BUSY`. They can be read after the cache is gone.
    #[must_use]
    pub fn pinned(self) -> PageRows<'static> {
        let _pin = Some(Pin::new(&self.life));
        let PageRows { life, slabs, tables, layer, window, are_of_tables, pages, sequences, .. } = self;
        PageRows { cache: PhantomData, life, _pin, slabs, tables, layer, window, are_of_tables, pages, sequences }
    }

    /// The same blocks in another layer, where only the pages of `staged` are staged.
    pub(super) fn in_layer<'s>(&self, layer: u32, staged: impl Iterator<Item = &'s StagedAt>) -> Self {
        let mut rows = PageRows { layer, ..self.clone() };
        for of in staged {
            let page = &mut Arc::make_mut(&mut rows.pages)[of.place];
            (page.staged, page.is_sealed) = (Some(of.staged), of.is_sealed);
        }
        rows
    }

    /// Adds the pages of one more sequence.
    pub(super) fn add(
        &mut self,
        pages: impl Iterator<Item = PageRead>,
        gap: Range<u32>,
        tree: Option<Tree>,
    ) -> Result<()> {
        // They are not shared while they are being listed.
        let listed = Arc::make_mut(&mut self.pages);
        let (first, mut tokens) = (listed.len(), 0);
        for page in pages {
            if listed.len() == listed.capacity() {
                let refused = |_| Budget::process().refusal(size_of::<PageRead>() as u64);
                listed.try_reserve(1).map_err(refused)?;
            }
            tokens += page.tokens as usize;
            listed.push(page);
        }
        Arc::make_mut(&mut self.sequences).push(ShownSequence { first, tokens, gap, tree });
        Ok(())
    }

    /// True if the pages come from the caller's block tables, in which tokens may have no block.
    pub(crate) fn are_of_tables(&self) -> bool {
        self.are_of_tables
    }

    /// The number of sequences.
    pub(crate) fn count(&self) -> usize {
        self.sequences.len()
    }

    /// The pages of a sequence, and their indices among all pages; `None` if there is no such sequence.
    pub(crate) fn listed(&self, sequence: usize) -> Option<(&[PageRead], Range<usize>)> {
        let first = self.sequences.get(sequence)?.first;
        let end = self.sequences.get(sequence + 1).map_or(self.pages.len(), |next| next.first);
        Some((&self.pages[first..end], first..end))
    }

    /// The number of tokens of a sequence.
    pub(crate) fn tokens(&self, sequence: usize) -> usize {
        self.sequences[sequence].tokens
    }

    /// The positions outside the window of a sequence that were dropped; its tokens are those before and after them.
    pub(crate) fn gap(&self, sequence: usize) -> Range<u32> {
        self.sequences[sequence].gap.clone()
    }

    /// The tree of the last tokens of a sequence; `None` if they form a chain.
    pub(crate) fn tree(&self, sequence: usize) -> Option<&Tree> {
        self.sequences[sequence].tree.as_ref()
    }

    /// The layer.
    pub(crate) fn layer(&self) -> u32 {
        self.layer
    }

    /// The default window of queries: that of the cache.
    pub(crate) fn window(&self) -> Option<Window> {
        self.window
    }

    /// The number of KV heads.
    pub(crate) fn heads(&self) -> usize {
        self.slabs.shape.heads()
    }

    /// The number of elements in a row of K or V.
    pub(crate) fn head_dim(&self, part: KeyOrValue) -> usize {
        self.slabs.shape.pages.section(part).head_dim
    }

    /// The number of slots in a page.
    pub(crate) fn block_size(&self) -> usize {
        self.slabs.shape.pages.shape().block_size as usize
    }

    /// True if some pages of a sequence are available both as floats and quantised: each query then reads the pages before
    /// its own page quantised, and its own page as floats. A draft tree reads floats wherever they exist.
    pub(crate) fn has_two_forms(&self, sequence: usize) -> bool {
        let size = self.block_size() as u32;
        let pages = self.listed(sequence).map_or(&[][..], |(pages, _)| pages);
        self.tree(sequence).is_none() && pages.iter().any(|page| page.is_sealed && page.tokens == size)
    }

    /// For each page of a sequence, true if queries behind it read its quantised form and its own queries read floats: for tests.
    #[doc(hidden)]
    pub fn two_forms(&self, sequence: usize) -> Vec<bool> {
        let has_two_forms = self.has_two_forms(sequence);
        let (pages, _) = self.listed(sequence).unwrap_or_default();
        pages.iter().map(|page| has_two_forms && page.is_sealed && page.staged.is_some()).collect()
    }

    /// The page with a token of a sequence, if there is such a token, in the form in which queries whose own page has the
    /// index `own` read it: quantised before their own page, if it has a quantised form.
    pub(crate) fn page_for(&self, own: usize, sequence: usize, token: usize) -> Option<PageRead> {
        let page = *self.page(sequence, token)?;
        let is_before = page.is_sealed && token / self.block_size() < own;
        Some(PageRead { staged: page.staged.filter(|_| !is_before), ..page })
    }

    /// The page with a token of a sequence, if there is such a token.
    pub(crate) fn page(&self, sequence: usize, token: usize) -> Option<&PageRead> {
        let shown = &self.sequences[sequence];
        (token < shown.tokens).then(|| &self.pages[shown.first + token / self.block_size()])
    }

    /// The byte offset of a page: in the staging slab if it is staged, else in the slab.
    pub(crate) fn start(&self, page: &PageRead) -> usize {
        let (slab, block, layer) = self.slabs.page(page.block, self.layer, page.staged);
        slab.layout.page_offset(block, layer)
    }

    /// Some tokens of a sequence, `[heads, tokens, dim]`, as floats, in the form that queries with the own page `own` read.
    /// Uses candle's tensor operations if nothing is quantised.
    pub(crate) fn floats(&self, own: usize, sequence: usize, part: KeyOrValue, tokens: Range<usize>) -> Result<Tensor> {
        let (mut pieces, mut token) = (Vec::new(), tokens.start);
        while token < tokens.end {
            let page = self.page_for(own, sequence, token).expect("a token of the sequence");
            let slot = token % self.block_size();
            let taken = (page.tokens as usize - slot).min(tokens.end - token);
            pieces.push(self.page_floats(&page, part)?.narrow(1, slot, taken)?);
            token += taken;
        }
        Ok(Tensor::cat(&pieces, 1)?.contiguous()?)
    }

    /// All slots of K or V of a page, `[heads, slots, dim]`, as floats.
    fn page_floats(&self, page: &PageRead, part: KeyOrValue) -> Result<Tensor> {
        let (slab, block, layer) = self.slabs.page(page.block, self.layer, page.staged);
        if slab.layout.uniform().is_some() {
            let page = slab.tensor.get(block as usize)?.get(layer as usize)?;
            return Ok(page.get(part as usize)?.to_dtype(candle_core::DType::F32)?);
        }
        let shape = &self.slabs.shape;
        let dims = (self.heads(), self.block_size(), self.head_dim(part));
        let rows = self.block_size() * dims.2;
        let mut floats = zeroed_vec::<f32>(self.heads() * rows)
            .ok_or_else(|| Budget::process().refusal((4 * self.heads() * rows) as u64))?;
        // Quantised pages are converted to floats on the host.
        let mut bytes = zeroed_bytes(slab.layout.page_bytes())?;
        slab.fetch(slab.layout.page_offset(block, layer), &mut bytes)?;
        for (head, floats) in floats.chunks_exact_mut(rows.max(1)).enumerate() {
            let at = slab.layout.head_in_page(part, head as u32);
            let codes = &bytes[at.codes..at.codes + self.block_size() * at.row_bytes];
            match shape.codecs[part as usize].filter(|_| page.staged.is_none()) {
                Some(codec) => codec.decode(codes, at.scales.map_or(&[], |at| &bytes[at..]), 0, floats),
                None => to_f32(shape.row_dtype(part), codes, floats),
            }
        }
        Ok(Tensor::from_vec(floats, dims, slab.tensor.device())?)
    }
}

#[cfg(test)]
mod tests {
    use kvtide_core::Code;
    use kvtide_core::paged::PageFormat;

    use super::*;
    use crate::base::dtype::DType;
    use crate::paged::PagedKvCacheOptions;
    use crate::tensor::host::HostTensor;

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
            value_hadamard: format == Some(PageFormat::Q4),
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
            let first = cache.create_sequence(Default::default()).unwrap();
            (0..2).for_each(|layer| write(&mut cache, first, layer, 0, 14));
            cache.drop_sequence(first).unwrap();
            let second = cache.create_sequence(Default::default()).unwrap();
            // A page with a hole, an unwritten page, and a partly written one.
            write(&mut cache, second, 0, 1, 2);
            write(&mut cache, second, 0, 9, 1);
            for layer in [0, 1] {
                let gathered = cache.gather(second, layer).unwrap();
                let pages = cache.pages(layer, &[second]).unwrap();
                for (part, view) in KeyOrValue::BOTH.into_iter().zip([&gathered.k, &gathered.v]) {
                    let floats = pages.floats(0, 0, part, 0..pages.tokens(0)).unwrap();
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
            let sequence = cache.create_sequence(Default::default()).unwrap();
            (0..2).for_each(|layer| write(&mut cache, sequence, layer, 0, 8));
            cache.truncate(sequence, 6).unwrap();
            let before = cache.gather(sequence, 0).unwrap();
            // The sequence grows past it in one layer, and leaves two unwritten slots.
            write(&mut cache, sequence, 0, 8, 2);
            assert_eq!(cache.planner().staged_count(), u32::from(format.is_some()));
            let pages = cache.pages(0, &[sequence]).unwrap();
            for (part, view) in KeyOrValue::BOTH.into_iter().zip([&before.k, &before.v]) {
                let floats: Vec<f32> =
                    pages.floats(0, 0, part, 0..10).unwrap().flatten_all().unwrap().to_vec1().unwrap();
                let before = view.to_f32().unwrap();
                for head in 0..2 {
                    let rows = &floats[head * 60..][..60];
                    assert!(rows[36..48].iter().all(|&value| value == 0.), "{format:?} {part:?}: {rows:?}");
                    // In q4, the rows of K in a page share their scales, which change to some that have a zero.
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
            let sequence = cache.create_sequence(Default::default()).unwrap();
            write(&mut cache, sequence, 1, 0, 10);
            let pages = cache.pages(1, &[sequence]).unwrap().pages;
            let table: Vec<i32> = pages.iter().map(|page| page.block as i32).collect();
            assert_eq!(cache.pages_of_tables(1, &table, &[10]).unwrap().pages, pages);
            assert_eq!(
                pages.iter().map(|page| page.staged.is_some()).collect::<Vec<_>>(),
                [false, false, format.is_some()]
            );
            let shorter = cache.pages_of_tables(1, &table, &[5]).unwrap().pages;
            assert_eq!(shorter.iter().map(|page| page.tokens).collect::<Vec<_>>(), [4, 1]);
            let nothing = cache.pages_of_tables(1, &[-1, 99], &[0]).unwrap();
            assert!(nothing.pages.is_empty(), "a block without tokens is not looked at");
        }
    }

    #[test]
    fn a_table_that_points_outside_is_refused() {
        let mut cache = cache(None);
        let mut code = |layer, blocks: &[i32], length| {
            cache.pages_of_tables(layer, blocks, &[length]).map(drop).map_err(|error| error.code())
        };
        for blocks in [[0, 4], [0, -1], [i32::MIN, 1], [i32::MAX, 1]] {
            assert_eq!(code(0, &blocks, 8), Err(Code::InvalidBlock));
        }
        assert_eq!(code(0, &[0, 1], 9), Err(Code::PositionOutOfRange));
        assert_eq!(code(0, &[], 1), Err(Code::PositionOutOfRange));
        assert_eq!(code(2, &[0], 1), Err(Code::InvalidArgument));
        assert_eq!(code(0, &[3, 0], 8), Ok(()));
    }
}
