//! The sequences of a planner: their content, and the tokens that are not committed yet.
//!
//! ```text
//! id 7, 9, 4 -> seat 0, 1, 2     [ committed | transactions | step ]
//! ```
//!
//! A sequence keeps its seat until it is dropped. Seats are reused, ids are not. Finding a sequence is O(1).

mod states;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::content::Content;
use crate::drafts::{Drafts, Ending, TransactionId};
use crate::error::{Error, Result, reserve};
use crate::paged::index::BlockKey;
use crate::paged::table::{Table, Tables};
use crate::paged::window::Window;
use crate::tree::Tree;
use states::DraftedStates;

/// The tokens of one sequence in an open step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenStep {
    pub tokens: u32,
    /// The revision of the step's plan, which identifies the step among open ones.
    pub revision: u64,
}

#[derive(Debug)]
pub struct Sequence {
    id: u64,
    content: Content,
    step: Option<OpenStep>,
    /// The parent of each token of the open step, if it is a tree. Meaningless without an open step.
    step_parents: Vec<i32>,
    /// Open transactions; their tokens are the sequence's last ones.
    drafts: Drafts,
    /// Number of blocks that it had when the outermost transaction began.
    blocks_before: u32,
    /// Number of changes to blocks already in its table, except those that leave the window.
    epoch: u64,
    /// The slots that an open step writes, if it keeps states.
    new_states: Option<Table>,
    /// The content from before each open transaction, if it keeps states.
    bases: Vec<Content>,
    /// The states between the tokens of the last step of an open transaction, and the ids of these tokens, if known.
    drafted: Option<DraftedStates>,
    drafted_ids: Vec<u32>,
}

impl Sequence {
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn content(&self) -> &Content {
        &self.content
    }

    pub fn table(&self) -> &Table {
        self.content.table()
    }

    /// Number of tokens, including those of open transactions.
    pub fn length(&self) -> u32 {
        self.content.length()
    }

    /// Number of tokens that no transaction can roll back.
    pub fn committed(&self) -> u32 {
        self.length() - self.drafts.drafted()
    }

    /// Number of tokens, including those of open transactions and of an open step.
    pub fn end(&self) -> u32 {
        self.length() + self.step.map_or(0, |step| step.tokens)
    }

    pub fn drafts(&self) -> &Drafts {
        &self.drafts
    }

    pub fn drafts_mut(&mut self) -> &mut Drafts {
        &mut self.drafts
    }

    pub fn is_in_step(&self, revision: u64) -> bool {
        self.step.is_some_and(|step| step.revision == revision)
    }

