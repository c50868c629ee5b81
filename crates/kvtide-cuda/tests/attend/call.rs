//! A call on memory that a test has filled, and the same call with the reference.

use kvtide_cuda::{PageSection, RowFormat};

use crate::numbers::{Numbers, decode, encode, rotated};
use crate::oracle::Naive;
use crate::page::Page;

/// The place of keys and values.
#[derive(Clone, Debug)]
pub enum Keys {
    /// In one list, cut in two pieces so many rows before its end.
    Rows { second: usize },
    /// In pages, the last ones of each sequence staged.
    Pages { block_size: usize, formats: [Option<RowFormat>; 2], is_rotated: [bool; 2], staged: usize },
}

#[derive(Clone, Debug)]
pub struct Call {
    pub seed: u64,
    /// Queries and keys of each sequence.
    pub sequences: Vec<(usize, usize)>,
    pub kv_heads: usize,
    pub group: usize,
    pub dims: [usize; 2],
    pub is_ragged: bool,
    pub query: RowFormat,
    pub formats: [RowFormat; 2],
    pub keys: Keys,
    pub is_causal: bool,
    pub window: Option<i64>,
    pub sinks: i64,
    pub softcap: Option<f32>,
    pub has_logits: bool,
    pub has_slopes: bool,
    /// The last keys of each sequence are the nodes of a draft.
    pub has_trees: bool,
    /// Queries stand anywhere.
    pub has_positions: bool,
    /// The first keys are padding.
    pub has_starts: bool,
    /// The key from which on positions are higher, and by how much: the positions between were dropped.
    pub gap: [usize; 2],
    /// Along which axes a mask is broadcast, a bit each; none: no mask.
    pub mask: Option<u32>,
    /// The tables are in device memory.
    pub has_device_tables: bool,
    pub has_wrong_block: bool,
    /// The key whose values are no numbers, in a list of all keys.
    pub bad_value: Option<usize>,
    /// Elements between a multiple of 16 bytes and the output.
    pub out_skew: usize,
}

impl Default for Call {
    fn default() -> Self {
        Call {
            seed: 1,
            sequences: vec![(1, 1)],
            kv_heads: 1,
            group: 1,
            dims: [64; 2],
            is_ragged: true,
            query: RowFormat::F32,
            formats: [RowFormat::F32; 2],
            keys: Keys::Rows { second: 0 },
            is_causal: true,
            window: None,
            sinks: 0,
            softcap: None,
            has_logits: false,
            has_slopes: false,
            has_trees: false,
            has_positions: false,
            has_starts: false,
            gap: [0; 2],
            mask: None,
            has_device_tables: false,
            has_wrong_block: false,
            bad_value: None,
            out_skew: 0,
        }
    }
}

/// K or V of all tokens as numbers, and in memory.
pub struct Side {
    /// The numbers of each sequence, head and key.
    pub numbers: Vec<Vec<Vec<Vec<f64>>>>,
    /// Rows, or pages of the slab and of the staging slab.
    pub memory: [Vec<u8>; 2],
}

impl Call {
    /// The same with sizes and formats that go together.
    pub fn settled(mut self) -> Self {
        if !self.is_ragged {
            let first = self.sequences[0];
            self.sequences.fill(first);
        }
        self.formats = [self.query; 2];
        let keys = if self.is_ragged { self.key_count() } else { self.sequences[0].1 };
        match &mut self.keys {
            Keys::Pages { formats, is_rotated, staged, .. } => {
                self.is_ragged = true;
                let low_bit = formats.map(|format| format.is_some());
                *is_rotated = [is_rotated[0] && low_bit[0], is_rotated[1] && low_bit[1]];
                *staged = if formats.iter().any(Option::is_some) { *staged } else { 0 };
                self.formats = formats.map(|format| format.unwrap_or(self.query));
            }
            Keys::Rows { second } => *second = (*second).min(keys),
        }
        if self.sequences.iter().any(|of| of.0 != self.sequences[0].0) {
            self.mask = None;
        }
        self
    }

    pub fn key_count(&self) -> usize {
        self.sequences.iter().map(|of| of.1).sum()
    }

