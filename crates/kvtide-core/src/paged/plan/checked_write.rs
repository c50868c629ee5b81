//! A write and its checks: the sequences, positions and tokens to write, and the writer.

use std::ops::Range;

use crate::count::{COUNT_MAX, count};
use crate::drafts::TransactionId;
use crate::error::{BlockHolders, Error, Result, reserve};
use crate::paged::sequence::{NamedSeats, Sequence, Sequences};
use crate::paged::table::Tables;

/// The state of a planner that plans are made from.
#[derive(Clone, Copy, Debug)]
pub struct PlannerState<'a> {
    pub sequences: &'a Sequences,
    /// The tables of the sequences, and the blocks.
    pub tables: &'a Tables,
    /// The number of the last change.
    pub revision: u64,
    /// True if a sequence has one block, its state, which each write replaces.
    pub keeps_states: bool,
    /// True if a step of a draft gets a slot for the state after each of its tokens.
    pub drafts_each: bool,
}

impl PlannerState<'_> {
    pub fn block_size(&self) -> u32 {
        self.tables.block_size()
    }

    /// Returns an error if more blocks are needed than are available.
    pub fn check_available(&self, needed: u64) -> Result<()> {
        let free = u64::from(self.tables.pool().blocks().available());
        if needed <= free {
            return Ok(());
        }
        Err(Error::OutOfBlocks { needed, free, holders: Some(self.holders()) })
    }

    /// True if so many slots can be taken for states that a draft may not need: they are unused, or few of all slots.
    fn spares(&self, slots: u64) -> bool {
        let blocks = self.tables.pool().blocks();
        let (unused, all) = (u64::from(blocks.free_count()), u64::from(blocks.capacity()));
        slots <= unused || slots <= u64::from(blocks.available()) && slots * SPARED <= all
    }

    /// The holders of blocks that are not available. O(1).
    pub fn holders(&self) -> BlockHolders {
        let blocks = self.tables.pool().blocks().active_count().into();
        BlockHolders { sequences: self.sequences.count() as u64, blocks }
    }
}

/// Slots for a draft may be evicted from checkpoints if they are at most this part of all slots.
const SPARED: u64 = 8;

pub(super) fn room<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    reserve(list, more, "sequences and blocks of a call")
}

/// Tokens to be written to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTarget {
    /// The sequence.
    pub sequence: u64,
    /// The first position.
    pub position: u32,
    /// The number of tokens.
    pub tokens: u32,
}

/// Tokens of all layers to be appended to sequences.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The sequences, each once.
    pub sequences: &'a [u64],
    /// Sequence i gets the tokens `offsets[i]..offsets[i + 1]`; without offsets, each sequence gets one token.
    pub offsets: Option<&'a [u32]>,
    /// The parent of each token in its sequence's draft; -1 is the token before the draft. Without parents, the tokens
    /// form a chain.
    pub parents: Option<&'a [i32]>,
    /// The writer of these tokens.
    pub writer: Writer,
}

/// The writer of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A direct call, for which no draft and no step may be open.
    Direct,
    /// A transaction; it must be the innermost one.
    Draft(TransactionId),
    /// A step; it writes into the innermost transaction, if one is open.
    Step,
}

/// The part of a write that goes to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub sequence: u64,
    /// The sequence's seat.
    pub seat: u32,
    /// The first position.
    pub position: u32,
    pub tokens: u32,
    /// Blocks that the sequence lacks for these tokens.
    pub new_blocks: u32,
    /// The sequence's length afterwards is at least this number.
    pub end: u32,
    /// True if a draft is open, which may roll the tokens back.
    pub drafted: bool,
    /// True if the rows of low-bit pages stay in floats until the draft or step ends: a draft's rows, and a step's,
    /// which its queries read.
    pub keeps_floats: bool,
    /// The end of its runs in the plan's list.
    pub runs_end: u32,
}

impl Share {
    /// Returns a sequence's share for a target, in blocks of `size` tokens, without its runs.
    pub fn new(seat: u32, target: &WriteTarget, writer: Writer, state: PlannerState<'_>) -> Self {
        let (of, size) = (state.sequences.at(seat), state.block_size());
        let &WriteTarget { sequence, position, tokens } = target;
        let drafted = of.drafts().depth() > 0;
        let keeps_floats = drafted || writer == Writer::Step;
        let end = if tokens == 0 { 0 } else { position.saturating_add(tokens) };
        let new_blocks = match state.keeps_states {
            true if drafted && writer == Writer::Step && state.drafts_each => tokens,
            true => u32::from(tokens > 0),
            false => end.div_ceil(size).saturating_sub(of.table().len()),
        };
        Share { sequence, seat, position, tokens, new_blocks, end, drafted, keeps_floats, runs_end: 0 }
    }
}

/// A checked write, for [`PagedPlanner::plan_write`](crate::paged::PagedPlanner::plan_write).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is planned yet"]
pub struct CheckedWrite {
    pub(super) layers: Range<u32>,
    pub(super) shares: Vec<Share>,
    /// The parent of each token in its draft.
    pub(super) parents: Option<Vec<i32>>,
    pub(super) revision: u64,
}

