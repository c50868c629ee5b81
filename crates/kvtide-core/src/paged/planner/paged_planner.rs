//! The sequences of a paged cache: the block and slot of each token.
//!
//! ```text
//! sequence 7   [ block 2 ][ block 0 ][ block 5 ]     tokens 0..16, 16..32, 32..48 of every layer
//! sequence 8 = fork of 7: the same table             the first write into block 5 gives the writer a copy of it
//! ```
//!
//! Invariants: the blocks' reference counts agree with the tables. If pages are staged, exactly these are: pages whose
//! slots are partly marked, that a draft filled, or that a truncation cut. Dropping or cutting a sequence is O(its
//! blocks), forking it is O(1).

use crate::count::{COUNT_MAX, count, count_positive};
use crate::error::{Error, Result, reserve};
use crate::paged::index::Identity;
use crate::paged::plan::PlannerState;
use crate::paged::pool::{Blocks, EvictionPolicy, PRIORITY_MAX, PagePool};
use crate::paged::sequence::{HeldContent, NamedSeats, Sequences};
use crate::paged::table::{Reservation, Table, Tables};
use crate::paged::window::Window;

/// Decides the block and slot of each token of a paged cache's sequences.
#[derive(Debug)]
pub struct PagedPlanner {
    pub(super) tables: Tables,
    pub(super) sequences: Sequences,
    /// The tokens that later tokens attend to, if not all.
    pub(super) window: Option<Window>,
    /// True if a sequence has one block, its state.
    pub(super) keeps_states: bool,
    /// True if the steps of drafts keep the state after each of their tokens.
    pub(super) drafts_each: bool,
    /// Number of changes that made plans stale.
    pub(super) revision: u64,
    pub(super) counters: PlannerCounters,
    /// Number of times that all prefixes were forgotten.
    pub(super) forgotten: u64,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannerCounters {
    /// Blocks that were copied because others held them when they were written.
    pub copies: u64,
    /// Tokens of the prompts that were looked up.
    pub asked_tokens: u64,
    /// Tokens of those prompts that were cache hits.
    pub found_tokens: u64,
    /// Tokens of those prompts that are cached in all groups of attention, and that no prompt can continue from for want
    /// of a state.
    pub lost_tokens: u64,
}

/// The blocks of a pool by state, and its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// All blocks.
    pub total: u32,
    /// Blocks without content.
    pub free: u32,
    /// Blocks that are not held and that prompts can find.
    pub cached: u32,
    /// Blocks that are held.
    pub active: u32,
    /// Cached blocks that were evicted.
    pub evictions: u64,
    /// Copies, and tokens looked up and found, since the start.
    pub counters: PlannerCounters,
}

impl PagedPlanner {
    /// Returns a cache of `capacity` blocks, each with `block_size` tokens of all layers.
    pub fn new(capacity: u32, block_size: u32, num_layers: u32) -> Result<Self> {
        PagedPlanner::of_blocks(Blocks::new(capacity)?, block_size, num_layers)
    }

