//! Blocks that are held by snapshots and by matches, in addition to those of sequences.
//!
//! The cache keeps the blocks of each under a number; dropping the handle releases them. O(1), plus the released blocks.

use kvtide_core::paged::{
    Admission, AdmissionRequest, Admitted, HeldContent, Identity, PagedPlanner, PromptBlocks, admit_in_groups,
    find_in_groups, find_named_in_groups,
};

use super::dropped::{Dropped, DroppedList};
use super::group::PageGroup;
use crate::base::error::Result;

/// Blocks of a group that are held, and so stay unchanged, while this lives.
#[derive(Debug)]
pub(crate) struct Hold {
    id: u64,
    length: u32,
    dropped: DroppedList,
}

impl Hold {
    /// The number of tokens in them.
    pub fn length(&self) -> u32 {
        self.length
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.dropped.add(Dropped::Hold(self.id));
    }
}

impl PageGroup {
    /// The longest prefix of a prompt that is cached in all groups, as in [`find_in_groups`].
    pub fn find_prefix(groups: &mut [PageGroup], tokens: &[u32], of: &Identity, partial: bool) -> Result<Vec<Hold>> {
        let mut planners: Vec<&mut PagedPlanner> = groups.iter_mut().map(|group| &mut group.planner).collect();
        let held = find_in_groups(&mut planners, tokens, of, partial)?;
        PageGroup::keep_all(groups, held)
    }

    /// As [`PageGroup::find_prefix`], for a prompt whose keys were computed before.
    pub fn find_named(groups: &mut [PageGroup], blocks: &PromptBlocks, partial: bool) -> Result<Vec<Hold>> {
        let mut planners: Vec<&mut PagedPlanner> = groups.iter_mut().map(|group| &mut group.planner).collect();
        let held = find_named_in_groups(&mut planners, blocks, partial)?;
        PageGroup::keep_all(groups, held)
    }

    /// Like [`PageGroup::find_prefix`], if there is room for the whole request, with the number of tokens for which each
    /// group must have blocks; or else the shortage.
    pub fn admit(
        groups: &mut [PageGroup],
        asked: AdmissionRequest<'_>,
        of: &Identity,
    ) -> Result<Admission<Admitted<Hold>>> {
        let mut planners: Vec<&mut PagedPlanner> = groups.iter_mut().map(|group| &mut group.planner).collect();
        match admit_in_groups(&mut planners, asked, of)? {
            Ok(Admitted { held, tokens }) => Ok(Ok(Admitted { held: PageGroup::keep_all(groups, held)?, tokens })),
            Err(lacking) => Ok(Err(lacking)),
        }
    }

    /// Keeps all of them, or releases all of them if one fails.
    fn keep_all(groups: &mut [PageGroup], held: Vec<HeldContent>) -> Result<Vec<Hold>> {
        let holds: Vec<_> = groups.iter_mut().zip(held).map(|(group, held)| group.keep(held)).collect();
        holds.into_iter().collect()
    }

    /// Creates a sequence that starts with a prefix.
    pub fn create_sequence_from(&mut self, prefix: Hold) -> Result<u64> {
        self.change()?;
        self.check_own(&prefix)?;
        let held = self.held.remove(&prefix.id).expect("blocks of a hold");
        Ok(self.planner.create_from(held)?)
    }

    /// Takes a snapshot of a sequence.
    pub fn snapshot(&mut self, sequence: u64) -> Result<Hold> {
        self.change()?;
        let held = self.planner.snapshot(sequence)?;
        self.keep(held)
    }

    /// Restores a sequence from a snapshot of any sequence of this cache with the same salt and extras.
    pub fn restore(&mut self, sequence: u64, snapshot: &Hold) -> Result<()> {
        self.change()?;
        self.check_own(snapshot)?;
        Ok(self.planner.restore(sequence, &self.held[&snapshot.id])?)
    }

    /// Gives a sequence without tokens another salt and other extras.
    pub fn rename(&mut self, sequence: u64, identity: Identity) -> Result<()> {
        self.change()?;
        Ok(self.planner.rename(sequence, identity)?)
    }

    /// Checks everything that [`PageGroup::restore`] checks.
    pub fn check_restore(&mut self, sequence: u64, snapshot: &Hold) -> Result<()> {
        self.change()?;
        self.check_own(snapshot)?;
        Ok(self.planner.check_restore(sequence, &self.held[&snapshot.id])?)
    }

    pub(super) fn keep(&mut self, held: HeldContent) -> Result<Hold> {
        if self.held.try_reserve(1).is_err() {
            self.planner.release(held);
            let count = self.held.len() as u64 + 1;
            return Err(kvtide_core::Error::OutOfMemory { count, what: "snapshots" }.into());
        }
        let (id, length) = (self.next_held, held.length());
        self.next_held += 1;
        self.held.insert(id, held);
        Ok(Hold { id, length, dropped: self.dropped.clone() })
    }

    pub(super) fn check_own(&self, hold: &Hold) -> Result<()> {
        if self.dropped.is_same(&hold.dropped) {
            return Ok(());
        }
        Err(kvtide_core::Error::SnapshotInvalid { reason: "it belongs to another cache" }.into())
    }
}
