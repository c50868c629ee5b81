//! The arguments of attention in plain numbers: the places of queries, keys and values, and the rules of attention.

use crate::span::Span;

/// The format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RowFormat {
    /// 32-bit floats.
    F32,
    /// Half floats.
    F16,
    /// Half floats with the range of f32.
    Bf16,
    /// 8-bit floats.
    F8E4M3,
    /// Bytes, with a scale for each row.
    Q8,
    /// Nibbles, with a scale and a minimum for each row of V, and for each channel of K in a page.
    Q4,
}

impl RowFormat {
    /// The bytes of a row's codes.
    #[must_use]
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            RowFormat::F32 => 4 * dim,
            RowFormat::F16 | RowFormat::Bf16 => 2 * dim,
            RowFormat::F8E4M3 | RowFormat::Q8 => dim,
            RowFormat::Q4 => dim.div_ceil(2),
        }
    }

    /// The bytes of the scales of a head of a page.
    pub(super) fn scale_bytes(self, part: usize, slots: usize, dim: usize) -> usize {
        match (self, part) {
            (RowFormat::Q8, _) => 2 * slots,
            (RowFormat::Q4, 0) => 4 * dim,
            (RowFormat::Q4, _) => 4 * slots,
            _ => 0,
        }
    }

    /// True if codes need scales or conversion.
    pub(super) fn is_low_bit(self) -> bool {
        matches!(self, RowFormat::F8E4M3 | RowFormat::Q8 | RowFormat::Q4)
    }
}

/// Equidistant rows, in one piece or the two runs of a view; distances in bytes.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// Their memory.
    pub memory: Span<'a>,
    /// Their format: floats.
    pub format: RowFormat,
    /// The offset of the first byte, and the number of rows, of each piece.
    pub pieces: [(usize, usize); 2],
    /// The distance from one sequence to the next; 0 if all are in one list.
    pub batch: usize,
    /// The distance from one head to the next.
    pub head: usize,
    /// The distance from one token to the next.
    pub token: usize,
}

/// The places of K or V in a page, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct PageSection {
    /// The format of its rows.
    pub format: RowFormat,
    /// The offset of the first head's codes.
    pub codes: usize,
    /// The distance from one head's codes to the next.
    pub head: usize,
    /// The offset of the first head's scales.
    pub scales: usize,
    /// The distance from one head's scales to the next.
    pub scale_head: usize,
}

/// Pages of one layer.
#[derive(Clone, Copy, Debug)]
pub struct PageMemory<'a> {
    /// The blocks.
    pub memory: Span<'a>,
    /// The offset of the layer's page in the first block.
    pub first: usize,
    /// The bytes of a page.
    pub page: usize,
    /// The distance from one block to the next.
    pub block: usize,
    /// The number of blocks.
    pub blocks: usize,
    /// K and V.
    pub sections: [PageSection; 2],
}

/// 32-bit numbers in host memory, or in device memory that a launch reads when it runs.
#[derive(Clone, Copy, Debug)]
pub enum Words<'a> {
    /// Host memory: the numbers are passed with the call.
    Host(&'a [u32]),
    /// Device memory, which the launch reads when it runs.
    Device(Span<'a>),
}

/// Keys and values, in place.
#[derive(Clone, Copy, Debug)]
pub enum AttendKeys<'a> {
    /// In tensors and views.
    Rows {
        /// The keys.
        k: HeadRows<'a>,
        /// The values.
        v: HeadRows<'a>,
    },
    /// In pages.
    Pages {
        /// The pages of the slab.
        slab: PageMemory<'a>,
        /// The pages of the staging slab: the same rows as floats. Table entries with [`STAGED`] refer to them.
        staging: PageMemory<'a>,
        /// The number of tokens in a block.
        block_size: usize,
        /// True for keys, and for values, that were rotated in the slab.
        is_rotated: [bool; 2],
        /// The blocks of all sequences.
        tables: Words<'a>,
        /// Entries that replace the last ones of sequences, because they differ from layer to layer.
        tails: &'a [u32],
    },
}

/// The flag of a table entry that refers to the staging slab.
pub const STAGED: u32 = 1 << 31;

/// The queries and keys of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct AttendSequence {
    /// The index of its first query in the list of all queries.
    pub first_query: usize,
    /// The number of its queries.
    pub queries: usize,
    /// The index of its first key in the list of all keys, if there is one list.
    pub first_key: usize,
    /// The index of its first block in the tables.
    pub table: usize,
    /// If some of its entries are in the tails: the index of the first of these blocks, and its place there.
    pub tail: Option<(usize, usize)>,
    /// The first position and the number of keys of its one or two runs.
    pub keys: [(i64, usize); 2],
    /// The first position that is not padding.
    pub start: i64,
    /// The number of nodes of its tree, 0 without a tree: the nodes are its last keys.
    pub nodes: usize,
    /// The node of its first query; below 0 if that query is before the tree.
    pub first_node: i64,
    /// The index of its first node in the depths of all trees, and in the words of their bits.
    pub tree: [usize; 2],
}

