//! The interface through which the oracle uses a cache.

use std::ops::Range;

use kvtide_core::paged::PoolStats;
use kvtide_core::{Code, TransactionId};

use super::super::calls::Shape;
use super::super::model::Value;
use super::{Done, Share};

/// The result of a call, or the code of its error.
pub type Answer<T> = Result<T, Code>;

/// The expected content of a sequence in a layer.
pub struct Seen<'a> {
    pub shape: &'a Shape,
    /// For each position its value, where it was written: with the tokens of an open step.
    pub values: &'a [Option<Value>],
    /// Tokens without those of an open step.
    pub resting: usize,
}

impl Seen<'_> {
    /// True if the positions of a gap may have left the window.
    pub fn lets_go(&self, gap: &Range<usize>) -> bool {
        let fits =
            |(tokens, sinks): (u32, u32)| gap.start >= sinks as usize && gap.end + tokens as usize <= self.resting + 1;
        gap.is_empty() || self.shape.window.is_some_and(fits)
    }
}

/// The expected content of an open step.
pub struct SeenStep<'a> {
    pub shape: &'a Shape,
    /// Each sequence with its tokens.
    pub shares: &'a [Share],
    pub written: &'a [bool],
    /// A sequence of it was dropped, or a transaction below it.
    pub is_stale: bool,
    /// Tokens of each sequence before it, and the positions of those that it brings.
    pub places: &'a [(usize, Vec<usize>)],
}

/// A cache of many sequences in pages. Tokens are `values[token][layer]`.
pub trait Cache {
    /// A snapshot, or a prefix that was found.
    type Hold;
    /// An open step.
    type Step;

    fn create(&mut self, salt: u8) -> u64;
    fn drop_sequence(&mut self, id: u64) -> Answer<()>;
    fn fork(&mut self, id: u64) -> Answer<u64>;
    fn ensure(&mut self, id: u64, tokens: u32) -> Answer<()>;
    fn truncate(&mut self, id: u64, length: u32) -> Answer<()>;
    fn write(&mut self, id: u64, layer: u32, position: u32, values: &[Value]) -> Answer<()>;
    fn append(&mut self, shares: &[Share], values: &[Vec<Value>], ids: Option<&[u32]>) -> Answer<()>;
    fn retain(&mut self, id: u64, tokens: Range<u32>, priority: u8, until: Option<u64>);
    fn identify(&mut self, id: u64, tokens: &[u32]) -> Answer<u32>;
    fn advance(&mut self, now: u64);
    fn forget(&mut self);

    fn snapshot(&mut self, id: u64) -> Answer<Self::Hold>;
    fn restore(&mut self, id: u64, held: &Self::Hold) -> Answer<()>;
    fn find(&mut self, tokens: &[u32], salt: u8, partial: bool) -> Self::Hold;
    fn held_length(held: &Self::Hold) -> u32;
    fn create_from(&mut self, held: Self::Hold) -> u64;
    fn release(&mut self, held: Self::Hold);

    /// With room for so many tokens of the sequence in total.
    fn begin(&mut self, id: u64, parent: Option<TransactionId>, room: Option<u32>) -> Answer<TransactionId>;
    fn append_draft(
        &mut self,
        of: (u64, TransactionId),
        parents: Option<&[i32]>,
        values: &[Vec<Value>],
        ids: Option<&[u32]>,
    ) -> Answer<()>;
    fn commit(&mut self, of: (u64, TransactionId), tokens: Option<u64>) -> Answer<()>;
    fn commit_path(&mut self, of: (u64, TransactionId), path: &[u32]) -> Answer<()>;
    fn undo(&mut self, of: (u64, TransactionId));

    fn begin_step(&mut self, shares: &[Share]) -> Answer<Self::Step>;
    fn write_layer(&mut self, step: &mut Self::Step, layer: u32, values: &[Value]) -> Answer<()>;
    fn commit_step(&mut self, step: &mut Self::Step, ids: Option<&[u32]>) -> Answer<()>;
    fn drop_step(&mut self, step: Self::Step);

    fn ids(&self) -> Vec<u64>;
    /// Tokens, and those of them that no transaction can take back.
    fn lengths(&self, id: u64) -> [u32; 2];
    fn pool(&mut self) -> PoolStats;
    fn staged_count(&mut self) -> u32;

    /// Says what is wrong with the bookkeeping.
    fn check_invariants(&self, held: &[&Self::Hold]) -> Result<(), String>;
    fn check_layer(&mut self, id: u64, layer: u32, seen: &Seen<'_>) -> Done;
    /// The innermost transaction; its tokens stand at these positions.
    fn check_draft(&mut self, of: (u64, TransactionId), positions: &[usize], is_stepping: bool) -> Done;
    fn check_step(&mut self, step: &Self::Step, seen: &SeenStep<'_>) -> Done;
}
