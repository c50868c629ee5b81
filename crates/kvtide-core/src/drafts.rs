//! The open transactions of one cache: a stack of drafts behind the cache's own tokens.
//!
//! ```text
//! the cache's own | outermost draft | its child | its child
//!                 | 0  1  2  3      | 4  5      | 6              one tree of nodes, one run of slots
//! ```
//!
//! Each draft counts its tokens from 0; -1 is the token right before its first one. The shared tree numbers the nodes
//! of all drafts consecutively, so a child's parents are shifted by the child's first node. Committing a child only
//! removes it from the stack.
//!
//! Invariants: drafts start at ascending nodes, the outermost at 0; only the innermost one changes. `begin` and `end`
//! are O(1) plus the nodes that are dropped; an append is O(new tokens).

use crate::error::{Error, Result};
use crate::plan::{SlotMove, path_moves};
use crate::run::Run;
use crate::tree::Tree;

/// The id of one transaction of one cache; the cache never uses it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransactionId(u64);

impl TransactionId {
    /// The id as a number.
    #[must_use]
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// The id with this number.
    #[must_use]
    pub fn from_raw(id: u64) -> Self {
        TransactionId(id)
    }
}

/// One open draft.
#[derive(Clone, Copy, Debug)]
struct Draft {
    id: TransactionId,
    /// The draft's first node.
    start: u32,
    /// Tokens of its own for which the caller reserved room.
    room: u32,
    /// True if it was given parents, so that its tokens may branch.
    branched: bool,
}

/// The planned end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The draft's place in the stack.
    depth: usize,
    /// True if the kept tokens are an accepted path, which is a chain.
    path: bool,
    /// Number of leading tokens that are kept.
    pub kept: u32,
    /// Number of tokens behind them that are dropped.
    pub dropped: u32,
}

impl Ending {
    /// Number of transactions that stay open.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// True if no transaction is open after it.
    #[must_use]
    pub fn is_outermost(&self) -> bool {
        self.depth == 0
    }
}

/// The stack of open drafts.
#[derive(Clone, Debug, Default)]
pub struct Drafts {
    open: Vec<Draft>,
    tree: Tree,
    begun: u64,
}

impl Drafts {
    /// Number of tokens of all open drafts.
    #[must_use]
    pub fn drafted(&self) -> u32 {
        self.tree.len() as u32
    }

    /// Number of open drafts.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// The innermost open draft, if any.
    #[must_use]
    pub fn innermost(&self) -> Option<TransactionId> {
        self.open.last().map(|draft| draft.id)
    }

    /// The nodes of all open drafts.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns an error while a transaction is open: the cache itself cannot change then.
    pub fn check_none(&self) -> Result<()> {
        if self.open.is_empty() { Ok(()) } else { Err(Error::TransactionOpen { object: "cache" }) }
    }

    /// Returns an error if the transaction has ended or has an open child.
    pub fn check(&self, id: TransactionId) -> Result<()> {
        let depth = self.find(id)?;
        if depth + 1 == self.open.len() { Ok(()) } else { Err(Error::TransactionOpen { object: "transaction" }) }
    }

    /// Checks that a transaction can be opened on the cache, or on the transaction `parent`.
    pub fn check_begin(&mut self, parent: Option<TransactionId>) -> Result<()> {
        match parent {
            None => self.check_none()?,
            Some(parent) => self.check(parent)?,
        }
        let count = self.open.len() as u64 + 1;
        self.open.try_reserve(1).map_err(|_| Error::OutOfMemory { count, what: "open transactions" })
    }

    /// Opens a transaction after [`Drafts::check_begin`], with room for `room` tokens.
    pub fn begin(&mut self, room: u32) -> TransactionId {
        self.begun += 1;
        let id = TransactionId(self.begun);
        let start = self.drafted();
        self.open.push(Draft { id, start, room, branched: false });
        id
    }

    /// Number of tokens that still fit in the reserved room.
    #[must_use]
    pub fn room(&self) -> u32 {
        let asked = self.open.iter().map(|draft| draft.start.saturating_add(draft.room)).max().unwrap_or(0);
        asked.saturating_sub(self.drafted())
    }

    /// Number of tokens of one draft, without those of its children.
    pub fn len(&self, id: TransactionId) -> Result<u32> {
        let depth = self.find(id)?;
        let end = self.open.get(depth + 1).map_or(self.drafted(), |child| child.start);
        Ok(end - self.open[depth].start)
    }

    /// The first node of a transaction. Returns an error unless it is the innermost one.
    pub fn first(&self, id: TransactionId) -> Result<u32> {
        self.check(id)?;
        Ok(self.start())
    }

