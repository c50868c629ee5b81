//! One call of attention with the memory that it reads: what its units of work share.

use std::ops::Range;

use super::pages::{PageHeads, Pages};
use super::segment::{Scales, Segment};
use super::strided::StridedRows;
use crate::attention::call::Call;
use crate::attention::call::asked::{Asked, ROWS};
use crate::attention::call::kv_rows::ResolvedRows;
use crate::base::error::Result;
use crate::kernels::tile::TileKernels;

/// One call.
pub(super) struct Job<'a> {
    pub kernels: &'static TileKernels,
    pub asked: &'a Asked<'a>,
    pub queries: StridedRows<'a>,
    pub keys: Keys<'a>,
}

/// Where keys and values lie.
pub(super) enum Keys<'a> {
    /// In tensors or views.
    Strided {
        /// The keys.
        k: StridedRows<'a>,
        /// The values.
        v: StridedRows<'a>,
    },
    /// In pages.
    Pages(Pages<'a>),
}

/// Where some heads of keys and values lie.
#[expect(clippy::large_enum_variant, reason = "there is one for each unit, and it is not moved")]
pub(super) enum Heads {
    Strided(Range<usize>),
    Pages(PageHeads),
}

/// Some queries of one sequence, all query heads of some heads of K and V, and a share of the keys that they see.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub sequence: usize,
    /// Heads of K and V.
    pub heads: Range<usize>,
    /// The first of them within the sequence.
    pub first_query: usize,
    pub queries: usize,
    /// Which share of the keys, of how many.
    pub split: usize,
    pub splits: usize,
    /// Its place among the units whose shares are put together.
    pub group: usize,
}

impl Unit {
    /// Rows of all its heads: for each head of K and V its queries, for each of them the query heads that share that head.
    pub fn rows(&self, group: usize) -> usize {
        self.heads.len() * self.queries * group
    }

    /// The query of a row within the sequence, and its query head.
    pub fn query_and_head(&self, row: usize, group: usize) -> (usize, usize) {
        let rows = self.queries * group;
        let (head, row) = (self.heads.start + row / rows, row % rows);
        (self.first_query + row / group, head * group + row % group)
    }
}

impl<'a> Job<'a> {
    /// A call with the memory of its tensors.
    pub fn new(call: &'a Call<'_>, kernels: &'static TileKernels, memory: &[&'a [u8]]) -> Result<Self> {
        let (mut memory, rows) = (memory.iter().copied(), call.rows());
        let queries = StridedRows::new(call.queries(), rows.axes(), call.queries().bytes(&mut memory))?;
        let keys = match rows {
            ResolvedRows::Strided { k, v, axes } => Keys::Strided {
                k: StridedRows::new(k, *axes, k.bytes(&mut memory))?,
                v: StridedRows::new(v, *axes, v.bytes(&mut memory))?,
            },
            ResolvedRows::Pages(rows) => Keys::Pages(Pages {
                slab: rows.slabs.slab.pages(memory.next().unwrap_or(&[])),
                staging: rows.slabs.staging.pages(memory.next().unwrap_or(&[])),
                rows,
            }),
        };
        Ok(Job { kernels, asked: &call.asked, queries, keys })
    }

    /// True when some keys were rotated.
    pub fn is_rotated(&self) -> bool {
        matches!(&self.keys, Keys::Pages(pages) if pages.rows.slabs.shape.hadamard)
    }

    /// Heads of K and V of a unit with so many queries. Pages are read in their order, all heads of one before the next; in
    /// tensors a head has all its rows together.
    pub fn heads_max(&self, queries: usize) -> usize {
        match &self.keys {
            Keys::Strided { .. } => 1,
            Keys::Pages(_) => (ROWS / (queries * self.asked.sizes.group()).max(1)).clamp(1, self.asked.sizes.kv_heads),
        }
    }

    /// Where some heads of keys and values lie.
    pub fn heads(&self, heads: &Range<usize>) -> Heads {
        match &self.keys {
            Keys::Strided { .. } => Heads::Strided(heads.clone()),
            Keys::Pages(pages) => Heads::Pages(pages.heads(heads)),
        }
    }

    /// The rows from key `index` of a sequence on that lie at one distance.
    pub fn segment(&self, sequence: usize, heads: &Heads, index: usize) -> Segment<'_> {
        match (&self.keys, heads) {
            (Keys::Strided { k, v }, Heads::Strided(heads)) => {
                let batch = self.asked.batch(sequence);
                let index = self.asked.sequences[sequence].first_key + index;
                let (keys, values) = (k.rows(batch, heads.clone(), index), v.rows(batch, heads.clone(), index));
                let count = keys.count.min(values.count);
                Segment {
                    keys: keys.part(0, count),
                    values: values.part(0, count),
                    key_scales: Scales::ONE,
                    value_scales: Scales::ONE,
                    rotated: false,
                }
            }
            (Keys::Pages(pages), Heads::Pages(heads)) => pages.segment(heads, sequence, index),
            _ => unreachable!("heads of these keys"),
        }
    }
}