impl AttendSequence {
    /// The number of keys.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys[0].1 + self.keys[1].1
    }
}

/// A prefix that several sequences of pages share, read once for all of them: all their queries attend to all of it.
#[derive(Clone, Debug)]
pub struct AttendStem {
    /// The sequence whose blocks are read.
    pub sequence: usize,
    /// The number of keys: a multiple of [`AttendStem::GRAIN`].
    pub keys: usize,
    /// The member sequences, and the index of each one's first query among those of the stem.
    pub members: Vec<(usize, usize)>,
    /// The queries of all members: the batch row and the token of each, as in the rows of queries.
    pub queries: Vec<[u32; 2]>,
    /// The position of each of these queries; may be empty without slopes.
    pub positions: Vec<i64>,
}

impl AttendStem {
    /// The keys of the largest tile: stems end at tile boundaries.
    pub const GRAIN: usize = 64;
}

/// A mask of 32-bit floats that are added to scores.
#[derive(Clone, Copy, Debug)]
pub struct AttendMask<'a> {
    /// Its memory.
    pub memory: Span<'a>,
    /// The distances in bytes along sequence, query head, query and key.
    pub strides: [usize; 4],
}

/// The ancestors in the drafts of all sequences, one tree after the other.
#[derive(Clone, Copy, Debug)]
pub struct AttendTrees<'a> {
    /// The depth of each node, counted from the tokens before the draft.
    pub depths: &'a [u32],
    /// For each node the words of its bits, one bit for each node that it attends to.
    pub seen: &'a [u64],
}

/// The sizes that all sequences of a call share.
#[derive(Clone, Copy, Debug)]
pub struct AttendSizes {
    /// The number of query heads: a multiple of the number of KV heads.
    pub query_heads: usize,
    /// The number of KV heads.
    pub kv_heads: usize,
    /// The number of elements in a row of queries and keys.
    pub dim: usize,
    /// The number of elements in a row of values.
    pub value_dim: usize,
    /// True if queries and output are `[tokens, heads, dim]`, false for `[batch, heads, n, dim]`.
    pub is_ragged: bool,
}

impl AttendSizes {
    /// The number of query heads that share one KV head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// The number of elements in a row of queries and keys, and in a row of values.
    pub(super) fn dims(&self) -> [usize; 2] {
        [self.dim, self.value_dim]
    }
}

/// The rules of attention in a call.
#[derive(Clone, Copy, Debug)]
pub struct AttendRules<'a> {
    /// True if a query attends only to keys up to its own position.
    pub is_causal: bool,
    /// The number of positions back that a query attends to, including its own.
    pub window: Option<i64>,
    /// The number of positions at the start that a window does not hide.
    pub sinks: i64,
    /// One further score for each query head, without a value.
    pub sink_logits: Option<&'a [f32]>,
    /// One slope for each query head: slope times (key position - query position) is added to scores.
    pub alibi_slopes: Option<&'a [f32]>,
    /// The factor of the products.
    pub scale: f32,
    /// Caps scores to `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
}

impl AttendRules<'_> {
    /// Rules under which a query attends to every key up to its own position, with products multiplied by `scale`.
    #[must_use]
    pub const fn causal(scale: f32) -> Self {
        AttendRules {
            is_causal: true,
            window: None,
            sinks: 0,
            sink_logits: None,
            alibi_slopes: None,
            scale,
            softcap: None,
        }
    }
}

/// An attention call.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// The queries.
    pub queries: HeadRows<'a>,
    /// The sizes of all sequences.
    pub sizes: AttendSizes,
    /// The rules of attention.
    pub rules: AttendRules<'a>,
    /// Keys and values.
    pub keys: AttendKeys<'a>,
    /// The sequences.
    pub sequences: &'a [AttendSequence],
    /// Prefixes that some of them share; each sequence is in at most one.
    pub stems: &'a [AttendStem],
    /// The trees of drafts.
    pub trees: Option<AttendTrees<'a>>,
    /// The mask that is added to scores.
    pub mask: Option<AttendMask<'a>>,
    /// The position of each query, or of the queries of every sequence alike.
    pub positions: Option<&'a [i64]>,
    /// The output: rows of values in the queries' format.
    pub out: Span<'a>,
    /// The logarithm of each row's sum, `[tokens, query heads]`.
    pub lse: Span<'a>,
}
