//! The quantisation of one part of a page: its format and sizes, and the loops that they select.

use kvtide_core::paged::{KeyOrValue, PageFormat, SectionLayout};

use super::hadamard::hadamard;
use super::{f8e4m3, q4, q8};

/// The quantisation of one part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codec {
    pub(super) format: PageFormat,
    pub(super) part: KeyOrValue,
    /// The elements of a row.
    pub(super) dim: usize,
    /// The bytes of a row's codes.
    pub(super) row_bytes: usize,
    /// The rows of a head.
    pub(super) block_size: usize,
    /// True if rows are rotated before they are quantised.
    pub(super) rotated: bool,
}

impl Codec {
    /// The codec for a section of low-bit pages; `None` if its rows are stored unquantised.
    pub fn of(part: KeyOrValue, section: &SectionLayout, rotated: bool) -> Option<Self> {
        let SectionLayout { format, head_dim, row_bytes, head_bytes, .. } = *section;
        (format.is_low_bit() && head_dim > 0).then(|| Codec {
            format,
            part,
            dim: head_dim,
            row_bytes,
            block_size: head_bytes / row_bytes,
            rotated,
        })
    }

    /// The elements of a head.
    pub fn elements(&self) -> usize {
        self.block_size * self.dim
    }

    /// Quantises a head with the loops alone, compiled for their caller.
    #[inline(always)]
    pub(super) fn encode_plain(&self, values: &mut [f32], codes: &mut [u8], scales: &mut [u8]) {
        if self.rotated {
            for row in values.chunks_exact_mut(self.dim) {
                hadamard(row);
            }
        }
        match (self.format, self.part) {
            (PageFormat::F8E4M3, _) => f8e4m3::encode(values, codes),
            (PageFormat::Q8, _) => q8::encode(values, self.dim, codes, scales),
            (_, KeyOrValue::Value) => q4::encode_rows(values, self.dim, codes, scales),
            (_, KeyOrValue::Key) => q4::encode_channels(values, self.dim, codes, scales),
        }
    }

    /// Dequantises rows with the loops alone, compiled for their caller.
    #[inline(always)]
    pub(super) fn decode_plain(&self, codes: &[u8], scales: &[u8], slot: usize, out: &mut [f32]) {
        let codes = &codes[slot * self.row_bytes..][..out.len() / self.dim * self.row_bytes];
        match (self.format, self.part) {
            (PageFormat::F8E4M3, _) => f8e4m3::decode(codes, out),
            (PageFormat::Q8, _) => q8::decode(codes, &scales[2 * slot..], self.dim, out),
            (_, KeyOrValue::Value) => q4::decode_rows(codes, &scales[4 * slot..], self.dim, out),
            (_, KeyOrValue::Key) => q4::decode_channels(codes, scales, self.dim, out),
        }
        if self.rotated {
            for row in out.chunks_exact_mut(self.dim) {
                hadamard(row);
            }
        }
    }
}
