//! A call by the kernels: its memory, its tables, its launch.

use kvtide_cuda::{
    Attend, AttendKeys, AttendMask, AttendRules, AttendSequence, AttendSizes, AttendTrees, HeadRows, PageMemory,
    RowFormat, STAGED, Span, Words, attend,
};

use crate::call::{Call, Keys, Side};
use crate::numbers::{Numbers, decode, encode};
use crate::place::{Memory, stream};

impl Call {
    /// The output's rows and the logarithms of their sums, as the kernels give them.
    pub fn run(&self) -> (Vec<f64>, Vec<f64>) {
        let plain = |_: usize| [1.0, 0.0];
        let query_bytes: Vec<u8> =
            self.queries().chunks(self.dims[0]).flat_map(|row| encode(self.query, row, &plain)).collect();
        let sides = [0, 1].map(|part| self.side(part));
        let memory = sides.each_ref().map(|side| side.memory.each_ref().map(|bytes| Memory::new(bytes, 0)));
        // K and V of pages lie in the same ones: both sides are put together.
        let pages = [0, 1].map(|slab| Memory::new(&self.together(slab, &sides), 0));
        let tables = self.tables();
        let (logits, slopes) = (Numbers::new(self.seed ^ 99).take(self.query_heads()), self.slopes());
        let queries = Memory::new(&query_bytes, 0);
        let mut sequences = self.attend_sequences();
        let rules = self.rules();
        let (depths, seen) = rules.trees(&mut sequences);
        let mask_at = rules.mask.as_ref().map(|mask| Memory::new(bytemuck::cast_slice(&mask.values), 0));
        let rows = query_bytes.len() / self.query.row_bytes(self.dims[0]).max(1);
        let stream = stream();
        let out_bytes = rows * self.query.row_bytes(self.dims[1]);
        // What no kernel writes is no number.
        let skew = self.out_skew * self.query.row_bytes(1);
        let [mut out, mut sums] =
            [(out_bytes, skew), (4 * rows, 0)].map(|(bytes, skew)| Memory::new(&vec![0xff; bytes], skew));
        let tails = self.tails();
        // Entries in whose place there are others are not looked at.
        let unread = |&entry: &u32| if entry >> 31 == 1 { !STAGED } else { entry };
        let listed: Vec<u32> = tables.iter().map(unread).collect();
        let listed_at = Memory::new(bytemuck::cast_slice(&listed), 0);
        let tables = if self.has_device_tables { Words::Device(listed_at.span()) } else { Words::Host(&listed) };
        let keys = self.attend_keys(&memory, &pages, tables, &tails);
        let call = Attend {
            queries: self.head_rows(queries.span(), self.query, self.dims[0], self.query_heads(), true),
            sizes: AttendSizes {
                query_heads: self.query_heads(),
                kv_heads: self.kv_heads,
                dim: self.dims[0],
                value_dim: self.dims[1],
                is_ragged: self.is_ragged,
            },
            rules: AttendRules {
                is_causal: self.is_causal,
                window: self.window,
                sinks: self.sinks,
                sink_logits: self.has_logits.then_some(&logits[..]),
                alibi_slopes: self.has_slopes.then_some(&slopes[..]),
                scale: 1.0 / (self.dims[0] as f32).sqrt(),
                softcap: self.softcap,
            },
            keys,
            sequences: &sequences,
            stems: &[],
            trees: self.has_trees.then_some(AttendTrees { depths: &depths, seen: &seen }),
            mask: mask_at.as_ref().zip(rules.mask.as_ref()).map(|(memory, mask)| AttendMask {
                memory: memory.span(),
                strides: mask.strides.map(|stride| 4 * stride),
            }),
            positions: self.has_positions.then_some(&rules.positions[..]),
            out: out.span_mut(),
            lse: sums.span_mut(),
        };
        assert!(attend(&stream, &call).unwrap(), "a call for kernels");
        let (out_bytes, sum_bytes) = (out.bytes(), sums.bytes());
        let width = self.query.row_bytes(self.dims[1]);
        let values = out_bytes.chunks(width).flat_map(|row| decode(self.query, row, self.dims[1], &plain)).collect();
        (values, decode(RowFormat::F32, &sum_bytes, rows, &plain))
    }

    /// Blocks a sequence has room for in the tables.
    fn room(&self) -> usize {
        let Keys::Pages { block_size, .. } = &self.keys else { return 0 };
        self.sequences.iter().map(|of| of.1).max().unwrap_or(0).div_ceil(*block_size)
    }

