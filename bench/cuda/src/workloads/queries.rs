//! Runs queries over keys that are contiguous or in blocks, and checks some of their outputs.

use kvtide_cuda::{
    Attend, AttendKeys, AttendRules, AttendSequence, AttendSizes, AttendStem, HeadRows, RowFormat, Span, attend,
};

use super::Bench;
use crate::Result;
use crate::check;
use crate::numbers::{fill, floats};
use crate::sizes::Sizes;

/// The factor of queries, so that few keys have most of the weight and outputs aren't averages of all values.
const QUERY_MOST: f32 = 8.0;

/// Queries of sequences and their outputs, `[tokens, heads, dim]`, or `[batch, heads, n, dim]` over contiguous keys.
pub struct Queries<'a> {
    bench: Bench<'a>,
    rows: Span<'a>,
    out: Span<'a>,
    sums: Span<'a>,
    sequences: Vec<AttendSequence>,
    stems: Vec<AttendStem>,
    each: usize,
}

impl<'a> Queries<'a> {
    /// Queries of the last `each` tokens of the first `count` sequences.
    pub fn new(bench: &Bench<'a>, count: usize, each: usize) -> Result<Self> {
        let Bench { place, sizes, .. } = *bench;
        let heads = count * each * sizes.query_heads;
        let (rows, out) = (bench.memory(heads * sizes.row())?, bench.memory(heads * sizes.row())?);
        fill(place, rows, 12, QUERY_MOST)?;
        let of = |sequence: usize| AttendSequence {
            first_query: sequence * each,
            queries: each,
            first_key: 0,
            table: sequence * sizes.keys / sizes.block,
            keys: [(0, sizes.keys), (sizes.keys as i64, 0)],
            start: i64::MIN,
            tail: None,
            nodes: 0,
            first_node: 0,
            tree: [0; 2],
        };
        let sums = bench.memory(heads * 4)?;
        let sequences = (0..count).map(of).collect();
        Ok(Queries { bench: *bench, rows, out, sums, sequences, stems: Vec::new(), each })
    }

    /// One query for each sequence, over the blocks of the first one, which are read once for all sequences, or for
    /// each.
    pub fn sharing(mut self, is_stem: bool) -> Self {
        self.sequences.iter_mut().for_each(|of| of.table = 0);
        let keys = self.bench.sizes.keys.saturating_sub(1) / AttendStem::GRAIN * AttendStem::GRAIN;
        if is_stem && keys > 0 {
            let all = 0..self.sequences.len();
            let members = all.clone().map(|sequence| (sequence, sequence)).collect();
            let queries = all.map(|sequence| [0, sequence as u32]).collect();
            self.stems.push(AttendStem { sequence: 0, keys, members, queries, positions: Vec::new() });
        }
        self
    }

    pub fn attend(&self, keys: AttendKeys<'_>) -> Result<()> {
        let Bench { place, sizes, .. } = self.bench;
        let (row, heads) = (sizes.row(), sizes.query_heads);
        let is_ragged = matches!(keys, AttendKeys::Pages { .. });
        let (batch, head, token, count) = match is_ragged {
            true => (0, row, heads * row, self.each * self.sequences.len()),
            false => (heads * self.each * row, self.each * row, row, self.each),
        };
        let pieces = [(0, count), (count * token, 0)];
        let call = Attend {
            queries: HeadRows { memory: self.rows, format: RowFormat::Bf16, pieces, batch, head, token },
            sizes: AttendSizes {
                query_heads: heads,
                kv_heads: sizes.kv_heads,
                dim: sizes.dim,
                value_dim: sizes.dim,
                is_ragged,
            },
            rules: AttendRules::causal(1.0 / (sizes.dim as f32).sqrt()),
            keys,
            sequences: &self.sequences,
            stems: &self.stems,
            trees: None,
            mask: None,
            positions: None,
            out: self.out,
            lse: self.sums,
        };
        match attend(&place.stream, &call)? {
            true => Ok(()),
            false => Err("the rows are too wide for the kernels".into()),
        }
    }

    /// Compares some outputs of the last call with a plain loop over the contiguous keys.
    pub fn check(&self, what: &str, rows: Span<'_>, is_ragged: bool, most: f64) -> Result<()> {
        let Bench { place, sizes, .. } = self.bench;
        let Sizes { kv_heads, query_heads, dim, keys, .. } = *sizes;
        let (row, last) = (sizes.row(), self.each - 1);
        let count = self.sequences.len();
        for (sequence, head, query) in
            [(0, 0, 0), (count / 2, query_heads / 2, last), (count - 1, query_heads - 1, last / 2)]
        {
            let at = match is_ragged {
                true => (sequence * self.each + query) * query_heads + head,
                false => (sequence * query_heads + head) * self.each + query,
            };
            let seen = keys - last + query;
            let first = (sequence * kv_heads + head * kv_heads / query_heads) * keys * row;
            let [k, v] = [first, sizes.keys_part() + first].map(|start| check::bytes(place, rows, start, seen * row));
            let expected = check::attended(&check::bytes(place, self.rows, at * row, row)?, &k?, &v?, dim);
            check::near(what, &floats(&check::bytes(place, self.out, at * row, row)?), &expected, most)?;
        }
        Ok(())
    }
}
