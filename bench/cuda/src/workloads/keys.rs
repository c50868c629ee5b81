//! K and V of sequences as inputs of attention: contiguous, and in blocks of a pool.

use kvtide_cuda::{
    AttendKeys, Direction, HeadRows, PageMemory, QuantisedPage, RowFormat, Rows, Span, Words, copy_strips, seal,
};

use super::Bench;
use super::quantise::call as quantised;
use crate::Result;
use crate::numbers::fill;
use crate::pages::{Page, scattered, strips};
use crate::sizes::Sizes;

/// Contiguous K and V `[sequences, heads, keys, dim]`, and the blocks that have the same content.
pub struct Keys<'a> {
    pub rows: Span<'a>,
    /// The blocks of all sequences, one sequence after the other.
    pub blocks: Vec<usize>,
    pub tables: Span<'a>,
}

/// A pool of blocks of several layers, which all have the same content.
#[derive(Clone, Copy)]
pub struct Pool<'a> {
    memory: Span<'a>,
    page: Page,
    format: RowFormat,
    sizes: &'a Sizes,
    tables: Words<'a>,
}

impl<'a> Keys<'a> {
    pub fn new(bench: &Bench<'a>) -> Result<Self> {
        let Bench { place, sizes, .. } = *bench;
        let rows = bench.memory(2 * sizes.keys_part())?;
        fill(place, rows, 10, 1.0)?;
        let blocks = scattered(sizes.sequences * sizes.keys / sizes.block);
        let tables = words(bench, blocks.iter().copied())?;
        Ok(Keys { rows, blocks, tables })
    }

    pub fn contiguous(&self, sizes: &Sizes) -> AttendKeys<'a> {
        let (row, keys) = (sizes.row(), sizes.keys);
        let [k, v] = [0, sizes.keys_part()].map(|start| HeadRows {
            memory: self.rows,
            format: RowFormat::Bf16,
            pieces: [(start, keys), (start + keys * row, 0)],
            batch: sizes.kv_heads * keys * row,
            head: keys * row,
            token: row,
        });
        AttendKeys::Rows { k, v }
    }
}

impl<'a> Pool<'a> {
    /// Blocks that hold these keys in every layer, as bf16 or quantised.
    pub fn new(bench: &Bench<'a>, keys: &Keys<'a>, format: RowFormat) -> Result<Self> {
        let Bench { place, sizes, .. } = *bench;
        let Sizes { kv_heads, block, pool_layers, .. } = *sizes;
        let (row, head) = (sizes.row(), sizes.keys * sizes.row());
        let page = Page::new(sizes, if format == RowFormat::Q8 { "q8" } else { "bf16" });
        let block_bytes = pool_layers * page.bytes;
        let (inside, outside) = (bench.memory(keys.blocks.len() * block_bytes)?, keys.rows);
        fill(place, inside, 11, 1.0)?;
        let each = sizes.keys / block;
        for layer in 0..pool_layers {
            let layer = layer * page.bytes;
            if format == RowFormat::Q8 {
                let rows = [0, sizes.keys_part()].map(|start| (outside.from(start), head, row));
                let pages: Vec<QuantisedPage> = keys
                    .blocks
                    .iter()
                    .enumerate()
                    .map(|(at, &place)| {
                        let first = (at / each * kv_heads * head + at % each * block * row) as u64;
                        let page = (place * block_bytes + layer) as u64;
                        QuantisedPage { page, rows: [first; 2], slot: 0, tokens: block as u32 }
                    })
                    .collect();
                seal(&place.stream, &quantised(sizes, inside, &page, rows), &pages)?;
            } else {
                let rows = [0, sizes.keys_part()].map(|offset| Rows {
                    memory: outside,
                    offset,
                    layer: kv_heads * head,
                    head,
                    token: row,
                });
                let strips: Vec<_> = keys
                    .blocks
                    .chunks(each)
                    .enumerate()
                    .flat_map(|(sequence, blocks)| strips(blocks, block, block_bytes, sizes.keys, sequence))
                    .collect();
                let call = page.moves(sizes, inside.from(layer), rows, 1);
                copy_strips(&place.stream, Direction::Scatter, &call, &strips)?;
            }
        }
        Ok(Pool { memory: inside, page, format, sizes, tables: Words::Device(keys.tables) })
    }

    /// Bytes of K and V of one layer: codes and scales of all blocks.
    pub fn layer_bytes(&self, blocks: usize) -> usize {
        let part = |part: &crate::pages::SectionPlaces| self.sizes.kv_heads * (part.head + part.scale_head);
        blocks * self.page.parts.iter().map(part).sum::<usize>()
    }

    pub fn with_tables(self, tables: Words<'a>) -> Self {
        Pool { tables, ..self }
    }

    /// Returns the pages of a layer; the benchmark uses layers in turn.
    pub fn layer(&self, turn: usize) -> AttendKeys<'a> {
        let layers = self.sizes.pool_layers;
        let block = layers * self.page.bytes;
        let slab = PageMemory {
            memory: self.memory,
            first: turn % layers * self.page.bytes,
            page: self.page.bytes,
            block,
            blocks: self.memory.bytes() / block,
            sections: self.page.attended(self.format),
        };
        let staging = PageMemory { blocks: 0, ..slab };
        AttendKeys::Pages {
            slab,
            staging,
            block_size: self.sizes.block,
            is_rotated: [false; 2],
            tables: self.tables,
            tails: &[],
        }
    }
}

fn words<'a>(bench: &Bench<'a>, numbers: impl Iterator<Item = usize>) -> Result<Span<'a>> {
    let bytes: Vec<u8> = numbers.flat_map(|number| (number as u32).to_ne_bytes()).collect();
    let memory = bench.memory(bytes.len())?;
    bench.place.stream.upload(&bytes, memory)?;
    Ok(memory)
}
