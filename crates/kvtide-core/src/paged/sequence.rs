//! One sequence: its blocks, its tokens, and what of them is only tried; and how one is found, and found fit for a change.

use std::sync::Arc;

use super::chunks::Table;
use super::prefix::{Extras, Key};
use super::sequences::PagedPlanner;
use crate::drafts::Drafts;
use crate::error::{Error, Result};

/// Blocks and tokens: of a sequence, of a snapshot, of a prefix that was found.
#[derive(Debug)]
pub(super) struct Content {
    pub table: Table,
    /// Tokens in it, those of open drafts included.
    pub length: u32,
    pub chain: Chain,
    /// Blocks before this place, but for sinks, left the window.
    pub cleared: u32,
}

/// Which tokens they are, as far as that is known.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// The key of no token.
    pub root: Key,
    /// What else decides what the tokens mean.
    pub extra: Arc<Extras>,
    /// Leading tokens whose ids are known.
    pub known: u32,
    /// Leading blocks that have a key.
    pub keyed: u32,
    /// The key of the last of them, or of no token.
    pub last: Key,
    /// The key of the last block that left the window, which tokens go on from that are cut off behind it.
    pub passed: Option<Key>,
    /// How often everything had been forgotten when they got theirs.
    pub forgotten: u64,
}

impl Chain {
    /// Nothing yet.
    pub fn new(root: Key, extra: Arc<Extras>, forgotten: u64) -> Self {
        Chain { last: root, root, extra, known: 0, keyed: 0, passed: None, forgotten }
    }

    /// Nothing is known of tokens whose keys were forgotten while nobody had them in a sequence.
    pub fn forget_before(&mut self, forgotten: u64) {
        if self.forgotten < forgotten {
            self.forget();
            self.forgotten = forgotten;
        }
    }

    /// Nothing is known of the tokens any more.
    pub fn forget(&mut self) {
        (self.known, self.keyed, self.last, self.passed) = (0, 0, self.root, None);
    }
}

/// What an open step brings to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stepping {
    pub tokens: u32,
    /// The revision that its plan was made at: no other open step has it.
    pub revision: u64,
}

/// A sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    pub id: u64,
    pub content: Content,
    /// The open step.
    pub stepping: Option<Stepping>,
    /// For each token of the open step the one of the transaction that it follows, where that was said; what it holds without a
    /// step counts for nothing.
    pub step_parents: Vec<i32>,
    /// Transactions that are open: their tokens are the last ones.
    pub drafts: Drafts,
    /// Blocks that it had when the outermost of them began.
    pub blocks_before: u32,
    /// Counts changes of blocks that were in its table before, but for those that left the window.
    pub epoch: u64,
}

impl Sequence {
    /// Tokens that no transaction can take back.
    pub fn committed(&self) -> u32 {
        self.content.length - self.drafts.drafted()
    }

    /// Tokens, those of an open step included.
    pub fn end(&self) -> u32 {
        self.content.length + self.stepping.map_or(0, |step| step.tokens)
    }
}

impl PagedPlanner {
    pub(super) fn at(&self, slot: u32) -> &Sequence {
        self.sequences[slot as usize].as_ref().expect("a sequence that was found")
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> &mut Sequence {
        self.sequences[slot as usize].as_mut().expect("a sequence that was found")
    }

    pub(super) fn slot(&self, sequence: u64) -> Result<u32> {
        self.slots.get(&sequence).copied().ok_or(Error::SequenceNotFound { sequence })
    }

    pub(super) fn sequence(&self, sequence: u64) -> Result<&Sequence> {
        let slot = self.slot(sequence)?;
        Ok(self.sequences[slot as usize].as_ref().expect("a sequence that was found"))
    }

    /// Refuses a sequence with an open transaction or step.
    pub fn check_idle(&self, sequence: u64) -> Result<()> {
        self.idle(sequence).map(drop)
    }

    /// Refuses a sequence with an open step.
    pub fn check_resting(&self, sequence: u64) -> Result<()> {
        self.resting(sequence).map(drop)
    }

    /// A sequence without an open transaction or step.
    pub(super) fn idle(&self, sequence: u64) -> Result<&Sequence> {
        let of = self.resting(sequence)?;
        match of.drafts.depth() {
            0 => Ok(of),
            _ => Err(Error::TransactionOpen { object: "sequence" }),
        }
    }

    /// A sequence without an open step.
    pub(super) fn resting(&self, sequence: u64) -> Result<&Sequence> {
        let of = self.sequence(sequence)?;
        match of.stepping {
            None => Ok(of),
            Some(_) => Err(Error::StepOpen { object: "sequence" }),
        }
    }
}
