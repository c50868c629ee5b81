//! The open transactions of one cache: a stack of drafts behind its tokens.
//!
//! ```text
//! the cache's own | outermost draft | its child | child of that
//!                 | 0  1  2  3      | 4  5      | 6              one tree of nodes, one run of slots
//! ```
//!
//! Each draft counts its tokens from 0, and -1 is the token right before the first of them. In the tree all drafts count on, so that
//! a child's parents are so many nodes further. A child that is committed needs nothing but to be forgotten.
//!
//! Invariants: drafts start at ascending nodes, the outermost at 0; only the innermost one changes. `begin` and `end` are
//! O(1), but for the nodes that are dropped; an append is O(new tokens).

use crate::error::{Error, Result};
use crate::plan::{SlotMove, path_moves};
use crate::run::Run;
use crate::tree::Tree;

/// One transaction of one cache: never used again by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransactionId(u64);

impl TransactionId {
    /// The number that it is.
    #[must_use]
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// The transaction of this number.
    #[must_use]
    pub fn from_raw(id: u64) -> Self {
        TransactionId(id)
    }
}

/// One open draft.
#[derive(Clone, Copy, Debug)]
struct Draft {
    id: TransactionId,
    /// Its first node.
    start: u32,
    /// Tokens of its own that room was asked for.
    room: u32,
    /// True when it was given parents, so that its tokens may be more than a chain.
    branched: bool,
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Its place in the stack.
    depth: usize,
    /// The tokens kept are the chain of an accepted path.
    path: bool,
    /// Its first tokens, which stay.
    pub kept: u32,
    /// Tokens behind those, which go.
    pub dropped: u32,
}

impl Ending {
    /// True when no transaction is open after it.
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
    /// Tokens of all open drafts.
    #[must_use]
    pub fn drafted(&self) -> u32 {
        self.tree.len() as u32
    }

    /// Drafts that are open.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// The nodes of all open drafts.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Refuses a change of the cache itself while a transaction is open.
    pub fn check_none(&self) -> Result<()> {
        if self.open.is_empty() { Ok(()) } else { Err(Error::TransactionOpen { object: "cache" }) }
    }

    /// Refuses a transaction that has ended, or that has a child.
    pub fn check(&self, id: TransactionId) -> Result<()> {
        let depth = self.find(id)?;
        if depth + 1 == self.open.len() { Ok(()) } else { Err(Error::TransactionOpen { object: "transaction" }) }
    }

    /// Checks that a transaction can be opened: on the cache, or on the transaction `parent`.
    pub fn check_begin(&mut self, parent: Option<TransactionId>) -> Result<()> {
        match parent {
            None => self.check_none()?,
            Some(parent) => self.check(parent)?,
        }
        let count = self.open.len() as u64 + 1;
        self.open.try_reserve(1).map_err(|_| Error::OutOfMemory { count, what: "open transactions" })
    }

    /// Opens a transaction that was checked, with room for `room` tokens.
    pub fn begin(&mut self, room: u32) -> TransactionId {
        self.begun += 1;
        let id = TransactionId(self.begun);
        let start = self.drafted();
        self.open.push(Draft { id, start, room, branched: false });
        id
    }

    /// Tokens that still fit in the room that was asked for.
    #[must_use]
    pub fn room(&self) -> u32 {
        let asked = self.open.iter().map(|draft| draft.start.saturating_add(draft.room)).max().unwrap_or(0);
        asked.saturating_sub(self.drafted())
    }

    /// Tokens of one draft, without those of its children.
    pub fn len(&self, id: TransactionId) -> Result<u32> {
        let depth = self.find(id)?;
        let end = self.open.get(depth + 1).map_or(self.drafted(), |child| child.start);
        Ok(end - self.open[depth].start)
    }

    /// The first node of a transaction that can be asked about its own.
    pub fn first(&self, id: TransactionId) -> Result<u32> {
        self.check(id)?;
        Ok(self.start())
    }

    /// The first node of the innermost draft; 0 where none is open.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.open.last().map_or(0, |draft| draft.start)
    }

    /// True when an open draft was given parents.
    #[must_use]
    pub fn is_branched(&self) -> bool {
        self.open.iter().any(|draft| draft.branched)
    }

    /// Checks that `tokens` tokens can be added, a chain or nodes with these parents, and makes room for their bookkeeping.
    pub fn check_append(&mut self, id: TransactionId, tokens: u32, parents: Option<&[i32]>) -> Result<()> {
        self.check(id)?;
        self.tree.check_tokens(self.start() as usize, tokens, parents)?;
        self.tree.reserve(tokens)
    }

    /// Makes room for the bookkeeping of `tokens` more tokens, if a draft is open.
    pub fn reserve(&mut self, tokens: u32) -> Result<()> {
        if self.open.is_empty() { Ok(()) } else { self.tree.reserve(tokens) }
    }

    /// Checks that these parents can follow the tokens of the innermost draft; no tokens follow whatever there is.
    pub fn check_parents(&self, parents: &[i32]) -> Result<()> {
        if self.open.is_empty() && !parents.is_empty() {
            return Err(Error::argument("parents", "a tree", "none where no transaction is open"));
        }
        self.tree.check_from(self.start() as usize, parents)
    }

    /// Takes over an append that was checked and carried out.
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

    /// How to keep the first `tokens` tokens of a draft, all of them unless said otherwise.
    pub fn plan_commit(&self, id: TransactionId, tokens: Option<u64>) -> Result<Ending> {
        self.check(id)?;
        let drafted = self.len(id)?;
        let tokens = tokens.unwrap_or(drafted.into());
        match u32::try_from(tokens) {
            Ok(kept) if kept <= drafted => Ok(self.ending(self.open.len() - 1, kept, false)),
            _ => Err(Error::argument("n", tokens, format!("at most {drafted}, the number of drafted tokens"))),
        }
    }

    /// How to end the innermost draft and keep a path of it, or why that is no path.
    pub fn check_path(&self, id: TransactionId, path: &[u32]) -> Result<Ending> {
        self.check(id)?;
        self.tree.check_path_from(self.start() as usize, path)?;
        Ok(self.ending(self.open.len() - 1, path.len() as u32, true))
    }

    /// How to keep the nodes of `path`, where the outermost draft's first token lies in the slot `first`: the ending, the
    /// moves, and the slots they write.
    pub fn plan_path(&self, id: TransactionId, path: &[u32], first: u32) -> Result<(Ending, Vec<SlotMove>, Run)> {
        let ending = self.check_path(id, path)?;
        let (moves, written) = path_moves(first + self.start(), path);
        Ok((ending, moves, written))
    }

    /// How to drop a draft, with the children it still has; nothing when it has ended already.
    #[must_use]
    pub fn plan_drop(&self, id: TransactionId) -> Option<Ending> {
        Some(self.ending(self.find(id).ok()?, 0, false))
    }

    /// The parents of the tokens that an outermost draft keeps; none when they are a chain.
    #[must_use]
    pub fn kept_parents(&self, ending: &Ending) -> Option<&[i32]> {
        if ending.path { None } else { self.tree.parents().get(..ending.kept as usize) }
    }

    /// Ends a transaction: what it keeps goes to the one below, or leaves with the outermost.
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

    /// Checks what must hold between calls.
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
