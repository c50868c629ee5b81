//! The sequences of a paged cache: which block and slot each token lies in.
//!
//! ```text
//! sequence 7   [ block 2 ][ block 0 ][ block 5 ]     tokens 0..16, 16..32, 32..48 of every layer
//! sequence 8 = fork of 7: the same table             the first write into block 5 gives the writer a copy of it
//! ```
//!
//! Invariants: the blocks' counts agree with the tables. Where pages are staged, exactly those are whose slots are marked in part,
//! that a draft filled, or that a truncation cut. Dropping or cutting a sequence is O(its blocks), forking it O(1).

use crate::count::{count, count_positive};
use crate::error::{Error, Result, reserve};
use crate::paged::index::Identity;
use crate::paged::plan::PlannerState;
use crate::paged::pool::{Blocks, EvictionPolicy, PRIORITY_MAX, PagePool};
use crate::paged::sequence::{Content, HeldContent, KeyChain, NamedSeats, Sequences};
use crate::paged::table::{Reservation, Table, Tables};
use crate::paged::window::Window;

/// Decides where a paged cache keeps the tokens of its sequences.
#[derive(Debug)]
pub struct PagedPlanner {
    pub(super) tables: Tables,
    pub(super) sequences: Sequences,
    /// The tokens that later ones see, if not all.
    pub(super) window: Option<Window>,
    /// Counts the changes that make plans stale.
    pub(super) revision: u64,
    pub(super) counters: PlannerCounters,
    /// How often all prefixes were forgotten.
    pub(super) forgotten: u64,
}

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannerCounters {
    /// Blocks copied because others held them when they were written.
    pub copies: u64,
    /// Tokens of the prompts that were looked for.
    pub asked_tokens: u64,
    /// Tokens of those prompts that were found.
    pub found_tokens: u64,
}

/// What a pool holds, in blocks, and what it has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Blocks in all.
    pub total: u32,
    /// Blocks with nothing in them.
    pub free: u32,
    /// Blocks that nobody holds and that prompts can find.
    pub cached: u32,
    /// Blocks that somebody holds.
    pub active: u32,
    /// Blocks that were cached and had to make room.
    pub evictions: u64,
    /// Copies and tokens found, since the start.
    pub counters: PlannerCounters,
}

impl PagedPlanner {
    /// A cache of `capacity` blocks, each of `block_size` tokens of all layers.
    pub fn new(capacity: u32, block_size: u32, num_layers: u32) -> Result<Self> {
        PagedPlanner::of_blocks(Blocks::new(capacity)?, block_size, num_layers)
    }

    /// A cache of these blocks, none of which is in use. They bring their order of eviction.
    pub fn of_blocks(blocks: Blocks, block_size: u32, num_layers: u32) -> Result<Self> {
        let block_size = count_positive("blockSize", block_size.into())?;
        let num_layers = count_positive("numLayers", num_layers.into())?;
        Ok(PagedPlanner {
            tables: Tables::new(PagePool::new(blocks, num_layers, block_size)?),
            sequences: Sequences::default(),
            window: None,
            revision: 0,
            counters: PlannerCounters::default(),
            forgotten: 0,
        })
    }

    /// Stages pages until they are full, for low-bit formats.
    #[must_use]
    pub fn staging_pages(mut self) -> Self {
        self.tables = self.tables.with_pool(PagePool::staging_pages);
        self
    }

    /// Evicts blocks in the order of this policy. None may be in use yet.
    #[must_use]
    pub fn evicting(mut self, policy: Box<dyn EvictionPolicy>) -> Self {
        self.tables = self.tables.with_pool(|pool| pool.evicting(policy));
        self
    }

    /// Gives back blocks that leave this window.
    #[must_use]
    pub fn sliding(mut self, window: Window) -> Self {
        self.window = Some(window);
        self
    }

    /// A new, empty sequence. Ids count up from 0 and are never used again.
    pub fn create_sequence(&mut self) -> Result<u64> {
        self.create_sequence_of(Identity::default())
    }

    /// A new, empty sequence whose tokens are found by prompts of this identity.
    pub fn create_sequence_of(&mut self, identity: Identity) -> Result<u64> {
        self.sequences.reserve()?;
        Ok(self.sequences.add(Content::new(KeyChain::new(identity, self.forgotten))))
    }