    pub fn check_resting(&self) -> Result<()> {
        match self.step {
            None => Ok(()),
            Some(_) => Err(Error::StepOpen { object: "sequence" }),
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of slots that its tokens use in the block at a place.
    pub fn kept(&self, place: u32, size: u32) -> u32 {
        self.end().saturating_sub(place * size).min(size)
    }

    /// Returns content that shares its blocks, without the tokens of an open step and the blocks that were taken for
    /// them. Prompts never find drafted tokens, in the copy either. Memory for one change of a table is reserved.
    #[inline]
    pub fn fork(&self, tables: &mut Tables) -> Content {
        let mut content = self.content.fork(tables);
        if content.keeps_states() {
            if self.drafts.drafted() > 0 {
                content.forget_ids();
            }
            return content;
        }
        content.keys_mut().limit(self.committed());
        if self.step.is_some() {
            tables.truncate(content.table_mut(), self.length().div_ceil(tables.block_size()));
        }
        content
    }

    pub fn restore(&mut self, content: Content, tables: &mut Tables) {
        self.epoch += 1;
        std::mem::replace(&mut self.content, content).release(tables);
    }

    pub fn forget_before(&mut self, forgotten: u64) {
        self.content.forget_before(forgotten);
        self.forget_bases_before(forgotten);
    }

    /// Records the ids of its leading tokens: see [`Content::identify`].
    pub fn identify(&mut self, tokens: &[u32], tables: &mut Tables) -> u32 {
        self.content.identify(tokens, tables)
    }

    /// Adds new blocks, which must be available. Their memory is reserved.
    pub fn add_blocks(&mut self, blocks: u32, tables: &mut Tables) {
        tables.add_new(self.content.table_mut(), blocks);
    }

    /// Replaces blocks by copies at some places, which are in order.
    pub fn replace(&mut self, copies: impl DoubleEndedIterator<Item = (u32, u32)>, tables: &mut Tables) {
        tables.replace(self.content.table_mut(), copies);
        self.epoch += 1;
    }

    /// Drops the tokens from `length` on: see [`Content::cut`].
    pub fn cut(&mut self, length: u32, blocks: u32, tables: &mut Tables) {
        self.content.cut(length, blocks, tables);
        self.epoch += 1;
    }

    /// Counts tokens that were written at a position; their ids may be known.
    pub fn append(&mut self, position: u32, tokens: u32, are_known: bool, parents: Option<&[i32]>, tables: &Tables) {
        if tokens > 0 {
            self.content.cut_keys(position, tables);
            self.content.set_length(self.length().max(position + tokens));
        }
        if are_known {
            self.content.keys_mut().extend(position, tokens);
        }
        self.drafts.append(tokens, parents);
    }

    /// Gives full, committed blocks their keys, and releases blocks that left the window.
    pub fn finish_blocks(&mut self, window: Option<Window>, tables: &mut Tables) {
        let committed = self.committed();
        self.content.name_blocks(committed, tables);
        if let Some(window) = window {
            self.content.clear_passed(committed, window, tables);
        }
    }

    /// Reserves memory for the parents of a step's tokens.
    pub fn reserve_parents(&mut self, tokens: usize) -> Result<()> {
        self.step_parents.clear();
        reserve(&mut self.step_parents, tokens, "sequences and blocks of a call")
    }

    /// Opens a step, whose tokens may have parents. Their memory is reserved.
    pub fn open_step(&mut self, step: OpenStep, parents: &[i32]) {
        self.step_parents.clear();
        self.step_parents.extend_from_slice(parents);
        self.step = Some(step);
    }

    pub fn close_step(&mut self) {
        self.step = None;
    }

    /// Ends its step without a trace, and removes the blocks that the step had taken.
    pub fn undo_step(&mut self, blocks: u32, tables: &mut Tables) {
        self.close_step();
        let left = self.table().len() - blocks;
        tables.truncate(self.content.table_mut(), left);
        self.epoch += 1;
    }

    /// Ends its step and counts its tokens as the sequence's own. The caller must cut them off next.
    pub fn take_step(&mut self) {
        self.content.set_length(self.end());
        self.step = None;
    }

    /// Opens a transaction that was checked.
    pub fn begin(&mut self) -> TransactionId {
        if self.drafts.depth() == 0 {
            self.blocks_before = self.table().len();
        }
        self.drafts.begin(0)
    }

    /// Number of blocks that stay when a transaction ends, even if fewer tokens do: after the outermost transaction,
    /// the blocks from before it; until then, also the blocks taken for future tokens.
    pub fn blocks_after(&self, ending: &Ending) -> u32 {
        if ending.is_outermost() { self.blocks_before } else { self.table().len() }
    }

    /// Ends a transaction whose tokens were cut off as planned. Only the first `in_order` tokens form a chain, as those
    /// of a prompt do, and at most the first `named` tokens keep known ids.
    pub fn end_draft(&mut self, ending: &Ending, in_order: u32, named: u32, tables: &Tables) {
        self.content.cut_keys(in_order, tables);
        self.content.keys_mut().limit(named);
        self.drafts.end(ending);
    }

    /// Number of leading tokens that form a chain, as those of a prompt do, once a transaction has ended and left
    /// `length` tokens. The rest of a tree does not count, unless it is a path.
    pub fn in_order_after(&self, ending: &Ending, length: u32) -> u32 {
        match self.drafts.kept_parents(ending).filter(|_| ending.is_outermost()) {
            Some(parents) => {
                let chain = parents.iter().zip(-1..).take_while(|(parent, before)| **parent == *before).count();
                self.committed() + chain as u32
            }
            None => length,
        }
    }

    /// The tree of its last tokens, including those of an open step; [`None`] if they are a chain.
    ///
    /// ```text
    /// [ committed | 0 1 2 | 3 4 ]     nodes of open transactions, then those of an open step
    /// ```
    pub fn tree(&self) -> Result<Option<Tree>> {
        let parents = self.step.map(|_| &self.step_parents).filter(|parents| !parents.is_empty());
        if parents.is_none() && !self.drafts.is_branched() {
            return Ok(None);
        }
        let mut tree = Tree::joined([self.drafts.tree()])?;
        let tokens = self.end() - self.length();
        tree.reserve(tokens)?;
        match parents {
            Some(parents) => tree.extend_from(self.drafts.start() as usize, parents),
            None => tree.extend_chain(tokens),
        }
        Ok(Some(tree).filter(|tree| !tree.is_chain()))
    }

    /// True if it has the block of this key at a place, with known tokens but not yet the key: the block is drafted, or
    /// not written in all layers. O(tokens without a key).
    pub fn drafts_block(&self, key: &BlockKey, place: u32, tables: &Tables) -> bool {
        let (keys, size) = (self.content.keys(), tables.block_size());
        let known = if self.drafts.is_branched() { keys.known().min(self.committed()) } else { keys.known() };
        let tokens = |at| Some(tables.pool().index().tokens(tables.get(self.table(), at)?));
        place >= keys.keyed() && place < known / size && keys.upcoming(place, size, tokens) == Some(*key)
    }

    fn check(&self, size: u32) -> Result<(), String> {
        let (keys, id) = (self.content.keys(), self.id);
        // The slot of an open step is not in the table.
        let covered = if self.content.keeps_states() { self.length() } else { self.end() };
        if covered > self.table().len() * size {
            return Err(format!("sequence {id} has {} tokens in {} blocks", self.end(), self.table().len()));
        }
        if keys.keyed() * size > keys.known() || keys.known() > self.length() {
            return Err(format!("sequence {id} has keys for tokens that it does not know"));
        }
        self.drafts.check_invariants()?;
        if self.drafts.drafted() > self.length() {
            return Err(format!("sequence {id} has {} tokens, its drafts more", self.length()));
        }
        Ok(())
    }
}

/// All sequences of a planner.
#[derive(Debug, Default)]
pub struct Sequences {
    seated: Vec<Option<Sequence>>,
    free_seats: Vec<u32>,
    seats: HashMap<u64, u32, BuildHasherDefault<IdHasher>>,
    next_id: u64,
}

impl Sequences {
    pub fn reserve(&mut self) -> Result<()> {
        let count = self.seats.len() as u64 + 1;
        let refused = |_| Error::OutOfMemory { count, what: "sequences" };
        self.seats.try_reserve(1).map_err(refused)?;
        if self.free_seats.is_empty() {
            self.seated.try_reserve(1).map_err(refused)?;
            self.free_seats.try_reserve(self.seated.len() + 1).map_err(refused)?;
        }
        Ok(())
    }

    /// Adds a sequence. Its memory is reserved.
    pub fn add(&mut self, content: Content) -> u64 {
        let id = self.next_id;
        let sequence = Sequence {
            id,
            content,
            step: None,
            step_parents: Vec::new(),
            drafts: Drafts::default(),
            blocks_before: 0,
            epoch: 0,
            new_states: None,
            bases: Vec::new(),
            drafted: None,
            drafted_ids: Vec::new(),
        };
        let seat = self.free_seats.pop().unwrap_or_else(|| {
            self.seated.push(None);
            self.seated.len() as u32 - 1
        });
        self.seated[seat as usize] = Some(sequence);
        self.seats.insert(id, seat);
        self.next_id += 1;
        id
    }

    pub fn remove(&mut self, id: u64) -> Result<Sequence> {
        let seat = self.seats.remove(&id).ok_or(Error::SequenceNotFound { sequence: id })?;
        self.free_seats.push(seat);
        Ok(self.seated[seat as usize].take().expect("a sequence that was found"))
    }

    pub fn seat(&self, id: u64) -> Result<u32> {
        self.seats.get(&id).copied().ok_or(Error::SequenceNotFound { sequence: id })
    }

    /// The sequence in a seat, if there still is one.
    pub fn get(&self, seat: u32) -> Option<&Sequence> {
        self.seated.get(seat as usize)?.as_ref()
    }

    /// The sequence in a seat that was found.
    pub fn at(&self, seat: u32) -> &Sequence {
        self.seated[seat as usize].as_ref().expect("a sequence that was found")
    }

    pub fn at_mut(&mut self, seat: u32) -> &mut Sequence {
        self.seated[seat as usize].as_mut().expect("a sequence that was found")
    }

    pub fn find(&self, id: u64) -> Result<&Sequence> {
        Ok(self.at(self.seat(id)?))
    }

    /// The seat of a sequence. Returns an error if it has an open step.
    pub fn resting(&self, id: u64) -> Result<u32> {
        let seat = self.seat(id)?;
        self.at(seat).check_resting()?;
        Ok(seat)
    }

    /// The seat of a sequence. Returns an error if it has an open transaction or step.
    pub fn idle(&self, id: u64) -> Result<u32> {
        self.resting(id)?;
        self.undrafted(id)
    }

    /// The seat of a sequence. Returns an error if it has an open transaction.
    pub fn undrafted(&self, id: u64) -> Result<u32> {
        let seat = self.seat(id)?;
        match self.at(seat).drafts.depth() {
            0 => Ok(seat),
            _ => Err(Error::TransactionOpen { object: "sequence" }),
        }
    }

    /// Number of open sequences.
    pub fn count(&self) -> usize {
        self.seats.len()
    }

    /// Number of seats, used or free.
    pub fn num_seats(&self) -> usize {
        self.seated.len()
    }

    /// All sequences, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.seated.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.seated.iter_mut().flatten()
    }

    pub fn check(&self, block_size: u32) -> Result<(), String> {
        self.iter().try_for_each(|of| of.check(block_size))
    }
}

/// The set of sequences that a call names: a bit for each seat.
pub struct NamedSeats(Vec<u64>);

impl NamedSeats {
    pub fn of(seats: usize) -> Result<Self> {
        let mut words = Vec::new();
        reserve(&mut words, seats.div_ceil(64), "sequences and blocks of a call")?;
        words.resize(seats.div_ceil(64), 0);
        Ok(NamedSeats(words))
    }

    /// Adds a seat; false if it is in the set already.
    pub fn insert(&mut self, seat: u32) -> bool {
        let (word, bit) = (&mut self.0[seat as usize / 64], 1 << (seat % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

/// A hasher for ids that count up. Attackers cannot choose them, so one multiplication suffices.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl std::hash::Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    #[inline]
    fn write_u64(&mut self, id: u64) {
        // Any odd number with bits in all places.
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
