//! Moves low-bit pages between the slab and the staging slab: all pages of a call in one launch.

use kvtide_core::paged::{KeyOrValue, PageWrite, Seal, StagingContent};
use kvtide_cuda::{QuantisedPage, QuantisedPages, Span, zero_pieces};

use super::slabs::{Launched, quantised_pages};
use crate::base::error::Result;
use crate::kernels::quantise::LaunchedRows;

/// A page by its block, layer and staging page.
type Staged = (u32, u32, u32);

impl Launched<'_> {
    /// Prepares the staging pages of a plan for its rows: zeroes those with rows of another page, and dequantises pages that
    /// were sealed.
    pub fn open(&self, writes: &[PageWrite]) -> Result<()> {
        let of = |before: StagingContent| writes.iter().filter(move |write| write.before == before);
        let staging = &self.slabs.staging;
        let zeroed: Vec<usize> =
            of(StagingContent::Other).map(|write| staging.layout.page_offset(write.staged, 0)).collect();
        if !zeroed.is_empty() {
            let bytes = staging.layout.page_bytes();
            staging.launch(&[], |memory, _| Ok(zero_pieces(&self.stream, memory, bytes, &zeroed)?))?;
        }
        let sealed =
            self.listed(of(StagingContent::Sealed).map(|write| (write.page.block, write.page.layer, write.staged)));
        if sealed.is_empty() {
            return Ok(());
        }
        let slab = &self.slabs.slab;
        staging.launch(&[slab.storage()], |memory, sources| {
            Ok(kvtide_cuda::unseal(&self.stream, &self.pages(slab.span(sources[0]), memory), &sealed)?)
        })
    }

    /// Quantises pages that are now full.
    pub fn close(&self, seals: &[Seal]) -> Result<()> {
        let pages = self.listed(seals.iter().map(|seal| (seal.page.block, seal.page.layer, seal.staged)));
        let staging = &self.slabs.staging;
        self.slabs.slab.launch(&[staging.storage()], |memory, sources| {
            Ok(kvtide_cuda::seal(&self.stream, &self.pages(memory, staging.span(sources[0])), &pages)?)
        })
    }

    /// The pages of the slab, with their rows in pages of the staging slab.
    fn pages<'a>(&self, pages: Span<'a>, staging: Span<'a>) -> QuantisedPages<'a> {
        let shape = &self.slabs.shape;
        let rows = KeyOrValue::BOTH.map(|part| {
            let section = shape.staged.section(part);
            let dtype = shape.row_dtype(part);
            LaunchedRows { memory: staging, head: section.head_bytes, token: section.row_bytes, dtype }
        });
        quantised_pages(&shape.pages, shape.codecs.each_ref().map(Option::as_ref), pages, rows)
    }

    fn listed(&self, pages: impl Iterator<Item = Staged>) -> Vec<QuantisedPage> {
        let (layout, staged) = (&self.slabs.shape.pages, &self.slabs.shape.staged);
        let listed = |(block, layer, page): Staged| QuantisedPage {
            page: layout.page_offset(block, layer) as u64,
            rows: KeyOrValue::BOTH
                .map(|part| (staged.page_offset(page, 0) + staged.head_in_page(part, 0).codes) as u64),
            slot: 0,
            tokens: staged.shape().block_size,
        };
        pages.map(listed).collect()
    }
}
