//! What holds blocks beside sequences: snapshots, and prefixes that were found.
//!
//! Each has a number under which the cache keeps its blocks; dropped, it gives them back. O(1), but for the blocks that are let go
//! of.

use kvtide_core::paged::{
    Admission, AdmissionRequest, Admitted, HeldContent, Identity, PagedPlanner, admit_in_groups, find_in_groups,
};

use super::dropped::{Dropped, DroppedList};
use super::group::PageGroup;
use crate::base::error::Result;

/// Blocks of a group that stay as they are while this lives.
#[derive(Debug)]
pub(crate) struct Hold {
    id: u64,
    length: u32,
    dropped: DroppedList,
}

impl Hold {
    /// Tokens in them.
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
    /// The longest prefix of a prompt that is in all groups, as [`find_in_groups`] says.
    pub fn find_prefix(groups: &mut [PageGroup], tokens: &[u32], of: &Identity, partial: bool) -> Result<Vec<Hold>> {
        let mut planners: Vec<&mut PagedPlanner> = groups.iter_mut().map(|group| &mut group.planner).collect();
        let held = find_in_groups(&mut planners, tokens, of, partial)?;
        PageGroup::keep_all(groups, held)
    }

    /// The same, where there is room for all that is asked for, with the tokens that each group has to have blocks for; or what is
    /// lacking.
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

    /// All of them are kept or given back, also where one of them is refused.
    fn keep_all(groups: &mut [PageGroup], held: Vec<HeldContent>) -> Result<Vec<Hold>> {
        let holds: Vec<_> = groups.iter_mut().zip(held).map(|(group, held)| group.keep(held)).collect();
        holds.into_iter().collect()
    }

    /// A new sequence that starts with a prefix.
    pub fn create_sequence_from(&mut self, prefix: Hold) -> Result<u64> {
        self.change()?;
        self.check_own(&prefix)?;
        let held = self.held.remove(&prefix.id).expect("blocks of a hold");
        Ok(self.planner.create_from(held)?)
    }

    /// What a sequence holds now.
    pub fn snapshot(&mut self, sequence: u64) -> Result<Hold> {
        self.change()?;
        let held = self.planner.snapshot(sequence)?;
        self.keep(held)
    }

    /// Gives a sequence what a snapshot holds; any sequence of the cache with the same salt and extras.
    pub fn restore(&mut self, sequence: u64, snapshot: &Hold) -> Result<()> {
        self.change()?;
        self.check_own(snapshot)?;
        Ok(self.planner.restore(sequence, &self.held[&snapshot.id])?)
    }

    /// Refuses what [`PageGroup::restore`] would refuse.
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
        Err(kvtide_core::Error::SnapshotInvalid { reason: "it is of another cache" }.into())
    }
}