    fn tables(&self) -> Vec<u32> {
        let mut tables = vec![0; self.room() * self.sequences.len()];
        let mut next = [0, 0];
        for (sequence, &(_, keys)) in self.sequences.iter().enumerate() {
            let (blocks, staged) = self.blocks(keys);
            for block in 0..blocks {
                let slab = usize::from(block >= staged);
                tables[sequence * self.room() + block] = next[slab] | if slab == 1 { STAGED } else { 0 };
                next[slab] += 1;
            }
        }
        if self.has_wrong_block {
            tables[0] = 1 << 20;
        }
        tables
    }

    /// The entries of staged blocks of all sequences.
    fn tails(&self) -> Vec<u32> {
        self.tables().into_iter().filter(|entry| entry >> 31 == 1).collect()
    }

    fn together(&self, slab: usize, sides: &[Side; 2]) -> Vec<u8> {
        let mut bytes = sides[0].memory[slab].clone();
        if let Keys::Pages { .. } = self.keys {
            let (start, page) = (self.section(1, slab == 1).codes, self.page_bytes(slab == 1));
            for (to, from) in bytes.chunks_mut(page).zip(sides[1].memory[slab].chunks(page)) {
                to[start..].copy_from_slice(&from[start..]);
            }
        }
        bytes
    }

    fn attend_sequences(&self) -> Vec<AttendSequence> {
        let (mut first_query, mut first_key, mut tails) = (0, 0, 0);
        let of = |(index, &(queries, keys)): (usize, &(usize, usize))| {
            let (blocks, staged) = self.blocks(keys);
            let tail = (staged < blocks).then_some((staged, tails));
            tails += blocks - staged;
            let of = AttendSequence {
                first_query,
                queries,
                first_key: if self.is_ragged { first_key } else { 0 },
                table: index * self.room(),
                keys: self.runs(keys),
                start: self.start(index),
                tail,
                nodes: 0,
                first_node: 0,
                tree: [0; 2],
            };
            first_query += queries;
            first_key += keys;
            of
        };
        self.sequences.iter().enumerate().map(of).collect()
    }

    /// The positions of keys: two runs if keys between them were dropped.
    fn runs(&self, keys: usize) -> [(i64, usize); 2] {
        let [from, by] = self.gap;
        if by == 0 {
            return [(0, keys), (keys as i64, 0)];
        }
        let first = from.min(keys);
        [(0, first), ((from + by) as i64, keys - first)]
    }

    fn head_rows<'a>(
        &self,
        memory: Span<'a>,
        format: RowFormat,
        dim: usize,
        heads: usize,
        queries: bool,
    ) -> HeadRows<'a> {
        let row = format.row_bytes(dim);
        let pick = |of: &(usize, usize)| if queries { of.0 } else { of.1 };
        let all: usize = self.sequences.iter().map(pick).sum();
        let each = pick(&self.sequences[0]);
        let (batch, head, token, count) =
            if self.is_ragged { (0, row, heads * row, all) } else { (heads * each * row, each * row, row, each) };
        let second = match &self.keys {
            Keys::Rows { second } if !queries => *second,
            _ => 0,
        };
        let first = count - second;
        HeadRows { memory, format, pieces: [(0, first), (first * token, second)], batch, head, token }
    }

    fn attend_keys<'a>(
        &self,
        rows: &'a [[Memory; 2]; 2],
        pages: &'a [Memory; 2],
        tables: Words<'a>,
        tails: &'a [u32],
    ) -> AttendKeys<'a> {
        let of = |part: usize| {
            self.head_rows(rows[part][0].span(), self.formats[part], self.dims[part], self.kv_heads, false)
        };
        let Keys::Pages { block_size, is_rotated, .. } = &self.keys else {
            return AttendKeys::Rows { k: of(0), v: of(1) };
        };
        let slab = |slab: usize| {
            let page = self.page_bytes(slab == 1);
            // Places behind the blocks of a sequence are 0 in the table, and no block of the slab.
            let own = self.sequences.iter().map(|of| self.blocks(of.1));
            let used = match slab {
                0 if self.has_wrong_block => 3,
                0 => own.map(|(_, staged)| staged).sum(),
                _ => own.map(|(blocks, staged)| blocks - staged).sum(),
            };
            let blocks = if pages[slab].span().bytes() > 0 { used } else { 0 };
            PageMemory {
                memory: pages[slab].span(),
                first: 0,
                page,
                block: page,
                blocks,
                sections: [0, 1].map(|part| self.section(part, slab == 1)),
            }
        };
        AttendKeys::Pages {
            slab: slab(0),
            staging: slab(1),
            block_size: *block_size,
            is_rotated: *is_rotated,
            tables,
            tails,
        }
    }
}
