//! Snapshots, and other holders of blocks besides sequences.
//!
//! ```text
//! snapshot = planner.snapshot(sequence)?      O(1): the same table, with one more holder
//! planner.restore(sequence, &snapshot)?       O(1): the sequence has that table again
//! planner.release(snapshot)                   every snapshot must be released
//! ```

use super::paged_planner::PagedPlanner;
use crate::error::{Error, Result};
use crate::paged::index::{BlockKey, Identity};
use crate::paged::sequence::{Content, HeldContent, KeyChain};
use crate::paged::table::Reservation;

impl PagedPlanner {
    /// Holds the present content of a sequence. Drafted tokens are included, but prompts do not find them. Tokens of an
    /// open step are not included.
    pub fn snapshot(&mut self, sequence: u64) -> Result<HeldContent> {
        let seat = self.seat_to_fork(sequence)?;
        self.changed();
        Ok(HeldContent(self.sequences.at(seat).fork(&mut self.tables)))
    }

    /// Returns the error of [`PagedPlanner::restore`] for a snapshot with another salt or other extras, without
    /// restoring it.
    pub fn check_restore(&self, sequence: u64, held: &HeldContent) -> Result<()> {
        self.seat_to_restore(sequence, held).map(drop)
    }

    fn seat_to_restore(&self, sequence: u64, held: &HeldContent) -> Result<u32> {
        let seat = self.sequences.idle(sequence)?;
        match self.sequences.at(seat).content().keys().has_identity_of(held.0.keys()) {
            true => Ok(seat),
            false => {
                Err(Error::SnapshotInvalid { reason: "it belongs to a sequence with another salt or other extras" })
            }
        }
    }

    /// Restores the content of a snapshot with the same identity.
    pub fn restore(&mut self, sequence: u64, held: &HeldContent) -> Result<()> {
        let seat = self.seat_to_restore(sequence, held)?;
        let mut content = held.0.fork(&mut self.tables);
        content.forget_before(self.forgotten);
        self.sequences.at_mut(seat).restore(content, &mut self.tables);
        self.changed();
        Ok(())
    }

    /// Gives a sequence without tokens another salt and other extras.
    pub fn rename(&mut self, sequence: u64, identity: Identity) -> Result<()> {
        let seat = self.seat_to_rename(sequence)?;
        let content = self.empty_content(identity);
        self.sequences.at_mut(seat).restore(content, &mut self.tables);
        self.changed();
        Ok(())
    }

    /// Returns the error of [`PagedPlanner::rename`] without renaming.
    pub fn check_rename(&self, sequence: u64) -> Result<()> {
        self.seat_to_rename(sequence).map(drop)
    }

    fn seat_to_rename(&self, sequence: u64) -> Result<u32> {
        let seat = self.sequences.idle(sequence)?;
        match self.sequences.at(seat).length() {
            0 => Ok(seat),
            length => Err(Error::argument("sequence.length", length, "0, to give it another salt")),
        }
    }

    /// Releases held content.
    pub fn release(&mut self, held: HeldContent) {
        held.0.release(&mut self.tables);
        self.changed();
    }

    /// Creates a sequence from held content.
    pub fn create_from(&mut self, held: HeldContent) -> Result<u64> {
        if let Err(refusal) = self.sequences.reserve() {
            self.release(held);
            return Err(refusal);
        }
        let mut content = held.0;
        content.forget_before(self.forgotten);
        self.changed();
        Ok(self.sequences.add(content))
    }

    /// Holds the blocks of a prefix of `length` tokens, in order; the last may be used in part. Places that no group
    /// needs have no block, but the last full place must have one with a key.
    pub fn hold(&mut self, blocks: &[Option<u32>], length: u32, identity: &Identity) -> Result<HeldContent> {
        let places = u64::from(length).div_ceil(self.block_size().into());
        if blocks.len() as u64 != places {
            return Err(Error::argument("blocks.length", blocks.len(), format!("{places}, for {length} tokens")));
        }
        let index = self.tables.pool().index();
        if let Some(&block) = blocks.iter().flatten().find(|block| index.key(**block).is_none()) {
            return Err(Error::InvalidBlock { block: block.into(), reason: "it has no key" });
        }
        let last = match (length / self.block_size()).checked_sub(1).map(|last| blocks[last as usize]) {
            Some(None) => return Err(Error::argument("blocks", "none", "one at the last full place")),
            Some(Some(block)) => index.key(block).copied(),
            None => None,
        };
        self.hold_named(blocks, length, identity, [last, None])
    }

    /// Holds blocks that were found. `names` are the keys of the last full place, and of the last place without a
    /// block.
    pub(super) fn hold_named(
        &mut self,
        blocks: &[Option<u32>],
        length: u32,
        identity: &Identity,
        names: [Option<BlockKey>; 2],
    ) -> Result<HeldContent> {
        self.tables.reserve(Reservation { tables: 1, blocks: blocks.len(), ..Reservation::default() })?;
        let keys = KeyChain::new(identity.clone(), self.forgotten);
        let mut content = Content::found(blocks, length, names, keys, &mut self.tables);
        if self.keeps_states {
            content = content.keeping_states();
            content.note_found(&mut self.tables);
        }
        self.changed();
        Ok(HeldContent(content))
    }
}
