//! Copies before writes: a block that others hold as well is copied for the one who writes it, that block and nothing else.
//!
//! ```text
//! copies = planner.plan_copies(&targets)?              refused: nothing has changed
//! plan = planner.plan_append(&append)?                 as if there were no copies
//! pages = planner.reserve_after(&copies, &plan)?       memory of both
//! executor makes room for so many staging pages, then copies the blocks
//! planner.commit_copies_before(&copies, &mut plan)?    the plan writes to the copies now, and is no longer refused
//! ```
//!
//! Nothing is copied before the memory of everything that follows is there: a refused call leaves no copy behind. A block that is found by its key is copied as well, while blocks are there; else it is no longer found. O(blocks written).

use super::room::Room;
use super::sequence::Sequence;
use super::sequences::PagedPlanner;
use super::staging::Page;
use super::targets::reserve;
use super::write_plan::WritePlan;
use crate::error::{Error, Result};

/// Tokens that are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The sequence.
    pub sequence: u64,
    /// The first position.
    pub position: u32,
    /// How many.
    pub tokens: u32,
}

/// A block to copy, all its layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block that others hold too.
    pub source: u32,
    /// The block that the writer gets.
    pub target: u32,
    /// Its pages that lie in staging pages: the layer, and the staging pages of source and target.
    pub staged: Vec<(u32, u32, u32)>,
    slot: u32,
    place: u32,
    /// Slots of the source that the writer's tokens lie in.
    kept: u32,
}

/// The copies that some writes need first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan does nothing until it is committed"]
pub struct CopyPlan {
    copies: Vec<BlockCopy>,
    staging_pages: u32,
    revision: u64,
}

impl CopyPlan {
    /// The blocks to copy.
    #[must_use]
    pub fn copies(&self) -> &[BlockCopy] {
        &self.copies
    }

    /// Staging pages that there must be.
    #[must_use]
    pub fn staging_pages(&self) -> u32 {
        self.staging_pages
    }

    /// Before which change it was made.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Memory that the bookkeeping needs for it.
    pub(super) fn room(&self) -> Room {
        let copies = self.copies.len();
        let staged = self.copies.iter().map(|copy| copy.staged.len()).sum();
        Room { blocks: copies, marks: 2 * copies, tables: copies, staged }
    }
}

/// A block that a write would change, and others could see it.
struct Found {
    slot: u32,
    place: u32,
    block: u32,
    kept: u32,
    /// Others hold it; else it is only found by its key.
    held: bool,
}

impl PagedPlanner {
    /// The copies that these writes need first; refused when there are not enough blocks for them and for the writes.
    pub fn plan_copies(&self, targets: &[Target]) -> Result<CopyPlan> {
        let (mut found, mut needed) = (Vec::new(), 0);
        for target in targets {
            needed += self.add_found(target, &mut found)?;
        }
        let held = found.iter().filter(|found| found.held).count() as u64;
        self.check_available(needed + held)?;
        let spare = u64::from(self.store.blocks.available()) - needed - held;
        let mut keyed = 0;
        found.retain(|found| {
            keyed += u64::from(!found.held);
            found.held || keyed <= spare
        });
        let mut upcoming = self.store.blocks.upcoming();
        let mut staging = self.store.staging.upcoming();
        let mut plan = CopyPlan { copies: Vec::new(), staging_pages: 0, revision: self.revision };
        reserve(&mut plan.copies, found.len())?;
        for Found { slot, place, block, kept, .. } in found {
            let target = upcoming.next().expect("a block that was counted available").block;
            let mut staged = Vec::new();
            for layer in 0..if self.low_bit { self.store.num_layers } else { 0 } {
                if kept > 0
                    && let Some(source) = self.store.staging.get(Page { block, layer })
                {
                    let target = staging.next().expect("an endless number of staging pages");
                    plan.staging_pages = plan.staging_pages.max(target + 1);
                    reserve(&mut staged, 1)?;
                    staged.push((layer, source, target));
                }
            }
            plan.copies.push(BlockCopy { source: block, target, staged, slot, place, kept });
        }
        Ok(plan)
    }

