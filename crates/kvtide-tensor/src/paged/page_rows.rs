//! What attention reads of a paged cache: the pages of some sequences in one layer, in place.
//!
//! Nobody's old bytes are in them: what a sequence has not written, inside its length, was zeroed when they were asked for. The
//! cache is borrowed meanwhile, so that nothing changes; pages that are pinned make it refuse changes instead. Asking costs
//! O(pages).

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::Tree;
use kvtide_core::paged::{HeadPlace, KeyOrValue, PageRead, Window};

use super::shape::PagedShape;
use super::slab::Slab;
use crate::base::error::{Error, Result};
use crate::base::life::{Life, Pin};
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_vec;
use crate::kernels::quantise::to_f32;
use crate::paged::PageGroup;

/// The pages of some sequences in one layer.
#[derive(Clone, Debug)]
pub struct PageRows<'a> {
    cache: PhantomData<&'a PageGroup>,
    life: Arc<Life>,
    /// Keeps the cache from changing, when nothing else does.
    _pin: Option<Arc<Pin>>,
    pub(crate) slab: Arc<Slab>,
    pub(crate) staging: Arc<Slab>,
    pub(crate) shape: PagedShape,
    layer: u32,
    /// What a query sees unless it is said otherwise.
    window: Option<Window>,
    /// Whether rows of the caller's say where the pages are.
    are_of_tables: bool,
    pages: Vec<PageRead>,
    /// Of each sequence.
    sequences: Vec<Shown>,
}

/// What of a sequence is there.
#[derive(Clone, Debug)]
struct Shown {
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
        for &sequence in sequences {
            self.settle(sequence, layer)?;
        }
        let mut rows = self.no_pages(layer);
        for &sequence in sequences {
            rows.add(self.walk(sequence, layer)?, self.planner.gap(sequence)?, self.planner.tree(sequence)?)?;
        }
        Ok(rows)
    }

    /// The pages that a block table names: for each sequence a row of block indices, as many in each, and its length in
    /// tokens. Where blocks left the window of the cache, a row has [`NO_BLOCK`](kvtide_core::paged::NO_BLOCK).
    pub fn pages_of_tables(&mut self, layer: u32, tables: &[i32], lengths: &[i32]) -> Result<PageRows<'_>> {
        self.collect()?;
        let width = tables.len().checked_div(lengths.len()).unwrap_or(0);
        if width * lengths.len() != tables.len() {
            let expected = format!("a multiple of {}, one row for each length", lengths.len());
            return Err(Error::ShapeMismatch { argument: "blockTables", value: vec![tables.len()], expected });
        }
        let row = |index: usize| &tables[index * width..(index + 1) * width];
        let mut checked = Vec::with_capacity(lengths.len());
        for (index, &length) in lengths.iter().enumerate() {
            let length = u32::try_from(length)
                .map_err(|_| Error::argument("lengths", format!("{length} at {index}"), "lengths from 0 on"))?;
            checked.push((length, self.table_gap(index, layer, row(index), length)?));
        }
        for (index, (length, _)) in checked.iter().enumerate() {
            self.settle_table(index, layer, row(index), *length)?;
        }
        let mut rows = PageRows { are_of_tables: true, ..self.no_pages(layer) };
        for (index, (length, gap)) in checked.into_iter().enumerate() {
            rows.add(self.walk_table(index, layer, row(index), length)?, gap, None)?;
        }
        Ok(rows)
    }

    fn no_pages(&self, layer: u32) -> PageRows<'_> {
        PageRows {
            cache: PhantomData,
            life: self.life.clone(),
            _pin: None,
            slab: self.slab.clone(),
            staging: self.staging.clone(),
            shape: self.shape,
            layer,
            window: self.planner.window(),
            are_of_tables: false,
            pages: Vec::new(),
            sequences: Vec::new(),
        }
    }
}

