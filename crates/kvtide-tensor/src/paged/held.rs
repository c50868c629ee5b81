//! What holds blocks beside sequences: snapshots, and prefixes that were found.
//!
//! Both are numbers that the cache knows; dropped, they give their blocks back. O(1), but for the blocks that are let go of.

use kvtide_core::paged::{Extra, HeldContent, Identity};

use super::returns::{Returned, Returns};
use crate::base::error::{Error, Result};
use crate::paged::PageGroup;

/// Blocks of a cache that stay as they are while this lives.
#[derive(Debug)]
pub(crate) struct Hold {
    id: u64,
    returns: Returns,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.returns.add(Returned::Held(self.id));
    }
}

/// What a sequence held when it was made, whatever happens to the sequence: restoring it is O(1).
#[derive(Debug)]
pub(crate) struct GroupSnapshot {
    hold: Hold,
    length: u32,
}

impl GroupSnapshot {
    /// Tokens.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }
}

/// The start of a prompt that is in the cache: its blocks stay there while this lives, and a sequence can be made of it.
#[derive(Debug)]
pub(crate) struct GroupPrefix {
    hold: Hold,
    length: u32,
}

impl GroupPrefix {
    /// Tokens that are there, and need not be computed.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }
}

/// Whose tokens they are: a prompt finds the blocks of prompts with the same salt and extras alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptOptions<'a> {
    /// The tenant, or whatever keeps prompts apart.
    pub salt: &'a [u8],
    /// What else decides what tokens mean: an adapter, an image; each over a range of positions.
    pub extra: &'a [Extra],
}

impl PageGroup {
    /// A new, empty sequence whose tokens are those of `options`.
    pub fn create_sequence_of(&mut self, options: PromptOptions<'_>) -> Result<u64> {
        self.change()?;
        let identity = self.identity(options)?;
        Ok(self.planner.create_sequence_of(identity)?)
    }

    /// A new sequence that starts with a prefix.
    pub fn create_sequence_from(&mut self, prefix: GroupPrefix) -> Result<u64> {
        self.change()?;
        self.check_own(&prefix.hold)?;
        let held = self.held.remove(&prefix.hold.id).ok_or_else(foreign)?;
        Ok(self.planner.create_from(held)?)
    }

    /// What a sequence holds now.
    pub fn snapshot(&mut self, sequence: u64) -> Result<GroupSnapshot> {
        self.change()?;
        let held = self.planner.snapshot(sequence)?;
        let length = held.length();
        Ok(GroupSnapshot { hold: self.keep(held)?, length })
    }

    /// Gives a sequence what a snapshot holds; any sequence of the cache with the same salt and extras.
    pub fn restore(&mut self, sequence: u64, snapshot: &GroupSnapshot) -> Result<()> {
        self.change()?;
        self.check_own(&snapshot.hold)?;
        let held = self.held.get(&snapshot.hold.id).ok_or_else(foreign)?;
        Ok(self.planner.restore(sequence, held)?)
    }

    /// Refuses what [`PageGroup::restore`] would refuse.
    pub(crate) fn check_restore(&mut self, sequence: u64, snapshot: &GroupSnapshot) -> Result<()> {
        self.change()?;
        self.check_own(&snapshot.hold)?;
        let held = self.held.get(&snapshot.hold.id).ok_or_else(foreign)?;
        Ok(self.planner.check_restore(sequence, held)?)
    }

    /// A prefix that was found.
    pub(crate) fn keep_prefix(&mut self, held: HeldContent) -> Result<GroupPrefix> {
        let length = held.length();
        Ok(GroupPrefix { hold: self.keep(held)?, length })
    }

    fn keep(&mut self, held: HeldContent) -> Result<Hold> {
        if self.held.try_reserve(1).is_err() {
            self.planner.release(held);
            let count = self.held.len() as u64 + 1;
            return Err(kvtide_core::Error::OutOfMemory { count, what: "snapshots" }.into());
        }
        let id = self.next_held;
        self.next_held += 1;
        self.held.insert(id, held);
        Ok(Hold { id, returns: self.returns.clone() })
    }

    fn check_own(&self, hold: &Hold) -> Result<()> {
        if self.returns.is_same(&hold.returns) { Ok(()) } else { Err(foreign()) }
    }

    /// The identity of a prompt.
    pub(crate) fn identity(&self, options: PromptOptions<'_>) -> Result<Identity> {
        self.keys.identity(options)
    }
}

fn foreign() -> Error {
    kvtide_core::Error::SnapshotInvalid { reason: "it is of another cache" }.into()
}
