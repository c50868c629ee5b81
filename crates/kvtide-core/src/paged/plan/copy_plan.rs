//! Copies before writes: a block that others see as well is copied for the one who writes it, that block and nothing else.
//!
//! ```text
//! found by others, held by others     copied
//! found by others only                copied while blocks are there; else it is no longer found
//! ```
//!
//! O(blocks written).

use super::share::Share;
use super::state::{PlannerState, room};
use crate::error::Result;
use crate::paged::pages::Page;
use crate::paged::sequence::Sequence;
use crate::paged::table::Reservation;

/// A block to copy, all its layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block that others hold too.
    pub source: u32,
    /// The block that the writer gets.
    pub target: u32,
    /// Its pages that lie in staging pages: the layer, and the staging pages of source and target.
    pub staged: Vec<(u32, u32, u32)>,
    seat: u32,
    place: u32,
    /// Slots of the source that the writer's tokens lie in.
    kept: u32,
}

impl BlockCopy {
    /// Where the writer sits, and the place of the block in its table.
    pub(in crate::paged) fn place(&self) -> (u32, u32) {
        (self.seat, self.place)
    }

    pub(in crate::paged) fn kept(&self) -> u32 {
        self.kept
    }
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
    pub(in crate::paged) fn revision(&self) -> u64 {
        self.revision
    }

    /// Memory that the bookkeeping needs for it.
    pub(in crate::paged) fn room(&self) -> Reservation {
        let copies = self.copies.len();
        let staged = self.copies.iter().map(|copy| copy.staged.len()).sum();
        Reservation { blocks: copies, marks: 2 * copies, tables: copies, staged }
    }

    /// What the write after it needs beyond what it was planned with, where pages have so many layers that are staged: a page that
    /// lies in floats stays there for the others, and a copy without rows of it gets one of its own.
    pub(in crate::paged) fn bare_room(&self, staged_layers: u32) -> Reservation {
        let bare = self.copies.iter().filter(|copy| copy.kept == 0).count();
        Reservation { staged: bare * staged_layers as usize, ..Reservation::default() }
    }
}

/// A block that a write would change, and others could see it.
#[derive(Debug)]
struct SharedBlock {
    seat: u32,
    place: u32,
    block: u32,
    kept: u32,
    /// Others hold it; else it is only found by its key.
    held: bool,
}

/// The blocks that some writes would change, and others could see.
#[derive(Debug, Default)]
pub struct SharedBlocks(Vec<SharedBlock>);

impl SharedBlocks {
    /// Notes the blocks that a share is written to; those it lacks are nobody's.
    pub fn add_share(&mut self, share: &Share, of: &Sequence, state: PlannerState<'_>) -> Result<()> {
        if share.tokens == 0 {
            return Ok(());
        }
        self.add_tail(share, of, state)?;
        let size = state.block_size();
        let places = share.position / size..share.end.div_ceil(size).min(of.table().len());
        for (place, block) in places.clone().zip(state.tables.iter(of.table(), places.start)) {
            if let Some(block) = block {
                self.add(share.seat, of, (place, block), state)?;
            }
        }
        Ok(())
    }

    /// Notes the block with a sequence's last tokens, where a share begins behind it: what was cut off it must not come back when the
    /// sequence grows past it.
    pub fn add_tail(&mut self, share: &Share, of: &Sequence, state: PlannerState<'_>) -> Result<()> {
        let (length, size) = (of.length(), state.block_size());
        let place = length / size;
        if share.tokens > 0
            && length < share.position
            && !length.is_multiple_of(size)
            && place < share.position / size
            && let Some(block) = state.tables.get(of.table(), place)
        {
            self.add(share.seat, of, (place, block), state)?;
        }
        Ok(())
    }

    /// Notes a block at a place of a sequence, if others could see it.
    pub fn add(&mut self, seat: u32, of: &Sequence, (place, block): (u32, u32), state: PlannerState<'_>) -> Result<()> {
        let held = state.tables.is_held_twice(of.table(), place, block);
        if held || state.tables.pool().index().key(block).is_some() {
            room(&mut self.0, 1)?;
            self.0.push(SharedBlock { seat, place, block, kept: of.kept(place, state.block_size()), held });
        }
        Ok(())
    }

    /// Refuses more blocks than there are for so many new ones and for those that others hold.
    pub fn check_available(&self, new_blocks: u64, state: PlannerState<'_>) -> Result<()> {
        state.check_available(new_blocks + self.held())
    }

    fn held(&self) -> u64 {
        self.0.iter().filter(|shared| shared.held).count() as u64
    }

    /// Which of them are copied, to which blocks, where a write takes so many new ones.
    pub fn plan(mut self, new_blocks: u64, state: PlannerState<'_>) -> Result<CopyPlan> {
        self.check_available(new_blocks, state)?;
        let pool = state.tables.pool();
        let spare = u64::from(pool.blocks().available()) - new_blocks - self.held();
        let mut keyed = 0;
        self.0.retain(|shared| {
            keyed += u64::from(!shared.held);
            shared.held || keyed <= spare
        });
        let mut upcoming = pool.blocks().upcoming();
        let mut staging = pool.staging().upcoming();
        let mut plan = CopyPlan { copies: Vec::new(), staging_pages: 0, revision: state.revision };
        room(&mut plan.copies, self.0.len())?;
        for SharedBlock { seat, place, block, kept, .. } in self.0 {
            let target = upcoming.next().expect("a block that was counted available").block;
            let mut staged = Vec::new();
            for layer in 0..if pool.is_low_bit() && kept > 0 { pool.num_layers() } else { 0 } {
                if let Some(source) = pool.staging().get(Page { block, layer }) {
                    let target = staging.next().expect("an endless number of staging pages");
                    plan.staging_pages = plan.staging_pages.max(target + 1);
                    room(&mut staged, 1)?;
                    staged.push((layer, source, target));
                }
            }
            plan.copies.push(BlockCopy { source: block, target, staged, seat, place, kept });
        }
        Ok(plan)
    }
}
