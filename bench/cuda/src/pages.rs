//! Blocks of pages in random order, as in a pool after long use.
//!
//! ```text
//! block  [ layer 0 | layer 1 | ... ]        page  [ K: codes of heads, scales of heads | V: the same ]
//! ```

use kvtide_cuda::{Format, PageSection, RowFormat, Rows, Section, Span, Strip, Strips};

use crate::sizes::Sizes;

const ALIGNMENT: usize = 64;

/// The K or V section of a page: the offset of its codes, bytes of a head's codes and of a row; the same for scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionPlaces {
    pub codes: usize,
    pub head: usize,
    pub row: usize,
    pub scales: usize,
    pub scale_head: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The forms of K and V, as they are written.
    pub formats: [Format; 2],
    pub parts: [SectionPlaces; 2],
    pub bytes: usize,
}

impl Page {
    /// Returns the page form of this name.
    pub fn new(sizes: &Sizes, name: &str) -> Self {
        let formats = match name {
            "f8e4m3" => [Format::F8; 2],
            "q8" => [Format::Q8; 2],
            "q4" => [Format::Q4Channels, Format::Q4Rows],
            _ => [Format::Bf16; 2],
        };
        let Sizes { kv_heads, dim, block, .. } = *sizes;
        let mut bytes = 0;
        let parts = formats.map(|format| {
            let (row, scale_head) = match format {
                Format::F32 => (4 * dim, 0),
                Format::F16 | Format::Bf16 => (2 * dim, 0),
                Format::F8 => (dim, 0),
                Format::Q8 => (dim, 2 * block),
                Format::Q4Rows => (dim / 2, 4 * block),
                Format::Q4Channels => (dim / 2, 4 * dim),
            };
            let (codes, head) = (bytes, block * row);
            let scales = (codes + kv_heads * head).next_multiple_of(ALIGNMENT);
            bytes = (scales + kv_heads * scale_head).next_multiple_of(ALIGNMENT);
            SectionPlaces { codes, head, row, scales, scale_head }
        });
        Page { formats, parts, bytes }
    }

    pub fn sections(&self) -> [Section; 2] {
        self.parts.map(|part| Section { offset: part.codes, head: part.head, row: part.row })
    }

    /// Returns a move of whole strips between pages in `pages` and rows.
    pub fn moves<'a>(&self, sizes: &Sizes, pages: Span<'a>, rows: [Rows<'a>; 2], layers: usize) -> Strips<'a> {
        let (page_bytes, heads) = (self.bytes, sizes.kv_heads);
        Strips { pages, page_bytes, sections: self.sections(), rows, heads, layers, layer_bytes: page_bytes }
    }

    /// Returns rows of this form as input of quantisation: their memory, the bytes between heads, and between tokens.
    pub fn rows<'a>(&self, memory: Span<'a>) -> [(Span<'a>, usize, usize); 2] {
        self.parts.map(|part| (memory, part.head, part.row))
    }

    pub fn attended(&self, format: RowFormat) -> [PageSection; 2] {
        self.parts.map(|part| PageSection {
            format,
            codes: part.codes,
            head: part.head,
            scales: part.scales,
            scale_head: part.scale_head,
        })
    }
}

/// Returns all numbers below `count`, each once, and all but a few not next to their neighbours.
pub fn scattered(count: usize) -> Vec<usize> {
    let divides = |step: usize| (2..=step).any(|by| step.is_multiple_of(by) && count.is_multiple_of(by));
    let near = (count as f64 * 0.618) as usize;
    let step = (near.max(1)..).find(|&step| !divides(step)).expect("a prime number");
    (0..count).map(|at| at * step % count).collect()
}

/// Returns a strip for each block of `tokens` tokens; its rows are those of a layer in the rows' memory.
pub fn strips(blocks: &[usize], block: usize, block_bytes: usize, tokens: usize, layer: usize) -> Vec<Strip> {
    let of = |(at, &place): (usize, &usize)| Strip {
        page: (place * block_bytes) as u64,
        token: (at * block) as u32,
        slot: 0,
        tokens: block.min(tokens - at * block) as u32,
        layer: layer as u32,
    };
    blocks.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_in_no_order_each_once() {
        for count in [1, 2, 3, 6, 12, 4096, 32_768] {
            let mut blocks = scattered(count);
            assert!(count < 12 || blocks.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 1), "{count}");
            blocks.sort_unstable();
            assert!(blocks.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn pages_have_what_their_forms_take() {
        let elements = 8 * 16 * 128;
        let bytes = |name| Page::new(&Sizes::FULL, name).bytes;
        assert_eq!(bytes("bf16"), 2 * 2 * elements);
        assert_eq!(bytes("f8e4m3"), 2 * elements);
        assert_eq!(bytes("q8"), 2 * (elements + 8 * 16 * 2));
        assert_eq!(bytes("q4"), elements + 8 * 128 * 4 + 8 * 16 * 4);
    }

    #[test]
    fn the_last_strip_has_what_is_left() {
        let strips = strips(&[2, 0, 1], 16, 100, 40, 5);
        let found: Vec<_> = strips.iter().map(|strip| (strip.page, strip.token, strip.tokens, strip.layer)).collect();
        assert_eq!(found, [(200, 0, 16, 5), (0, 16, 16, 5), (100, 32, 8, 5)]);
    }
}
