//! The same by a device's kernels: how a launch is told where codes, scales and rows lie.

#[cfg(feature = "emulate")]
use std::ops::Range;

use kvtide_core::paged::{KeyOrValue, PageFormat, PageLayout};
use kvtide_cuda::{Format, Quantised, Section, Span};
#[cfg(feature = "emulate")]
use kvtide_cuda::{Hole, QuantisedPage, QuantisedPages, Stream, seal, unseal, zero_slots};

use super::Codec;
use crate::base::dtype::DType;

/// Rows outside pages: their memory, bytes from a head and from a token to the next, their element type.
#[derive(Clone, Copy)]
pub(crate) struct LaunchedRows<'a> {
    pub memory: Span<'a>,
    pub head: usize,
    pub token: usize,
    pub dtype: DType,
}

/// K or V of the pages of a layout, whose codes lie there; without a codec its rows are kept as they are.
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
        element: float(rows.dtype),
        format: codec.map_or_else(|| format(section.format, part), |codec| format(codec.format, codec.part)),
        dim: section.head_dim,
        is_rotated: codec.is_some_and(|codec| codec.rotated),
        codes,
        scales: [first.scales.unwrap_or(0), section.scale_bytes],
    }
}

fn float(dtype: DType) -> Format {
    format(dtype.page_format(), KeyOrValue::Key)
}

fn format(format: PageFormat, part: KeyOrValue) -> Format {
    match (format, part) {
        (PageFormat::F32, _) => Format::F32,
        (PageFormat::F16, _) => Format::F16,
        (PageFormat::BF16, _) => Format::Bf16,
        (PageFormat::F8E4M3, _) => Format::F8,
        (PageFormat::Q8, _) => Format::Q8,
        (PageFormat::Q4, KeyOrValue::Key) => Format::Q4Channels,
        (PageFormat::Q4, KeyOrValue::Value) => Format::Q4Rows,
        (PageFormat::U8, _) => unreachable!("rows of bytes are neither quantised nor beside rows that are"),
    }
}

/// One head by itself, as a page of its own: what tests compare.
#[cfg(feature = "emulate")]
impl Codec {
    /// As [`Codec::encode`].
    ///
    /// # Panics
    ///
    /// When the CPU has no memory to stand in for a device.
    pub(super) fn encode_launched(&self, values: &mut [f32], codes: &mut [u8], scales: &mut [u8]) {
        let mut page = vec![0; codes.len().next_multiple_of(4) + scales.len()];
        let rows = Span::of(bytemuck::cast_slice(values));
        let of = self.page(Span::of_mut(&mut page), codes.len(), scales.len(), rows);
        let whole = QuantisedPage { page: 0, rows: [0; 2], slot: 0, tokens: self.block_size as u32 };
        seal(&Stream::emulated(), &of, &[whole]).expect("memory for a launch");
        codes.copy_from_slice(&page[..codes.len()]);
        scales.copy_from_slice(&page[codes.len().next_multiple_of(4)..]);
    }

    /// As [`Codec::decode`]; it panics as `encode_launched` does.
    pub(super) fn decode_launched(&self, codes: &[u8], scales: &[u8], slot: usize, out: &mut [f32]) {
        let codes = &codes[..self.block_size * self.row_bytes];
        let mut page = codes.to_vec();
        page.resize(codes.len().next_multiple_of(4), 0);
        page.extend_from_slice(scales);
        let tokens = (out.len() / self.dim) as u32;
        let rows = Span::of_mut(bytemuck::cast_slice_mut(out));
        let of = self.page(Span::of(&page), codes.len(), scales.len(), rows);
        let some = QuantisedPage { page: 0, rows: [0; 2], slot: slot as u32, tokens };
        let some: &[QuantisedPage] = if tokens == 0 { &[] } else { &[some] };
        unseal(&Stream::emulated(), &of, some).expect("memory for a launch");
    }

    /// As [`Codec::zero`]; it panics as `encode_launched` does.
    pub(super) fn zero_launched(&self, codes: &mut [u8], scales: &mut [u8], slots: &[Range<u32>]) {
        let at = codes.len().next_multiple_of(4);
        let mut page = codes.to_vec();
        page.resize(at, 0);
        page.extend_from_slice(scales);
        let of = self.page(Span::of_mut(&mut page), codes.len(), scales.len(), Span::of(&[]));
        let holes: Vec<Hole> = slots.iter().map(|run| Hole { page: 0, start: run.start, end: run.end }).collect();
        zero_slots(&Stream::emulated(), &of, &holes).expect("memory for a launch");
        codes.copy_from_slice(&page[..codes.len()]);
        scales.copy_from_slice(&page[at..]);
    }

    fn page<'a>(&self, memory: Span<'a>, codes: usize, scales: usize, rows: Span<'a>) -> QuantisedPages<'a> {
        let (token, page_bytes) = (4 * self.dim, memory.bytes());
        let part = Quantised {
            rows,
            head: self.block_size * token,
            token,
            element: Format::F32,
            format: format(self.format, self.part),
            dim: self.dim,
            is_rotated: self.rotated,
            codes: Section { offset: 0, head: codes, row: self.row_bytes },
            scales: [codes.next_multiple_of(4), scales],
        };
        let none = Quantised { dim: 0, ..part };
        QuantisedPages { memory, page_bytes, slots: self.block_size, heads: 1, parts: [part, none] }
    }
}
