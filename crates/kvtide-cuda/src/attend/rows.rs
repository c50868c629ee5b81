//! Where attention finds its queries, keys and values, and who sees whom: what a caller says, in plain numbers.

use crate::span::Span;

/// What rows are made of.
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
    /// Bytes, and a scale for each row.
    Q8,
    /// Nibbles; a scale and a minimum for each row of V, for each channel of K in a page.
    Q4,
}

impl RowFormat {
    /// Bytes of a row's codes.
    #[must_use]
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            RowFormat::F32 => 4 * dim,
            RowFormat::F16 | RowFormat::Bf16 => 2 * dim,
            RowFormat::F8E4M3 | RowFormat::Q8 => dim,
            RowFormat::Q4 => dim.div_ceil(2),
        }
    }

    /// Bytes of the scales of a head of a page.
    pub(super) fn scale_bytes(self, part: usize, slots: usize, dim: usize) -> usize {
        match (self, part) {
            (RowFormat::Q8, _) => 2 * slots,
            (RowFormat::Q4, 0) => 4 * dim,
            (RowFormat::Q4, _) => 4 * slots,
            _ => 0,
        }
    }

    /// True where codes are not numbers by themselves.
    pub(super) fn is_low_bit(self) -> bool {
        matches!(self, RowFormat::F8E4M3 | RowFormat::Q8 | RowFormat::Q4)
    }
}

/// Rows at one distance, in one piece or the two runs of a view; distances in bytes.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// Their memory.
    pub memory: Span<'a>,
    /// What they are made of: floats.
    pub format: RowFormat,
    /// The first byte and the rows of each piece.
    pub pieces: [(usize, usize); 2],
    /// From a sequence to the next; 0 where all lie in one list.
    pub batch: usize,
    /// From a head to the next.
    pub head: usize,
    /// From a token to the next.
    pub token: usize,
}

/// K or V in a page, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct PageSection {
    /// What its rows are made of.
    pub format: RowFormat,
    /// The first head's codes.
    pub codes: usize,
    /// From a head's codes to the next.
    pub head: usize,
    /// The first head's scales.
    pub scales: usize,
    /// From a head's scales to the next.
    pub scale_head: usize,
}

/// Pages of one layer.
#[derive(Clone, Copy, Debug)]
pub struct PageMemory<'a> {
    /// The blocks.
    pub memory: Span<'a>,
    /// The layer's page in the first block.
    pub first: usize,
    /// Bytes of a page.
    pub page: usize,
    /// From a block to the next.
    pub block: usize,
    /// How many blocks.
    pub blocks: usize,
    /// K and V.
    pub sections: [PageSection; 2],
}

/// Numbers of 32 bits: the host's, or a device's that a launch reads when it runs.
#[derive(Clone, Copy, Debug)]
pub enum Words<'a> {
    /// The host's: they are handed along.
    Host(&'a [u32]),
    /// A device's, so that a launch that is repeated sees what was written there since.
    Device(Span<'a>),
}

/// Keys and values, where they lie.
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
        /// Of the slab.
        slab: PageMemory<'a>,
        /// Of the staging slab: the same rows as floats. Entries of tables with [`STAGED`] name them.
        staging: PageMemory<'a>,
        /// Tokens of a block.
        block_size: usize,
        /// Keys of the slab were rotated.
        is_rotated: bool,
        /// The blocks of all sequences.
        tables: Words<'a>,
        /// Entries in the place of the last ones of sequences: what differs from layer to layer.
        tails: &'a [u32],
    },
}

/// What marks the block of a table as one of the staging slab.
pub const STAGED: u32 = 1 << 31;

/// The queries and keys of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct AttendSequence {
    /// Its first query in the list of all.
    pub first_query: usize,
    /// How many.
    pub queries: usize,
    /// Its first key in the list of all, where there is one.
    pub first_key: usize,
    /// Where its blocks begin in the tables.
    pub table: usize,
    /// From which of its blocks on, if any, entries are in the tails, and where there.
    pub tail: Option<(usize, usize)>,
    /// Where the keys of its one or two runs stand, and how many each has.
    pub keys: [(i64, usize); 2],
    /// The first position that is no padding.
    pub start: i64,
    /// The nodes of its tree, 0 where it has none: its last keys, the last of them its queries.
    pub nodes: usize,
    /// Where its nodes begin in the depths of all trees, and in the words of their bits.
    pub tree: [usize; 2],
}

