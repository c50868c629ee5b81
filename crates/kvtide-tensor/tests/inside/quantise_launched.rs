//! Quantises one head, as a page of its own, with the kernels of a GPU.

use std::ops::Range;

use kvtide_cuda::{
    Format, Hole, Quantised, QuantisedPage, QuantisedPages, Section, Span, Stream, seal, unseal, zero_slots,
};

use super::super::launched::format;
use super::Codec;

impl Codec {
    /// As [`Codec::encode`].
    ///
    /// # Panics
    ///
    /// If the CPU has no memory to stand in for a device.
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