    /// Adds the blocks that a write would change and others could see; gives the number of blocks that it adds.
    fn add_found(&self, target: &Target, found: &mut Vec<Found>) -> Result<u64> {
        let of = self.sequence(target.sequence)?;
        if target.tokens == 0 {
            return Ok(0);
        }
        let (slot, block_size) = (self.slot(target.sequence)?, self.store.block_size);
        let end = u64::from(target.position) + u64::from(target.tokens);
        let places = end.div_ceil(block_size.into());
        let table = &of.content.table;
        // What was cut off the last block must not come back when the sequence grows past it.
        let tail = (of.content.length < target.position && of.content.length % block_size > 0)
            .then_some(of.content.length / block_size);
        let written = target.position / block_size..places.min(table.len().into()) as u32;
        for place in tail.into_iter().filter(|tail| !written.contains(tail)).chain(written.clone()) {
            let Some(block) = self.chunks.get(table, place) else { continue };
            let held = self.chunks.is_shared(table, place) || self.store.blocks.count(block) > 1;
            if held || self.store.index.key(block).is_some() {
                reserve(found, 1)?;
                found.push(Found { slot, place, block, kept: self.kept(of, place), held });
            }
        }
        Ok(places.saturating_sub(table.len().into()))
    }

    /// Slots of a block that a sequence's tokens lie in.
    pub(super) fn kept(&self, of: &Sequence, place: u32) -> u32 {
        of.end().saturating_sub(place * self.store.block_size).min(self.store.block_size)
    }

    /// Gives the writers the blocks that were copied for them. Refused as any plan that is no longer up to date.
    pub fn commit_copies(&mut self, plan: &CopyPlan) -> Result<()> {
        self.check_revision(plan.revision)?;
        if plan.copies.is_empty() {
            return Ok(());
        }
        self.take_room(plan.room())?;
        for copy in &plan.copies {
            let block = self.store.take();
            assert_eq!(block, copy.target, "blocks are handed out as announced");
            self.copy_bookkeeping(copy);
        }
        // Only now are blocks let go of, and may be free: those of each sequence from its end on.
        for of_sequence in plan.copies.chunk_by(|one, next| one.slot == next.slot) {
            let of = self.sequences[of_sequence[0].slot as usize].as_mut().expect("a sequence of an up-to-date plan");
            let (table, store) = (&mut of.content.table, self.store.chain());
            for copy in of_sequence.iter().rev() {
                self.chunks.replace(table, copy.place, copy.target, store);
            }
            self.chunks.hand_on(table, of_sequence[of_sequence.len() - 1].place, store);
            of.epoch += 1;
        }
        self.counters.copies += plan.copies.len() as u64;
        self.changed();
        Ok(())
    }

    /// The same, and then a plan that was made beside them writes to the copies. With the memory of
    /// [`PagedPlanner::reserve_after`] it is refused as any plan that is no longer up to date, and never else.
    pub fn commit_copies_before(&mut self, copies: &CopyPlan, plan: &mut WritePlan) -> Result<()> {
        self.check_revision(plan.revision)?;
        self.commit_copies(copies)?;
        if !copies.copies.is_empty() {
            self.fill(plan)?;
            plan.revision = self.revision;
        }
        Ok(())
    }

    /// What the write after some copies needs beyond what it was planned with: a page that lies in floats stays there for the
    /// others, and a copy without rows of it gets one of its own.
    pub(super) fn bare_room(&self, copies: &CopyPlan) -> Room {
        let bare = copies.copies.iter().filter(|copy| self.low_bit && copy.kept == 0).count();
        Room { staged: bare * self.store.num_layers as usize, ..Room::default() }
    }

    fn copy_bookkeeping(&mut self, copy: &BlockCopy) {
        let BlockCopy { source, target, kept, .. } = *copy;
        for layer in 0..self.store.num_layers {
            if self.store.marks.has_all(source, layer, 0..kept) {
                self.store.marks.set(target, layer, 0..kept);
            } else {
                for slot in 0..kept {
                    if self.store.marks.get(source, layer, slot) {
                        self.store.marks.set(target, layer, slot..slot + 1);
                    }
                }
            }
        }
        // What is not kept of it is in the copy too.
        self.store.dirty.insert_block(target);
        self.store.index.copy_tokens(source, target, kept);
        for &(layer, _, staged) in &copy.staged {
            let taken = self.store.staging.take(Page { block: target, layer });
            assert_eq!(taken, staged, "staging pages are handed out as announced");
        }
    }

    pub(super) fn check_revision(&self, revision: u64) -> Result<()> {
        if revision == self.revision {
            return Ok(());
        }
        Err(Error::argument("plan", "one made before the last change", "a plan made after it"))
    }
}
