//! One head of K or V of a page: generated codes, and their values.

use kvtide_cuda::{PageSection, RowFormat};

use crate::numbers::{Numbers, decode, encode, scale, word};

pub struct Page {
    pub section: PageSection,
    pub part: usize,
    pub dim: usize,
    pub head: usize,
    /// The page's first byte.
    pub start: usize,
    pub block_size: usize,
}

impl Page {
    /// Fills all slots, and gives their rows as numbers.
    pub fn fill(&self, pages: &mut [u8], numbers: &mut Numbers) -> Vec<Vec<f64>> {
        let Page { section, dim, .. } = *self;
        let by_channel = section.format == RowFormat::Q4 && self.part == 0;
        let channels: Vec<[f64; 2]> =
            (0..if by_channel { dim } else { 0 }).map(|at| self.scales(pages, at, numbers)).collect();
        let row_bytes = section.format.row_bytes(dim);
        let fill = |slot: usize| {
            let own = match (section.format, by_channel) {
                (RowFormat::Q8 | RowFormat::Q4, false) => self.scales(pages, slot, numbers),
                _ => [1.0, 0.0],
            };
            let scales = |index: usize| if by_channel { channels[index] } else { own };
            let codes = encode(section.format, &numbers.take(dim), &scales);
            let at = self.start + section.codes + self.head * section.head + slot * row_bytes;
            pages[at..at + row_bytes].copy_from_slice(&codes);
            decode(section.format, &codes, dim, &scales)
        };
        (0..self.block_size).map(fill).collect()
    }

    /// Writes the scale, and for nibbles the minimum, of a row or a channel.
    fn scales(&self, pages: &mut [u8], place: usize, numbers: &mut Numbers) -> [f64; 2] {
        let first = self.start + self.section.scales + self.head * self.section.scale_head;
        let wiggle = 1.0 + f64::from(numbers.next()) / 8.0;
        if self.section.format == RowFormat::Q8 {
            let (bits, scale) = scale(wiggle / 127.0);
            pages[first + 2 * place..][..2].copy_from_slice(&bits.to_ne_bytes());
            return [scale, 0.0];
        }
        let (word, found) = word(wiggle * 2.0 / 15.0, -wiggle);
        pages[first + 4 * place..][..4].copy_from_slice(&word.to_ne_bytes());
        found
    }
}
