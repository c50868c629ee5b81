//! What holds blocks beside sequences: snapshots, and prefixes that were found.
//!
//! ```text
//! snapshot = planner.snapshot(sequence)?      O(1): the same table, counted once more
//! planner.restore(sequence, &snapshot)?       O(1): the sequence has that table again
//! planner.release(snapshot)                   whoever holds one gives it back
//! ```
//!
//! A block that something holds is never written: whoever writes gets a copy. So what is held stays as it was.

use super::chunks::{Chunks, Table};
use super::identity::Identity;
use super::prefix::Key;
use super::sequence::{Chain, Content};
use super::sequences::PagedPlanner;
use crate::error::{Error, Result};

/// Blocks and tokens that stay as they are until it is released.
#[derive(Debug)]
#[must_use = "its blocks stay held until it is released"]
pub struct Held(Content);

impl Held {
    /// Tokens.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.0.length
    }

    pub(super) fn table(&self) -> &Table {
        &self.0.table
    }
}

impl PagedPlanner {
    /// What a sequence holds now, those of open drafts included, whose ids are those of no prompt then.
    pub fn snapshot(&mut self, sequence: u64) -> Result<Held> {
        self.resting(sequence)?;
        let slot = self.slot(sequence)?;
        Ok(Held(self.fork_content(slot)))
    }

    /// Refuses what [`PagedPlanner::restore`] would refuse: tokens of another identity, which the sequence would be found by.
    pub fn check_restore(&self, sequence: u64, held: &Held) -> Result<()> {
        let (own, other) = (&self.idle(sequence)?.content.chain, &held.0.chain);
        if (own.root, &own.extra) == (other.root, &other.extra) {
            return Ok(());
        }
        Err(Error::SnapshotInvalid { reason: "it is of a sequence with another salt, or other extras" })
    }

    /// Gives a sequence what a snapshot of the same identity holds.
    pub fn restore(&mut self, sequence: u64, held: &Held) -> Result<()> {
        self.check_restore(sequence, held)?;
        let slot = self.slot(sequence)?;
        let mut content = self.chunks.fork_content(&held.0);
        content.chain.forget_before(self.forgotten);
        let of = self.at_mut(slot);
        of.epoch += 1;
        let before = std::mem::replace(&mut of.content, content);
        self.chunks.release(before.table, self.store.chain());
        self.changed();
        Ok(())
    }

    /// Gives up what was held.
    pub fn release(&mut self, held: Held) {
        self.chunks.release(held.0.table, self.store.chain());
        self.changed();
    }

    /// A new sequence with what is held.
    pub fn create_from(&mut self, mut held: Held) -> Result<u64> {
        held.0.chain.forget_before(self.forgotten);
        match self.reserve_sequence() {
            Ok(()) => {
                self.changed();
                Ok(self.add_sequence(held.0))
            }
            Err(refusal) => {
                self.release(held);
                Err(refusal)
            }
        }
    }

    /// Holds the blocks of a prefix, in order, the last of which may be used in part: `length` tokens. Places before the first
    /// that is needed have none, but for the last whole block, which is found by its key.
    pub fn hold(&mut self, blocks: &[Option<u32>], length: u32, identity: &Identity) -> Result<Held> {
        let places = u64::from(length).div_ceil(self.store.block_size.into());
        if blocks.len() as u64 != places {
            return Err(Error::argument("blocks.length", blocks.len(), format!("{places}, for {length} tokens")));
        }
        let index = &self.store.index;
        if let Some(&block) = blocks.iter().flatten().find(|block| index.key(**block).is_none()) {
            return Err(Error::InvalidBlock { block: block.into(), reason: "it is not found by a key" });
        }
        let last = match (length / self.store.block_size).checked_sub(1).map(|last| blocks[last as usize]) {
            Some(None) => return Err(Error::argument("blocks", "none", "one at the last whole place")),
            Some(Some(block)) => index.key(block).copied(),
            None => None,
        };
        self.hold_named(blocks, length, identity, [last, None])
    }

    /// The same of blocks that were found, with the names of the last whole place and of the last without a block.
    pub(super) fn hold_named(
        &mut self,
        blocks: &[Option<u32>],
        length: u32,
        identity: &Identity,
        [last, passed]: [Option<Key>; 2],
    ) -> Result<Held> {
        self.chunks.reserve(1, blocks.len())?;
        let mut table = Default::default();
        for block in blocks {
            match block {
                Some(block) => {
                    self.store.blocks.retain(*block);
                    self.chunks.push(&mut table, *block, &mut self.store);
                }
                None => self.chunks.push_cleared(&mut table, &mut self.store),
            }
        }
        let mut chain = Chain::new(identity.root, identity.extra.clone(), self.forgotten);
        (chain.known, chain.keyed) = (length, length / self.store.block_size);
        (chain.last, chain.passed) = (last.unwrap_or(identity.root), passed);
        let cleared = last_gap(blocks).map_or(0, |place| place as u32 + 1);
        self.changed();
        Ok(Held(Content { table, length, chain, cleared }))
    }
}

/// The last place without a block.
pub(super) fn last_gap(blocks: &[Option<u32>]) -> Option<usize> {
    blocks.iter().rposition(Option::is_none)
}

impl Chunks {
    /// The same blocks and tokens, sharing everything.
    pub(super) fn fork_content(&mut self, content: &Content) -> Content {
        let Content { table, length, chain, cleared } = content;
        Content { table: self.fork(table), length: *length, chain: chain.clone(), cleared: *cleared }
    }
}