    pub fn query_heads(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Blocks of a sequence, and from which on they are staged.
    pub fn blocks(&self, keys: usize) -> (usize, usize) {
        let Keys::Pages { block_size, staged, .. } = &self.keys else { return (0, 0) };
        let blocks = keys.div_ceil(*block_size);
        (blocks, blocks - blocks.min(*staged))
    }

    /// The slope of each head: the farthest key loses little.
    pub fn slopes(&self) -> Vec<f32> {
        let keys = self.sequences.iter().map(|of| of.1).max().unwrap_or(0) + self.gap[1];
        (0..self.query_heads()).map(|head| [4.0, -2.0, 1.0, 0.0, 3.0][head % 5] / (keys + 8) as f32).collect()
    }

    pub fn queries(&self) -> Vec<f32> {
        let count: usize = self.sequences.iter().map(|of| of.0).sum();
        Numbers::new(self.seed).take(count * self.query_heads() * self.dims[0])
    }

    /// The row of a query and head in memory: queries of a batch lie head by head.
    fn query_row(&self, sequence: usize, query: usize, head: usize) -> usize {
        let before: usize = self.sequences[..sequence].iter().map(|of| of.0).sum();
        match self.is_ragged {
            true => (before + query) * self.query_heads() + head,
            false => (before * self.query_heads()) + head * self.sequences[sequence].0 + query,
        }
    }

    pub fn side(&self, part: usize) -> Side {
        match &self.keys {
            Keys::Rows { .. } => self.side_of_rows(part),
            Keys::Pages { .. } => self.side_of_pages(part),
        }
    }

    fn side_of_rows(&self, part: usize) -> Side {
        let mut numbers = Numbers::new(self.seed ^ (part as u64 + 7));
        let (dim, format) = (self.dims[part], self.formats[part]);
        let plain = |_: usize| [1.0, 0.0];
        let (mut all, mut memory) = (Vec::new(), Vec::new());
        for &(_, keys) in &self.sequences {
            let mut heads = vec![Vec::new(); self.kv_heads];
            let rows = if self.is_ragged { (keys, self.kv_heads) } else { (self.kv_heads, keys) };
            for place in 0..rows.0 * rows.1 {
                let head = if self.is_ragged { place % self.kv_heads } else { place / keys };
                let codes = encode(format, &numbers.take(dim), &plain);
                heads[head].push(decode(format, &codes, dim, &plain));
                memory.extend(codes);
            }
            all.push(heads);
        }
        if let Some(key) = self.bad_value.filter(|_| part == 1) {
            let row = self.kv_heads * format.row_bytes(dim);
            memory[key * row..(key + 1) * row].fill(0xff);
        }
        Side { numbers: all, memory: [memory, Vec::new()] }
    }

    pub fn section(&self, part: usize, is_staged: bool) -> PageSection {
        let Keys::Pages { block_size, formats, .. } = &self.keys else { unreachable!("a section of pages") };
        let layout = |part: usize, start: usize| {
            let format = if is_staged { self.query } else { formats[part].unwrap_or(self.query) };
            let head = format.row_bytes(self.dims[part]) * block_size;
            let scales = (start + head * self.kv_heads).next_multiple_of(64);
            let scale_head = 4 * self.dims[part].max(*block_size);
            let end = (scales + scale_head * self.kv_heads).next_multiple_of(64);
            (PageSection { format, codes: start, head, scales, scale_head }, end)
        };
        let (key, end) = layout(0, 0);
        if part == 0 { key } else { layout(1, end).0 }
    }

    pub fn page_bytes(&self, is_staged: bool) -> usize {
        let value = self.section(1, is_staged);
        (value.scales + value.scale_head * self.kv_heads).next_multiple_of(64)
    }

    fn side_of_pages(&self, part: usize) -> Side {
        let Keys::Pages { block_size, is_rotated, .. } = &self.keys else { unreachable!("pages") };
        let mut numbers = Numbers::new(self.seed ^ (part as u64 + 7));
        let dim = self.dims[part];
        let mut memory = [Vec::new(), Vec::new()];
        let mut all = Vec::new();
        for &(_, keys) in &self.sequences {
            let mut heads = vec![Vec::new(); self.kv_heads];
            let (blocks, staged) = self.blocks(keys);
            for block in 0..blocks {
                let is_staged = block >= staged;
                let section = self.section(part, is_staged);
                let pages = &mut memory[usize::from(is_staged)];
                let start = pages.len();
                pages.resize(start + self.page_bytes(is_staged), 0xff);
                for (head, rows) in heads.iter_mut().enumerate() {
                    let of = Page { section, part, dim, head, start, block_size: *block_size };
                    for row in of.fill(pages, &mut numbers).into_iter().take(keys - block * block_size) {
                        // What low-bit rows hold is rotated: they stand for what they are rotated back to.
                        let back = is_rotated[part] && !is_staged;
                        rows.push(if back { rotated(&row) } else { row });
                    }
                }
            }
            all.push(heads);
        }
        Side { numbers: all, memory }
    }

    /// The same from the oracle.
    pub fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let queries = self.queries();
        let plain = |_: usize| [1.0, 0.0];
        let [keys, values] = [0, 1].map(|part| self.side(part).numbers);
        let logits = Numbers::new(self.seed ^ 99).take(self.query_heads());
        let count: usize = self.sequences.iter().map(|of| of.0).sum();
        let (mut out, mut sums) =
            (vec![0.0; count * self.query_heads() * self.dims[1]], vec![0.0; count * self.query_heads()]);
        let (rules, mut token) = (self.rules(), 0);
        for (sequence, &(of, _)) in self.sequences.iter().enumerate() {
            for query in 0..of {
                for head in 0..self.query_heads() {
                    let row = self.query_row(sequence, query, head);
                    let codes = encode(self.query, &queries[row * self.dims[0]..(row + 1) * self.dims[0]], &plain);
                    let naive = Naive {
                        keys: &keys[sequence][head / self.group],
                        values: &values[sequence][head / self.group],
                        added: &|key| rules.added([sequence, head, query, key]),
                        scale: f64::from(1.0 / (self.dims[0] as f32).sqrt()),
                        softcap: self.softcap.map(f64::from),
                        logit: self.has_logits.then(|| f64::from(logits[head])),
                    };
                    let (values, sum) = naive.attend(&decode(self.query, &codes, self.dims[0], &plain), self.dims[1]);
                    out[row * self.dims[1]..][..self.dims[1]].copy_from_slice(&values);
                    sums[token * self.query_heads() + head] = sum;
                }
                token += 1;
            }
        }
        (out, sums)
    }
}
