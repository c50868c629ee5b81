//! What attention reads of a paged cache: the pages of some sequences in one layer, in place.
//!
//! ```text
//! cache.pages(layer, &[sequence])     page 0: block 7    page 1: block 2    page 2: staging page 0
//! ```
//!
//! Nobody's old bytes are in them: what a sequence has not written, inside its length, is zeroed when they are asked for. The
//! cache is borrowed meanwhile, so that nothing changes; pages that are pinned make it refuse changes instead. Asking costs
//! O(pages), and O(bytes) of each page that is zeroed, once.

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
    /// Keeps the cache from changing, when nothing else does.
    _pin: Option<Arc<Pin>>,
    pub(crate) slabs: Slabs,
    /// The tables that a device was handed last.
    pub(crate) tables: Arc<KeptWords>,
    layer: u32,
    /// What a query sees unless it is said otherwise.
    window: Option<Window>,
    /// Whether rows of the caller's say where the pages are.
    are_of_tables: bool,
    pages: Arc<Vec<PageRead>>,
    /// Of each sequence.
    sequences: Arc<Vec<ShownSequence>>,
}

/// What of a sequence is there.
#[derive(Clone, Debug)]
struct ShownSequence {
    /// Its first page.
    first: usize,
    tokens: usize,
    /// The positions that left its window, whole pages.
    gap: Range<u32>,
    /// The tree that its last tokens are.
    tree: Option<Tree>,
}

impl PageGroup {
    /// The pages of these sequences in a layer, and the trees that they end with: those of open transactions and steps.
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

    /// The pages that a block table names: for each sequence a row of block indices, as many in each, and its length in
    /// tokens. Where blocks left the window of the cache, a row has [`NO_BLOCK`].
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
                .map_err(|_| Error::argument("lengths", format!("{length} at {index}"), "lengths from 0 on"))?;
            let blocks = &tables[index * width..(index + 1) * width];
            let gap = self.planner.check_table(index, layer, blocks, length)?;
            let held = blocks.iter().filter(|&&block| block != NO_BLOCK).map(|&block| block as u32);
            rows.add(self.planner.pages_of(held, length - gap.len() as u32, layer), gap, None)?;
        }
        self.zero_unwritten(&rows.pages, layer)?;
        Ok(rows)
    }

    /// Zeroes the slots of these pages that nobody wrote, where a read in place would show what lies there.
    pub(super) fn zero_unwritten(&mut self, pages: &[PageRead], layer: u32) -> Result<()> {
        let is_exposed = |page: &&PageRead| self.planner.exposes(page.block, layer, page.tokens);
        let exposed: Vec<&PageRead> = pages.iter().filter(is_exposed).collect();
        if exposed.is_empty() {
            return Ok(());
        }
        // Whoever reads in the background would be waited for, and what a step writes elsewhere would be lost.
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
    /// The same, apart from the cache: until they and their clones are dropped, calls that would change it are refused with
    /// `BUSY`. They can be read when the cache is gone.
    #[must_use]
    pub fn pinned(self) -> PageRows<'static> {
        let _pin = Some(Pin::new(&self.life));
        let PageRows { life, slabs, tables, layer, window, are_of_tables, pages, sequences, .. } = self;
        PageRows { cache: PhantomData, life, _pin, slabs, tables, layer, window, are_of_tables, pages, sequences }
    }

    /// The same blocks in another layer, where none of their pages is staged but these: the place of each among the pages, and its
    /// staging page.
    pub(super) fn in_layer(&self, layer: u32, staged: impl Iterator<Item = (usize, u32)>) -> Self {
        let mut rows = PageRows { layer, ..self.clone() };
        for (place, page) in staged {
            Arc::make_mut(&mut rows.pages)[place].staged = Some(page);
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
        // Nobody shares them while they are listed.
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

    /// Whether rows of the caller's say where the pages are, and that tokens have none.
    pub(crate) fn are_of_tables(&self) -> bool {
        self.are_of_tables
    }

    /// How many sequences.
    pub(crate) fn count(&self) -> usize {
        self.sequences.len()
    }

    /// The pages of a sequence, and their places among all pages; nothing where there is no such sequence.
    pub(crate) fn listed(&self, sequence: usize) -> Option<(&[PageRead], Range<usize>)> {
        let first = self.sequences.get(sequence)?.first;
        let end = self.sequences.get(sequence + 1).map_or(self.pages.len(), |next| next.first);
        Some((&self.pages[first..end], first..end))
    }

    /// Tokens of a sequence.
    pub(crate) fn tokens(&self, sequence: usize) -> usize {
        self.sequences[sequence].tokens
    }

    /// The positions of a sequence that left its window; its tokens are those before and behind them.
    pub(crate) fn gap(&self, sequence: usize) -> Range<u32> {
        self.sequences[sequence].gap.clone()
    }

    /// The tree that the last tokens of a sequence are; nothing where each follows the one before.
    pub(crate) fn tree(&self, sequence: usize) -> Option<&Tree> {
        self.sequences[sequence].tree.as_ref()
    }

    /// The layer.
    pub(crate) fn layer(&self) -> u32 {
        self.layer
    }

    /// What a query sees unless it is said otherwise: the window of the cache.
    pub(crate) fn window(&self) -> Option<Window> {
        self.window
    }

    /// Heads of K, and of V.
    pub(crate) fn heads(&self) -> usize {
        self.slabs.shape.heads()
    }

    /// Elements of a row of K or V.
    pub(crate) fn head_dim(&self, part: KeyOrValue) -> usize {
        self.slabs.shape.pages.section(part).head_dim
    }

    /// Slots of a page.
    pub(crate) fn block_size(&self) -> usize {
        self.slabs.shape.pages.shape().block_size as usize
    }

    /// The page with a token of a sequence, if it has so many.
    pub(crate) fn page(&self, sequence: usize, token: usize) -> Option<&PageRead> {
        let shown = &self.sequences[sequence];
        (token < shown.tokens).then(|| &self.pages[shown.first + token / self.block_size()])
    }

    /// The first byte of a page: of the staging slab when it is staged, else of the slab.
    pub(crate) fn start(&self, page: &PageRead) -> usize {
        let (slab, block, layer) = self.slabs.page(page.block, self.layer, page.staged);
        slab.layout.page_offset(block, layer)
    }

    /// Some tokens of a sequence, `[heads, tokens, dim]`, as floats: with candle's tensor operations where nothing is
    /// quantised.
    pub(crate) fn floats(&self, sequence: usize, part: KeyOrValue, first: usize, count: usize) -> Result<Tensor> {
        let (mut pieces, mut token) = (Vec::new(), first);
        while token < first + count {
            let page = self.page(sequence, token).expect("a token of the sequence");
            let slot = token % self.block_size();
            let taken = (page.tokens as usize - slot).min(first + count - token);
            pieces.push(self.page_floats(page, part)?.narrow(1, slot, taken)?);
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
        // What is quantised becomes floats on the host.
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
            let sequence = cache.create_sequence(Default::default()).unwrap();
            (0..2).for_each(|layer| write(&mut cache, sequence, layer, 0, 8));
            cache.truncate(sequence, 6).unwrap();
            let before = cache.gather(sequence, 0).unwrap();
            // The sequence grows past it in one layer, and leaves two slots that nobody wrote.
            write(&mut cache, sequence, 0, 8, 2);
            assert_eq!(cache.planner().staged_count(), u32::from(format.is_some()));
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
