//! What every transaction can do, and what it means.

use super::BeginOptions;
use crate::base::error::Result;
use crate::tensor::source::Source;
use crate::tensor::view::View;

/// A draft on top of a cache, or of another draft.
pub trait KvTransaction {
    /// What an append shows.
    type Seen;
    /// A transaction on top of this one.
    type Child<'a>: KvTransaction<Seen = Self::Seen>
    where
        Self: 'a;

    /// Adds tokens, a chain, or nodes of a draft tree with these parents: they count the tokens drafted here from 0, and -1 is
    /// the last token before the draft. Shows what the cache's own append would; once it was given parents a window shows
    /// everything that it keeps instead, which is what [`tree_mask`](Self::tree_mask) is over.
    fn append<'a>(
        &mut self,
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        parents: Option<&[i32]>,
    ) -> Result<Self::Seen>;

    /// Keeps the first `tokens` drafted tokens, all unless said otherwise, drops the rest, and ends. Those of a child become
    /// its parent's.
    fn commit(&mut self, tokens: Option<u64>) -> Result<()>;

    /// Keeps the nodes of `path`, each the child of the one before, in order right behind what was there before the draft;
    /// drops the rest, and ends. Refused with `INVALID_PATH` when it is no path.
    fn commit_path(&mut self, path: &[u32]) -> Result<()>;

    /// Drops what was drafted, and ends: the cache is as it was before.
    fn rollback(&mut self) -> Result<()>;

    /// Opens a transaction on top of this one, which can be asked for nothing but its length until that one has ended.
    fn begin(&mut self, options: BeginOptions) -> Result<Self::Child<'_>>;

    /// Tokens drafted.
    fn drafted(&self) -> Result<u32>;

    /// The attention mask of the draft, `[n, before + n]`: 0 where a token sees, and -inf elsewhere.
    fn tree_mask(&self) -> Result<View>;

    /// The position of each drafted token: that of the first one, and its depth.
    fn tree_positions(&self) -> Result<Vec<u64>>;
}