impl PageRows<'_> {
    /// The same, apart from the cache: until they and their clones are dropped, calls that would change it are refused with
    /// `BUSY`. They can be read when the cache is gone.
    #[must_use]
    pub fn pinned(self) -> PageRows<'static> {
        let _pin = Some(Pin::new(&self.life));
        let PageRows { life, slab, staging, shape, layer, window, are_of_tables, pages, sequences, .. } = self;
        PageRows {
            cache: PhantomData,
            life,
            _pin,
            slab,
            staging,
            shape,
            layer,
            window,
            are_of_tables,
            pages,
            sequences,
        }
    }

    /// Adds the pages of one more sequence.
    fn add(&mut self, pages: impl Iterator<Item = PageRead>, gap: Range<u32>, tree: Option<Tree>) -> Result<()> {
        let (first, mut tokens) = (self.pages.len(), 0);
        for page in pages {
            if self.pages.len() == self.pages.capacity() {
                let refused = |_| Budget::process().refusal(size_of::<PageRead>() as u64);
                self.pages.try_reserve(1).map_err(refused)?;
            }
            tokens += page.tokens as usize;
            self.pages.push(page);
        }
        self.sequences.push(Shown { first, tokens, gap, tree });
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
        self.shape.pages.shape().num_kv_heads as usize
    }

    /// Elements of a row of K or V.
    pub(crate) fn head_dim(&self, part: KeyOrValue) -> usize {
        self.shape.pages.section(part).head_dim
    }

    /// Slots of a page.
    pub(crate) fn block_size(&self) -> usize {
        self.shape.pages.shape().block_size as usize
    }

    /// The page with a token of a sequence, if it has so many.
    pub(crate) fn page(&self, sequence: usize, token: usize) -> Option<&PageRead> {
        let shown = &self.sequences[sequence];
        (token < shown.tokens).then(|| &self.pages[shown.first + token / self.block_size()])
    }

    /// The first byte of a page: of the staging slab when it is staged, else of the slab.
    pub(crate) fn start(&self, page: &PageRead) -> usize {
        match page.staged {
            Some(staged) => self.shape.staged.page_offset(staged, 0),
            None => self.shape.pages.page_offset(page.block, self.layer),
        }
    }

    /// Where the rows of a head of a page lie: in the staging slab when it is staged, else in the slab.
    fn place(&self, page: &PageRead, part: KeyOrValue, head: usize) -> HeadPlace {
        match page.staged {
            Some(staged) => self.shape.staged.head_place(staged, 0, part, head as u32),
            None => self.shape.pages.head_place(page.block, self.layer, part, head as u32),
        }
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
        let (slab, block, layer) = match page.staged {
            Some(staged) => (&self.staging, staged, 0),
            None => (&self.slab, page.block, self.layer),
        };
        if slab.layout.uniform().is_some() {
            let page = slab.tensor.get(block as usize)?.get(layer as usize)?;
            return Ok(page.get(part as usize)?.to_dtype(candle_core::DType::F32)?);
        }
        let dims = (self.heads(), self.block_size(), self.head_dim(part));
        let rows = self.block_size() * dims.2;
        let mut floats = zeroed_vec::<f32>(self.heads() * rows)
            .ok_or_else(|| Budget::process().refusal((4 * self.heads() * rows) as u64))?;
        slab.inspect(|bytes| {
            for (head, floats) in floats.chunks_exact_mut(rows.max(1)).enumerate() {
                let at = self.place(page, part, head);
                let codes = &bytes[at.codes..at.codes + self.block_size() * at.row_bytes];
                match self.shape.codecs[part as usize].filter(|_| page.staged.is_none()) {
                    Some(codec) => codec.decode(codes, at.scales.map_or(&[], |at| &bytes[at..]), 0, floats),
                    None => to_f32(self.shape.dtype, codes, floats),
                }
            }
            Ok(())
        })?;
        Ok(Tensor::from_vec(floats, dims, slab.tensor.device())?)
    }
}