impl AttendSequence {
    /// How many keys.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys[0].1 + self.keys[1].1
    }
}

/// What several sequences of pages begin with, read once for all of them: every query of theirs sees all of it.
#[derive(Clone, Debug)]
pub struct AttendStem {
    /// The sequence whose blocks are read.
    pub sequence: usize,
    /// How many keys: a multiple of [`AttendStem::GRAIN`].
    pub keys: usize,
    /// The sequences, and the place of the first query of each among those of the stem.
    pub members: Vec<(usize, usize)>,
    /// The queries of all members: the batch of each and its token there, as rows of queries have them.
    pub queries: Vec<[u32; 2]>,
}

impl AttendStem {
    /// Keys of the largest tile: a stem ends where tiles do.
    pub const GRAIN: usize = 64;
}

/// A mask of 32-bit floats that are added to scores.
#[derive(Clone, Copy, Debug)]
pub struct AttendMask<'a> {
    /// Its memory.
    pub memory: Span<'a>,
    /// Bytes from one to the next: sequence, query head, query, key.
    pub strides: [usize; 4],
}

/// Who sees whom in the drafts of all sequences, one tree behind the other.
#[derive(Clone, Copy, Debug)]
pub struct AttendTrees<'a> {
    /// How far each node is from the tokens before the draft.
    pub depths: &'a [u32],
    /// For each node as many words as its bits take, one for each node that it sees.
    pub seen: &'a [u64],
}

/// Lengths that a launch reads when it runs.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLengths<'a> {
    /// One 32-bit number for each sequence. Keys stand at 0, 1, 2 and so on.
    pub memory: Span<'a>,
    /// None is larger; a larger one counts as this.
    pub keys_max: usize,
}

/// The sizes that all sequences of a call share.
#[derive(Clone, Copy, Debug)]
pub struct AttendSizes {
    /// Heads of the queries: a multiple of those of K and V.
    pub query_heads: usize,
    /// Heads of K, and of V.
    pub kv_heads: usize,
    /// Elements of a row of queries and keys.
    pub dim: usize,
    /// Elements of a row of values.
    pub value_dim: usize,
    /// Queries and output are `[tokens, heads, dim]`, not `[batch, heads, n, dim]`.
    pub is_ragged: bool,
}

impl AttendSizes {
    /// Query heads that share one head of K and V.
    #[must_use]
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// Elements of a row of queries and keys, and of one of values.
    pub(super) fn dims(&self) -> [usize; 2] {
        [self.dim, self.value_dim]
    }
}

/// How the queries of a call see keys.
#[derive(Clone, Copy, Debug)]
pub struct AttendRules<'a> {
    /// A query sees keys up to its own position.
    pub is_causal: bool,
    /// How many positions back it sees, its own among them.
    pub window: Option<i64>,
    /// Positions at the start that a window does not hide.
    pub sinks: i64,
    /// One more score for each query head, without a value.
    pub sink_logits: Option<&'a [f32]>,
    /// What products are multiplied with.
    pub scale: f32,
    /// Bends scores to `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
}

impl AttendRules<'_> {
    /// Every key up to a query's own position, products multiplied with `scale`.
    #[must_use]
    pub const fn causal(scale: f32) -> Self {
        AttendRules { is_causal: true, window: None, sinks: 0, sink_logits: None, scale, softcap: None }
    }
}

/// A call of attention.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// The queries.
    pub queries: HeadRows<'a>,
    /// What all sequences share.
    pub sizes: AttendSizes,
    /// How queries see keys.
    pub rules: AttendRules<'a>,
    /// Keys and values.
    pub keys: AttendKeys<'a>,
    /// The sequences.
    pub sequences: &'a [AttendSequence],
    /// What some of them begin with; each is in one at most.
    pub stems: &'a [AttendStem],
    /// Lengths that are not known before the launch runs.
    pub lengths: Option<DeviceLengths<'a>>,
    /// The trees of drafts.
    pub trees: Option<AttendTrees<'a>>,
    /// What is added to scores.
    pub mask: Option<AttendMask<'a>>,
    /// The position of each query, or of the queries of every sequence.
    pub positions: Option<&'a [i64]>,
    /// The output, rows of values in the queries' format.
    pub out: Span<'a>,
    /// The logarithm of each row's sum, `[tokens, query heads]`.
    pub lse: Span<'a>,
}