    /// The first node of the innermost draft; 0 if none is open.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.open.last().map_or(0, |draft| draft.start)
    }

    /// True if an open draft was given parents.
    #[must_use]
    pub fn is_branched(&self) -> bool {
        self.open.iter().any(|draft| draft.branched)
    }

    /// Checks that `tokens` tokens can be added, as a chain or as nodes with these parents, and reserves memory for
    /// their bookkeeping.
    pub fn check_append(&mut self, id: TransactionId, tokens: u32, parents: Option<&[i32]>) -> Result<()> {
        self.check(id)?;
        self.tree.check_tokens(self.start() as usize, tokens, parents)?;
        self.tree.reserve(tokens)
    }

    /// Reserves memory for the bookkeeping of `tokens` more tokens if a draft is open.
    pub fn reserve(&mut self, tokens: u32) -> Result<()> {
        if self.open.is_empty() { Ok(()) } else { self.tree.reserve(tokens) }
    }

    /// Checks that these parents can follow the tokens of the innermost draft. An empty list always can.
    pub(crate) fn check_parents(&self, parents: &[i32]) -> Result<()> {
        if self.open.is_empty() && !parents.is_empty() {
            return Err(Error::argument("parents", "a tree", "none, because no transaction is open"));
        }
        self.tree.check_from(self.start() as usize, parents)
    }

    /// Records an append that was checked and carried out.
    pub fn append(&mut self, tokens: u32, parents: Option<&[i32]>) {
        let Some(draft) = self.open.last_mut() else { return };
        match parents {
            Some(parents) => {
                draft.branched |= tokens > 0;
                self.tree.extend_from(draft.start as usize, parents);
            }
            None => self.tree.extend_chain(tokens),
        }
    }

    /// Plans a commit that keeps the first `tokens` tokens of a draft, or all of them by default.
    pub fn plan_commit(&self, id: TransactionId, tokens: Option<u64>) -> Result<Ending> {
        self.check(id)?;
        let drafted = self.len(id)?;
        let tokens = tokens.unwrap_or(drafted.into());
        match u32::try_from(tokens) {
            Ok(kept) if kept <= drafted => Ok(self.ending(self.open.len() - 1, kept, false)),
            _ => Err(Error::argument("n", tokens, format!("at most {drafted}, the number of drafted tokens"))),
        }
    }

    /// Plans the end of the innermost draft that keeps this path. Returns an error if it is not a path.
    pub fn check_path(&self, id: TransactionId, path: &[u32]) -> Result<Ending> {
        self.check(id)?;
        self.tree.check_path_from(self.start() as usize, path)?;
        Ok(self.ending(self.open.len() - 1, path.len() as u32, true))
    }

    /// Plans a commit that keeps the nodes of `path`; `first` is the slot of the outermost draft's first token. Returns
    /// the ending, the moves, and the slots they write.
    pub fn plan_path(&self, id: TransactionId, path: &[u32], first: u32) -> Result<(Ending, Vec<SlotMove>, Run)> {
        let ending = self.check_path(id, path)?;
        let (moves, written) = path_moves(first + self.start(), path);
        Ok((ending, moves, written))
    }

    /// Plans a roll-back of a draft and its open children; [`None`] if it has ended already.
    #[must_use]
    pub fn plan_drop(&self, id: TransactionId) -> Option<Ending> {
        Some(self.ending(self.find(id).ok()?, 0, false))
    }

    /// The parents of the tokens that an outermost draft keeps; [`None`] if they are a chain.
    #[must_use]
    pub fn kept_parents(&self, ending: &Ending) -> Option<&[i32]> {
        if ending.path { None } else { self.tree.parents().get(..ending.kept as usize) }
    }

    /// Ends a transaction. Its kept tokens go to the parent transaction; those of the outermost leave the stack.
    pub fn end(&mut self, ending: &Ending) {
        let Some(ended) = self.open.get(ending.depth).copied() else { return };
        let branched = self.open[ending.depth..].iter().any(|draft| draft.branched);
        self.open.truncate(ending.depth);
        let start = ended.start as usize;
        match self.open.last_mut() {
            None => self.tree.clear(),
            Some(_) if ending.path => {
                self.tree.truncate(start);
                self.tree.extend_chain(ending.kept);
            }
            Some(parent) => {
                self.tree.truncate(start + ending.kept as usize);
                parent.branched |= branched && ending.kept > 0;
            }
        }
    }

    /// Checks the invariants that hold between calls.
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        let starts: Vec<u32> = self.open.iter().map(|draft| draft.start).collect();
        if !starts.is_sorted() || starts.first().is_some_and(|&start| start != 0) {
            return Err(format!("drafts start at {starts:?}"));
        }
        if starts.last().map_or(self.drafted() > 0, |&start| start > self.drafted()) {
            return Err(format!("{} tokens in drafts that start at {starts:?}", self.drafted()));
        }
        Ok(())
    }

    fn ending(&self, depth: usize, kept: u32, path: bool) -> Ending {
        Ending { depth, path, kept, dropped: self.drafted() - self.open[depth].start - kept }
    }

    fn find(&self, id: TransactionId) -> Result<usize> {
        self.open.iter().position(|draft| draft.id == id).ok_or(Error::TransactionClosed)
    }
}