    /// A new sequence with the tokens of another, sharing all its blocks. Drafted tokens count as committed in the
    /// fork, but prompts do not find it from the first drafted token on.
    pub fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.sequences.reserve()?;
        let source = self.sequences.resting(sequence)?;
        let content = self.sequences.at(source).fork(&mut self.tables);
        self.changed();
        Ok(self.sequences.add(content))
    }

    /// Ends a sequence and gives up its blocks, and with it its open drafts and step.
    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        self.sequences.remove(sequence)?.release(&mut self.tables);
        self.changed();
        Ok(())
    }

    /// Drops the tokens from `length` on. Refused where the window has dropped tokens that the next one would see; where only sinks
    /// stay, or nothing, it never is.
    pub fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        let seat = self.seat_to_truncate(sequence, length)?;
        self.tables.reserve(self.cut_room(seat, length, 0))?;
        self.sequences.at_mut(seat).cut(length, 0, &mut self.tables);
        self.changed();
        Ok(())
    }

    /// Refuses what [`PagedPlanner::truncate`] would refuse.
    pub fn check_truncate(&self, sequence: u64, length: u32) -> Result<()> {
        self.seat_to_truncate(sequence, length).map(drop)
    }

    fn seat_to_truncate(&self, sequence: u64, length: u32) -> Result<u32> {
        let seat = self.sequences.idle(sequence)?;
        let content = self.sequences.at(seat).content();
        let before = content.length();
        let refused = |reason| Err(Error::CannotRollBack { requested: length.into(), seq_len: before.into(), reason });
        if length > before {
            return refused("there are not so many");
        }
        if length < before && self.window.is_some_and(|window| content.is_gone(length, window, self.block_size())) {
            return refused("tokens shortly before that have left the window");
        }
        Ok(seat)
    }

    /// The reservation of a cut, and of what leaves the window when a transaction ends.
    pub(super) fn cut_room(&self, seat: u32, length: u32, blocks: u32) -> Reservation {
        let size = self.block_size();
        let kept = length.div_ceil(size).max(blocks).min(self.sequences.at(seat).table().len());
        Reservation { tables: 2, marks: kept.saturating_sub(length / size) as usize, ..Reservation::default() }
    }

    /// Gives each sequence blocks for a total number of tokens. Takes all missing blocks or none.
    pub fn ensure_capacity(&mut self, wanted: &[(u64, u32)]) -> Result<()> {
        let missing = self.missing_blocks(wanted)?;
        self.take_missing(wanted, &missing);
        Ok(())
    }

    /// How many blocks each sequence lacks for a total number of tokens, and the memory to take them. Refused if there are too few.
    pub fn missing_blocks(&mut self, wanted: &[(u64, u32)]) -> Result<Vec<u32>> {
        let mut missing = Vec::new();
        reserve(&mut missing, wanted.len(), "sequences and blocks of a call")?;
        let mut named = NamedSeats::of(if wanted.len() > 1 { self.sequences.num_seats() } else { 0 })?;
        for &(sequence, tokens) in wanted {
            let seat = self.sequences.seat(sequence)?;
            if wanted.len() > 1 && !named.insert(seat) {
                return Err(Error::argument("sequences", sequence, "each sequence once"));
            }
            let blocks = count("tokens", tokens.into())?.div_ceil(self.block_size());
            missing.push(blocks.saturating_sub(self.sequences.at(seat).table().len()));
        }
        let all: u64 = missing.iter().map(|&blocks| u64::from(blocks)).sum();
        self.state().check_available(all)?;
        self.tables.reserve(Reservation { blocks: all as usize, tables: wanted.len(), ..Reservation::default() })?;
        Ok(missing)
    }

    /// Takes the blocks that [`PagedPlanner::missing_blocks`] has just counted.
    pub fn take_missing(&mut self, wanted: &[(u64, u32)], missing: &[u32]) {
        for (&(sequence, _), &missing) in wanted.iter().zip(missing) {
            let seat = self.sequences.seat(sequence).expect("a sequence that was found");
            self.sequences.at_mut(seat).add_blocks(missing, &mut self.tables);
        }
        self.changed();
    }

    /// Sets the priority, 0 to 100, of the blocks that hold some of these tokens of a sequence: until a time of
    /// [`PagedPlanner::advance_clock`], or for good. An empty range names no block.
    ///
    /// 1. The block with the lowest *rank* is evicted first; of equal ones the one released first.
    /// 2. A block's own rank is what the [`EvictionPolicy`] makes of its priority and its place in the sequence;
    ///    without a policy it is the priority. The priority is 50 unless given, and again once its limit is over.
    /// 3. A released block hands its rank on to all blocks before it in that sequence, whether they are released too
    ///    or stay: in a truncation or a restore, when a fork ends, when a writer gets a copy. A block's rank is the
    ///    highest of its own and those handed on to it, and it hands that on in turn. So no block is evicted before
    ///    the blocks that follow it, which could not be found without it.
    /// 4. Ranks with limits are joined: the highest until the limit, the highest from then on. Of two limits it takes
    ///    the later if the rank falls, the earlier if it rises. So it is never lower than a rank it is made of.
    /// 5. A new priority discards what was handed on to the block so far. The blocks before it keep theirs. The block
    ///    itself may now be evicted before blocks that followed it and were released earlier.
    /// 6. A block that left the window is released before those that follow it, which are found without it. It hands
    ///    its rank on to the sinks alone.
    /// 7. A copy for a writer starts with the default priority and nothing handed on to it.
    pub fn retain(
        &mut self,
        sequence: u64,
        tokens: std::ops::Range<u32>,
        priority: u8,
        until: Option<u64>,
    ) -> Result<()> {
        if priority > PRIORITY_MAX {
            return Err(Error::argument("priority", u32::from(priority), "0 to 100"));
        }
        let of = self.sequences.find(sequence)?;
        let (table, size) = (of.table(), self.block_size());
        let end = if tokens.is_empty() { 0 } else { tokens.end.div_ceil(size).min(table.len()) };
        let places = tokens.start / size..end;
        let mut blocks = Vec::new();
        reserve(&mut blocks, places.len(), "sequences and blocks of a call")?;
        blocks.extend(places.filter_map(|place| self.tables.get(table, place)));
        self.tables.pool_mut().set_priorities(&blocks, priority, until)
    }

    /// Which tokens later ones see, where not all.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// Tokens of a sequence, with those of open drafts; 0 for an unknown one.
    #[must_use]
    pub fn sequence_length(&self, sequence: u64) -> u32 {
        self.sequences.find(sequence).map_or(0, |of| of.length())
    }

    /// Tokens of a sequence that no draft can take back; 0 for an unknown one.
    #[must_use]
    pub fn committed_length(&self, sequence: u64) -> u32 {
        self.sequences.find(sequence).map_or(0, |of| of.committed())
    }

    /// Slots of a sequence's blocks; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_capacity(&self, sequence: u64) -> u64 {
        let blocks = self.sequences.find(sequence).map_or(0, |of| of.table().len());
        u64::from(blocks) * u64::from(self.block_size())
    }

    /// Their ids, ascending. O(n log n).
    #[must_use]
    pub fn sequence_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.sequences.iter().map(|of| of.id()).collect();
        ids.sort_unstable();
        ids
    }

    /// Refuses a sequence with an open transaction or step.
    pub fn check_idle(&self, sequence: u64) -> Result<()> {
        self.sequences.idle(sequence).map(drop)
    }

    /// Refuses a sequence with an open step.
    pub fn check_resting(&self, sequence: u64) -> Result<()> {
        self.sequences.resting(sequence).map(drop)
    }

    /// Refuses a layer that is not there.
    pub fn check_layer(&self, layer: u32) -> Result<()> {
        if layer < self.num_layers() {
            return Ok(());
        }
        Err(Error::argument("layer", layer, format!("below {}", self.num_layers())))
    }

    /// Tells the time: priorities of [`PagedPlanner::retain`] whose limit is over end.
    pub fn advance_clock(&mut self, now: u64) {
        self.tables.pool_mut().advance(now);
        self.changed();
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.tables.block_size()
    }

    /// Layers of a block.
    #[must_use]
    pub fn num_layers(&self) -> u32 {
        self.tables.pool().num_layers()
    }

    /// Blocks that can be taken, cached ones among them.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.tables.pool().blocks().available()
    }

    /// Blocks in use, cached or free.
    #[must_use]
    pub fn total_count(&self) -> u32 {
        self.tables.pool().blocks().capacity()
    }

    /// Pages that are staged.
    #[must_use]
    pub fn staged_count(&self) -> u32 {
        self.tables.pool().staging().len()
    }

    /// Bytes of the bookkeeping of blocks and tables, without ids of tokens, sequences, staged pages, extras and events.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tables.bytes()
    }

    /// What it holds, and what it has done.
    #[must_use]
    pub fn pool_stats(&self) -> PoolStats {
        let blocks = self.tables.pool().blocks();
        PoolStats {
            total: blocks.capacity(),
            free: blocks.available() - blocks.cached_count(),
            cached: blocks.cached_count(),
            active: blocks.active_count(),
            evictions: blocks.evictions(),
            counters: self.counters,
        }
    }

    /// Says what is wrong with the bookkeeping, if anything. `held` is what holds blocks besides sequences. O(slots).
    pub fn check_invariants(&self, held: &[&HeldContent]) -> Result<(), String> {
        let of_sequences = self.sequences.iter().map(|of| of.table());
        let tables: Vec<&Table> = of_sequences.chain(held.iter().map(|held| held.0.table())).collect();
        self.tables.check(&tables)?;
        self.sequences.check(self.block_size())
    }

    /// What plans are made from.
    pub(super) fn state(&self) -> PlannerState<'_> {
        PlannerState { sequences: &self.sequences, tables: &self.tables, revision: self.revision }
    }

    /// Makes plans from before stale: lengths, tables, drafts, which block is taken next, or who holds a block have changed.
    pub(super) fn changed(&mut self) {
        self.revision += 1;
    }

    /// Refuses a stale plan.
    pub(super) fn check_revision(&self, revision: u64) -> Result<()> {
        if revision == self.revision {
            return Ok(());
        }
        Err(Error::argument("plan", "one made before the last change", "a plan made after it"))
    }
}