impl CheckedWrite {
    /// Checks an append of tokens to all layers. O(sequences), and a bit for each seat.
    pub(in crate::paged) fn of_append(append: &Append<'_>, state: PlannerState<'_>) -> Result<Self> {
        let &Append { sequences, offsets, parents, writer } = append;
        count("sequences.length", sequences.len() as u64)?;
        check_offsets(sequences.len(), offsets)?;
        let all = offsets.map_or(sequences.len() as u32, |offsets| offsets[sequences.len()]);
        if let Some(parents) = parents
            && parents.len() != all as usize
        {
            return Err(Error::argument("parents.length", parents.len(), format!("{all}, one for each token")));
        }
        let layers = 0..state.tables.pool().num_layers();
        let mut write = CheckedWrite { layers, shares: Vec::new(), parents: None, revision: state.revision };
        room(&mut write.shares, sequences.len())?;
        let mut named = NamedSeats::of(if sequences.len() > 1 { state.sequences.num_seats() } else { 0 })?;
        for (place, &sequence) in (0..).zip(sequences) {
            let Ok(seat) = state.sequences.seat(sequence) else {
                // A sequence named twice takes precedence over one that does not exist.
                check_once(sequences)?;
                return Err(Error::SequenceNotFound { sequence });
            };
            if sequences.len() > 1 && !named.insert(seat) {
                return Err(Error::argument("sequences", sequence, "each sequence once"));
            }
            let tokens = offsets.map_or(place..place + 1, |of| of[place as usize]..of[place as usize + 1]);
            let of = state.sequences.at(seat);
            let target = WriteTarget { sequence, position: of.end(), tokens: tokens.end - tokens.start };
            target.check(of, writer, state)?;
            if let Some(parents) = parents {
                let own = &parents[tokens.start as usize..tokens.end as usize];
                let first = (of.drafts().drafted() - of.drafts().start()) as i32 - 1;
                if state.keeps_states && own.iter().zip(first..).any(|(parent, before)| *parent != before) {
                    return Err(Error::argument("parents", "a tree", "a chain, because the model keeps states"));
                }
                of.drafts().check_parents(own)?;
            }
            write.shares.push(Share::new(seat, &target, writer, state));
        }
        if state.drafts_each && !state.spares(write.new_blocks()) {
            write.shares.iter_mut().for_each(|share| share.new_blocks = share.new_blocks.min(1));
        }
        if let Some(parents) = parents {
            let copy = write.parents.insert(Vec::new());
            room(copy, parents.len())?;
            copy.extend_from_slice(parents);
        }
        Ok(write)
    }

    /// Checks a write of tokens to one existing layer.
    pub(in crate::paged) fn of_layer(layer: u32, target: &WriteTarget, state: PlannerState<'_>) -> Result<Self> {
        if target.position >= COUNT_MAX {
            return Err(Error::argument("pos", target.position, format!("below {COUNT_MAX}")));
        }
        let seat = state.sequences.seat(target.sequence)?;
        let of = state.sequences.at(seat);
        target.check(of, Writer::Direct, state)?;
        let mut shares = Vec::new();
        room(&mut shares, 1)?;
        shares.push(Share::new(seat, target, Writer::Direct, state));
        Ok(CheckedWrite { layers: layer..layer + 1, shares, parents: None, revision: state.revision })
    }

    /// Number of tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.shares.iter().map(|share| share.tokens).sum()
    }

    /// Number of blocks that the sequences lack.
    pub fn new_blocks(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.new_blocks)).sum()
    }

    pub(in crate::paged) fn revision(&self) -> u64 {
        self.revision
    }
}

impl WriteTarget {
    /// Returns an error if the tokens must not be written now, or do not fit.
    fn check(&self, of: &Sequence, writer: Writer, state: PlannerState<'_>) -> Result<()> {
        of.check_resting()?;
        match writer {
            Writer::Direct if of.drafts().depth() > 0 => return Err(Error::TransactionOpen { object: "sequence" }),
            Writer::Draft(id) => of.drafts().check(id)?,
            Writer::Direct | Writer::Step => {}
        }
        let most = COUNT_MAX - self.position;
        if self.tokens > most {
            let expected = format!("at most {most} from position {} on", self.position);
            return Err(Error::argument("tokens", self.tokens, expected));
        }
        let size = state.block_size();
        let last = (self.position + self.tokens).div_ceil(size).min(of.content().cleared());
        match (self.position / size..last).find(|&place| state.tables.get(of.table(), place).is_none()) {
            Some(place) => Err(Error::PositionOutOfRange {
                sequence: self.sequence,
                layer: 0,
                position: (place * size).max(self.position).into(),
                length: of.length().into(),
            }),
            None => Ok(()),
        }
    }
}

/// Returns an error if the offsets do not divide the tokens among the sequences in order.
fn check_offsets(sequences: usize, offsets: Option<&[u32]>) -> Result<()> {
    let Some(offsets) = offsets else { return Ok(()) };
    if offsets.len() != sequences + 1 {
        let expected = format!("{}, one more than sequences", sequences + 1);
        return Err(Error::argument("offsets.length", offsets.len(), expected));
    }
    if offsets[0] != 0 {
        return Err(Error::argument("offsets", offsets[0], "0 at place 0"));
    }
    match offsets.windows(2).enumerate().find(|(_, pair)| pair[0] > pair[1]) {
        Some((place, pair)) => {
            Err(Error::argument("offsets", pair[1], format!("at least {} at place {}", pair[0], place + 1)))
        }
        None => Ok(()),
    }
}

fn check_once(sequences: &[u64]) -> Result<()> {
    let mut sorted = sequences.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::argument("sequences", pair[0], "each sequence once")),
        None => Ok(()),
    }
}
