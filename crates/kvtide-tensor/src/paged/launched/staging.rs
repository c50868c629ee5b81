//! Low-bit pages between the slab and the staging slab: all pages of a call in one launch.

use kvtide_core::paged::{KeyOrValue, PageLayout, PageWrite, Seal, StagingContent};
use kvtide_cuda::{QuantisedPage, QuantisedPages, Span, Stream, zero_pieces};

use super::write::{heads, section};
use crate::base::error::Result;
use crate::kernels::quantise::{Codec, LaunchedRows, launched_part};
use crate::paged::{PagedShape, Slab};

/// Both slabs and the stream of their device.
pub(in crate::paged) struct Slabs<'a> {
    pub stream: Stream,
    pub shape: &'a PagedShape,
    pub slab: &'a Slab,
    pub staging: &'a Slab,
}

/// Pages of a layout, each part with its codec if it has one, and rows elsewhere.
pub(super) fn pages_of<'a>(
    layout: &PageLayout,
    codecs: [Option<&Codec>; 2],
    memory: Span<'a>,
    rows: [LaunchedRows<'a>; 2],
) -> QuantisedPages<'a> {
    QuantisedPages {
        memory,
        page_bytes: layout.page_bytes(),
        slots: layout.shape().block_size as usize,
        heads: heads(layout),
        parts: KeyOrValue::BOTH.map(|part| {
            let which = part as usize;
            let codes = section(layout, part);
            launched_part(layout, part, codes, codecs[which], rows[which])
        }),
    }
}

impl Slabs<'_> {
    /// Makes the staging pages of a plan ready for its rows: zeros where another page's rows lie, and what was quantised.
    pub fn open(&self, writes: &[PageWrite]) -> Result<()> {
        let of = |before: StagingContent| writes.iter().filter(move |write| write.before == before);
        let layout = &self.shape.staged;
        let zeroed: Vec<usize> = of(StagingContent::Other).map(|write| layout.page_offset(write.staged, 0)).collect();
        if !zeroed.is_empty() {
            let bytes = layout.page_bytes();
            self.staging.launch(&[], |memory, _| Ok(zero_pieces(&self.stream, memory, bytes, &zeroed)?))?;
        }
        let sealed = of(StagingContent::Sealed).map(|write| (write.page.block, write.page.layer, write.staged));
        self.unseal(self.staging, &sealed.collect::<Vec<_>>())
    }

    /// Quantises pages that are full now.
    pub fn close(&self, seals: &[Seal]) -> Result<()> {
        let sealed: Vec<_> = seals.iter().map(|seal| (seal.page.block, seal.page.layer, seal.staged)).collect();
        self.seal(self.staging, &sealed)
    }

    /// Puts the rows of pages `(block, layer, page)` of the slab into pages of a slab of rows.
    pub fn unseal(&self, rows: &Slab, pages: &[(u32, u32, u32)]) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let listed = self.listed(pages);
        rows.launch(&[self.slab.storage()], |memory, sources| {
            let of = self.pages(self.slab.span(sources[0]), memory);
            Ok(kvtide_cuda::unseal(&self.stream, &of, &listed)?)
        })
    }

    /// Quantises pages of a slab of rows into pages `(block, layer, page)` of the slab.
    pub fn seal(&self, rows: &Slab, pages: &[(u32, u32, u32)]) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let listed = self.listed(pages);
        self.slab.launch(&[rows.storage()], |memory, sources| {
            let of = self.pages(memory, rows.span(sources[0]));
            Ok(kvtide_cuda::seal(&self.stream, &of, &listed)?)
        })
    }

    /// The pages of the slab, their rows in pages of staging.
    fn pages<'a>(&self, pages: Span<'a>, staging: Span<'a>) -> QuantisedPages<'a> {
        let rows = KeyOrValue::BOTH.map(|part| {
            let section = self.shape.staged.section(part);
            LaunchedRows {
                memory: staging,
                head: section.head_bytes,
                token: section.row_bytes,
                dtype: self.shape.dtype,
            }
        });
        pages_of(&self.shape.pages, self.shape.codecs.each_ref().map(Option::as_ref), pages, rows)
    }

    fn listed(&self, pages: &[(u32, u32, u32)]) -> Vec<QuantisedPage> {
        let staged = &self.shape.staged;
        let listed = |&(block, layer, page): &(u32, u32, u32)| QuantisedPage {
            page: self.shape.pages.page_offset(block, layer) as u64,
            rows: KeyOrValue::BOTH
                .map(|part| (staged.page_offset(page, 0) + staged.head_in_page(part, 0).codes) as u64),
            slot: 0,
            tokens: staged.shape().block_size,
        };
        pages.iter().map(listed).collect()
    }
}