    /// Returns a cache of these blocks, none of which is in use. The blocks contain their order of eviction.
    pub(crate) fn of_blocks(blocks: Blocks, block_size: u32, num_layers: u32) -> Result<Self> {
        let block_size = count_positive("blockSize", block_size.into())?;
        let num_layers = count_positive("numLayers", num_layers.into())?;
        Ok(PagedPlanner {
            tables: Tables::new(PagePool::new(blocks, num_layers, block_size)?),
            sequences: Sequences::default(),
            window: None,
            keeps_states: false,
            drafts_each: false,
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

    /// Uses this eviction policy. No block may be in use yet.
    #[must_use]
    pub fn evicting(mut self, policy: Box<dyn EvictionPolicy>) -> Self {
        self.tables = self.tables.with_pool(|pool| pool.evicting(policy));
        self
    }

    /// Releases blocks that leave this window.
    #[must_use]
    pub fn sliding(mut self, window: Window) -> Self {
        self.window = Some(window);
        self
    }

    /// Creates an empty sequence. Ids count up from 0 and are never reused.
    pub fn create_sequence(&mut self) -> Result<u64> {
        self.create_sequence_of(Identity::default())
    }

    /// Creates an empty sequence whose tokens are found by prompts with this identity.
    pub fn create_sequence_of(&mut self, identity: Identity) -> Result<u64> {
        self.sequences.reserve()?;
        Ok(self.sequences.add(self.empty_content(identity)))
    }

    /// Creates a sequence with the tokens of another, sharing all its blocks. Drafted tokens count as committed in the
    /// fork, but prompts do not find it from the first drafted token on. Tokens of an open step are not included.
    pub fn fork(&mut self, sequence: u64) -> Result<u64> {
        self.sequences.reserve()?;
        let source = self.seat_to_fork(sequence)?;
        self.changed();
        Ok(self.sequences.add(self.sequences.at(source).fork(&mut self.tables)))
    }

    /// Returns the seat of a sequence whose content is shared next, and reserves memory for that.
    pub(super) fn seat_to_fork(&mut self, sequence: u64) -> Result<u32> {
        let seat = self.sequences.seat(sequence)?;
        self.tables.reserve(Reservation { tables: 1, ..Reservation::default() })?;
        Ok(seat)
    }

    /// Drops a sequence with its open drafts and step, and releases its blocks.
    pub fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        // Its step wrote into a block that forks may hold.
        self.soil_step(self.sequences.seat(sequence)?);
        self.sequences.remove(sequence)?.release(&mut self.tables);
        self.changed();
        Ok(())
    }

    /// Drops the tokens from `length` on. Returns an error if the window has dropped tokens that the next token would
    /// attend to; truncating to sinks alone, or to nothing, always succeeds.
    pub fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        let seat = self.seat_to_truncate(sequence, length)?;
        self.tables.reserve(self.cut_room(seat, length, 0))?;
        match self.keeps_states {
            true => self.sequences.at_mut(seat).cut_state(length, &mut self.tables),
            false => self.sequences.at_mut(seat).cut(length, 0, &mut self.tables),
        }
        self.changed();
        Ok(())
    }

    /// Returns the errors of [`PagedPlanner::truncate`] without truncating.
    pub fn check_truncate(&self, sequence: u64, length: u32) -> Result<()> {
        self.seat_to_truncate(sequence, length).map(drop)
    }

    fn seat_to_truncate(&self, sequence: u64, length: u32) -> Result<u32> {
        let seat = self.sequences.idle(sequence)?;
        let content = self.sequences.at(seat).content();
        let before = content.length();
        let refused = |reason| Err(Error::CannotRollBack { requested: length.into(), seq_len: before.into(), reason });
        if length > before {
            return refused("the sequence has fewer tokens");
        }
        if self.keeps_states {
            return self.check_state(seat, length).map(|()| seat);
        }
        if length < before && self.window.is_some_and(|window| content.is_gone(length, window, self.block_size())) {
            return refused("tokens right before it have left the window");
        }
        Ok(seat)
    }

    /// The reservation for a cut, and for blocks that leave the window when a transaction ends.
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

    /// Returns the number of blocks that each sequence lacks for a total number of tokens, and reserves memory to take
    /// them. Returns an error if there are too few blocks.
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
            let held = if self.keeps_states { blocks } else { self.sequences.at(seat).table().len() };
            missing.push(blocks.saturating_sub(held));
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

    /// Sets the priority, 0 to 100, of the blocks that contain some of these tokens of a sequence: until a time of
    /// [`PagedPlanner::advance_clock`], or without a limit. An empty range selects no block.
    ///
    /// 1. The block with the lowest *rank* is evicted first; among equal ranks, the one released first.
    /// 2. A block's own rank is what the [`EvictionPolicy`] computes from its priority and its place in the sequence;
    ///    without a policy it is the priority. The priority is 50 unless set, and again after its limit.
    /// 3. A released block hands its rank on to all blocks before it in that sequence, both released ones and those
    ///    that stay: in a truncation or a restore, when a fork ends, when a writer gets a copy. A block's rank is the
    ///    highest of its own and those handed on to it, and the block hands that rank on in turn. So no block is
    ///    evicted before the blocks that follow it, which prompts could not find without it.
    /// 4. Ranks with limits are combined: the highest until the limit, the highest from then on. Of two limits, the
    ///    combination has the later one if the rank falls, the earlier one if it rises. So it is never lower than a
    ///    rank it is made of.
    /// 5. A new priority discards what was handed on to the block so far. The blocks before it keep theirs. The block
    ///    itself may now be evicted before blocks that followed it and were released earlier.
    /// 6. A block that leaves the window is released before those that follow it, which prompts find without it. It
    ///    hands its rank on to the sinks only.
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
        if self.keeps_states {
            for slot in of.content().states_at(places, &self.tables) {
                reserve(&mut blocks, 1, "sequences and blocks of a call")?;
                blocks.push(slot);
            }
        } else {
            reserve(&mut blocks, places.len(), "sequences and blocks of a call")?;
            blocks.extend(places.filter_map(|place| self.tables.get(table, place)));
        }
        self.tables.pool_mut().set_priorities(&blocks, priority, until)
    }

