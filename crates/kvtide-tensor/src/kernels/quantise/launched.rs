//! Quantisation with a device's kernels: describes the places of codes, scales and rows to a launch.

use kvtide_core::paged::{KeyOrValue, PageFormat, PageLayout};
use kvtide_cuda::{Format, Quantised, Section, Span};

use super::codec::Codec;
use crate::base::dtype::DType;

/// Rows outside pages: their memory, the distances from one head and one token to the next in bytes, and their element type.
#[derive(Clone, Copy)]
pub(crate) struct LaunchedRows<'a> {
    pub memory: Span<'a>,
    pub head: usize,
    pub token: usize,
    pub dtype: DType,
}

/// K or V of the pages of a layout, whose codes are in `codes`; without a codec, rows are stored unquantised.
pub(crate) fn launched_part<'a>(
    layout: &PageLayout,
    part: KeyOrValue,
    codes: Section,
    codec: Option<&Codec>,
    rows: LaunchedRows<'a>,
) -> Quantised<'a> {
    let (section, first) = (layout.section(part), layout.head_in_page(part, 0));
    Quantised {
        rows: rows.memory,
        head: rows.head,
        token: rows.token,
        element: format(rows.dtype.page_format(), part),
        format: codec.map_or_else(|| format(section.format, part), |codec| format(codec.format, codec.part)),
        dim: section.head_dim,
        is_rotated: codec.is_some_and(|codec| codec.rotated),
        codes,
        scales: [first.scales.unwrap_or(0), section.scale_bytes],
    }
}

/// The kernel's format for rows of a page format.
pub(super) fn format(format: PageFormat, part: KeyOrValue) -> Format {
    match (format, part) {
        (PageFormat::F32, _) => Format::F32,
        (PageFormat::F16, _) => Format::F16,
        (PageFormat::BF16, _) => Format::Bf16,
        (PageFormat::F8E4M3, _) => Format::F8,
        (PageFormat::Q8, _) => Format::Q8,
        (PageFormat::Q4, KeyOrValue::Key) => Format::Q4Channels,
        (PageFormat::Q4, KeyOrValue::Value) => Format::Q4Rows,
        (PageFormat::U8, _) => unreachable!("rows of bytes are never quantised, nor is the other part of their pages"),
    }
}
