//! The slabs of a group in the form that kernels expect.

use kvtide_core::paged::{KeyOrValue, PageLayout};
use kvtide_cuda::{QuantisedPages, Section, Span, Stream};

use crate::kernels::quantise::{Codec, LaunchedRows, launched_part};
use crate::paged::slabs::Slabs;

/// The slabs and the stream of their device.
pub(in crate::paged) struct Launched<'a> {
    pub stream: Stream,
    pub slabs: &'a Slabs,
}

/// Pages of a layout, each part with its codec if it has one, and rows outside them.
pub(super) fn quantised_pages<'a>(
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
            launched_part(layout, part, section(layout, part), codecs[which], rows[which])
        }),
    }
}

/// The number of KV heads.
pub(super) fn heads(layout: &PageLayout) -> usize {
    layout.shape().num_kv_heads as usize
}

/// The places of the codes of K and V in a page.
pub(super) fn sections(layout: &PageLayout) -> [Section; 2] {
    KeyOrValue::BOTH.map(|part| section(layout, part))
}

fn section(layout: &PageLayout, part: KeyOrValue) -> Section {
    let section = layout.section(part);
    Section { offset: layout.head_in_page(part, 0).codes, head: section.head_bytes, row: section.row_bytes }
}