    /// The tokens that later tokens attend to, if not all.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// Number of tokens of a sequence, including those of open drafts; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_length(&self, sequence: u64) -> u32 {
        self.sequences.find(sequence).map_or(0, |of| of.length())
    }

    /// Number of tokens of a sequence that no draft can roll back; 0 for an unknown sequence.
    #[must_use]
    pub fn committed_length(&self, sequence: u64) -> u32 {
        self.sequences.find(sequence).map_or(0, |of| of.committed())
    }

    /// Number of slots in a sequence's blocks; 0 for an unknown sequence.
    #[must_use]
    pub fn sequence_capacity(&self, sequence: u64) -> u64 {
        let Ok(of) = self.sequences.find(sequence) else { return 0 };
        let blocks = if self.keeps_states { COUNT_MAX / self.block_size() } else { of.table().len() };
        u64::from(blocks) * u64::from(self.block_size())
    }

    /// The ids of all sequences, ascending. O(n log n).
    #[must_use]
    pub fn sequence_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.sequences.iter().map(|of| of.id()).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns an error if the sequence has an open transaction or step.
    pub fn check_idle(&self, sequence: u64) -> Result<()> {
        self.sequences.idle(sequence).map(drop)
    }

    /// Returns an error if the sequence has an open transaction.
    pub fn check_undrafted(&self, sequence: u64) -> Result<()> {
        self.sequences.undrafted(sequence).map(drop)
    }

    /// Returns an error if the sequence has an open step.
    pub fn check_resting(&self, sequence: u64) -> Result<()> {
        self.sequences.resting(sequence).map(drop)
    }

    /// Returns an error if the layer does not exist.
    pub fn check_layer(&self, layer: u32) -> Result<()> {
        if layer < self.num_layers() {
            return Ok(());
        }
        Err(Error::argument("layer", layer, format!("below {}", self.num_layers())))
    }

    /// Sets the time: priorities of [`PagedPlanner::retain`] whose limit has passed end.
    pub fn advance_clock(&mut self, now: u64) {
        self.tables.pool_mut().advance(now);
        self.changed();
    }

    /// Number of tokens in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.tables.block_size()
    }

    /// Number of layers in a block.
    #[must_use]
    pub fn num_layers(&self) -> u32 {
        self.tables.pool().num_layers()
    }

    /// Number of blocks that can be taken, including cached ones, and slots of states between drafted tokens.
    #[must_use]
    pub fn free_count(&self) -> u32 {
        self.tables.pool().blocks().available() + self.spare_states()
    }

    /// Number of blocks in use, cached or free.
    #[must_use]
    pub fn total_count(&self) -> u32 {
        self.tables.pool().blocks().capacity()
    }

    /// Number of staged pages.
    #[must_use]
    pub fn staged_count(&self) -> u32 {
        self.tables.pool().staging().len()
    }

    /// Bytes of the bookkeeping of blocks and tables, without token ids, sequences, staged pages, extras and events.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tables.bytes()
    }

    /// The state of the pool, and its counters.
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

    /// Returns an error of the bookkeeping, if any. `held` must be all content that holds blocks besides sequences.
    /// O(slots).
    pub fn check_invariants(&self, held: &[&HeldContent]) -> Result<(), String> {
        let of_sequences = self.sequences.iter().flat_map(|of| of.tables());
        let tables: Vec<&Table> = of_sequences.chain(held.iter().map(|held| held.0.table())).collect();
        self.tables.check(&tables)?;
        self.sequences.check(self.block_size())
    }

    /// The state that plans are made from.
    pub(super) fn state(&self) -> PlannerState<'_> {
        PlannerState {
            sequences: &self.sequences,
            tables: &self.tables,
            revision: self.revision,
            keeps_states: self.keeps_states,
            drafts_each: self.drafts_each,
        }
    }

    /// Makes earlier plans stale: lengths, tables, drafts, the next block to take, or a block's holders have changed.
    pub(super) fn changed(&mut self) {
        self.revision += 1;
    }

    /// Returns an error if the plan is stale.
    pub(super) fn check_revision(&self, revision: u64) -> Result<()> {
        if revision == self.revision {
            return Ok(());
        }
        Err(Error::argument("plan", "one made before the last change", "a plan made after it"))
    }
}
