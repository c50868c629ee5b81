//! What is to be written, in which sequences, at which positions and on whose behalf; and its checks.

use std::ops::Range;

use crate::count::{COUNT_MAX, count};
use crate::drafts::TransactionId;
use crate::error::{Error, Result, reserve};
use crate::paged::sequence::{NamedSeats, Sequence, Sequences};
use crate::paged::table::Tables;

/// What plans are made from.
#[derive(Clone, Copy, Debug)]
pub struct PlannerState<'a> {
    pub sequences: &'a Sequences,
    /// Their tables, and the blocks.
    pub tables: &'a Tables,
    /// Which change was the last.
    pub revision: u64,
}

impl PlannerState<'_> {
    pub fn block_size(&self) -> u32 {
        self.tables.block_size()
    }

    /// Refuses more blocks than can be taken.
    pub fn check_available(&self, needed: u64) -> Result<()> {
        let free = u64::from(self.tables.pool().blocks().available());
        if needed > free { Err(Error::OutOfBlocks { needed, free }) } else { Ok(()) }
    }
}

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
    /// How many.
    pub tokens: u32,
}

/// Tokens of all layers to be appended to sequences.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The sequences, each once.
    pub sequences: &'a [u64],
    /// Sequence i gets the tokens `offsets[i]..offsets[i + 1]`; without offsets one each.
    pub offsets: Option<&'a [u32]>,
    /// The parent of each token in its sequence's draft, -1 for the token before the draft; without parents, a chain.
    pub parents: Option<&'a [i32]>,
    /// On whose behalf.
    pub writer: Writer,
}

/// On whose behalf tokens are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Nobody's: no draft and no step may be open.
    Direct,
    /// A transaction; it must be the innermost one.
    Draft(TransactionId),
    /// A step; it writes into the innermost transaction, if one is open.
    Step,
}

/// What one sequence gets of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub sequence: u64,
    /// Where it sits.
    pub seat: u32,
    /// The first position.
    pub position: u32,
    pub tokens: u32,
    /// Blocks that it lacks for them.
    pub new_blocks: u32,
    /// Its length is at least this much afterwards.
    pub end: u32,
    /// Whether a draft is open, which may take the tokens back.
    pub drafted: bool,
    /// Its runs end before this one.
    pub runs_end: u32,
}

impl Share {
    /// A sequence's share for a target, in blocks of `size` tokens; without its runs.
    pub fn new(seat: u32, of: &Sequence, target: &WriteTarget, size: u32) -> Self {
        let &WriteTarget { sequence, position, tokens } = target;
        let drafted = of.drafts().depth() > 0;
        let share = Share { sequence, seat, position, tokens: 0, new_blocks: 0, end: 0, drafted, runs_end: 0 };
        share.with_tokens(tokens, of.table().len(), size)
    }

    /// The share of its first `tokens` tokens.
    pub fn shortened(self, tokens: u32, size: u32) -> Self {
        // Without the blocks that it lacked, the sequence has those before them.
        self.with_tokens(tokens, self.end.div_ceil(size) - self.new_blocks, size)
    }

    fn with_tokens(self, tokens: u32, blocks: u32, size: u32) -> Self {
        let end = if tokens == 0 { 0 } else { self.position.saturating_add(tokens) };
        Share { tokens, end, new_blocks: end.div_ceil(size).saturating_sub(blocks), ..self }
    }
}

/// A checked write, for [`PagedPlanner::plan_write`](crate::paged::PagedPlanner::plan_write).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is planned yet"]
pub struct CheckedWrite {
    pub(super) layers: Range<u32>,
    pub(super) shares: Vec<Share>,
    /// The parent of each token, in its draft.
    pub(super) parents: Option<Vec<i32>>,
    pub(super) revision: u64,
}

impl CheckedWrite {
    /// Tokens of all layers that are appended. O(sequences), and a bit for each seat.
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
                // Being named twice is refused first, whether or not the sequence exists.
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
                of.drafts().check_parents(&parents[tokens.start as usize..tokens.end as usize])?;
            }
            write.shares.push(Share::new(seat, of, &target, state.block_size()));
        }
        if let Some(parents) = parents {
            let copy = write.parents.insert(Vec::new());
            room(copy, parents.len())?;
            copy.extend_from_slice(parents);
        }
        Ok(write)
    }

    /// Tokens of one layer, which is there.
    pub(in crate::paged) fn of_layer(layer: u32, target: &WriteTarget, state: PlannerState<'_>) -> Result<Self> {
        if target.position >= COUNT_MAX {
            return Err(Error::argument("pos", target.position, format!("below {COUNT_MAX}")));
        }
        let seat = state.sequences.seat(target.sequence)?;
        let of = state.sequences.at(seat);
        target.check(of, Writer::Direct, state)?;
        let mut shares = Vec::new();
        room(&mut shares, 1)?;
        shares.push(Share::new(seat, of, target, state.block_size()));
        Ok(CheckedWrite { layers: layer..layer + 1, shares, parents: None, revision: state.revision })
    }

    /// Tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.shares.iter().map(|share| share.tokens).sum()
    }

    /// Blocks that its sequences lack.
    pub(super) fn new_blocks(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.new_blocks)).sum()
    }

    pub(in crate::paged) fn revision(&self) -> u64 {
        self.revision
    }
}

impl WriteTarget {
    /// Refuses tokens that may not be written now, or that do not fit.
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

/// Refuses offsets that do not divide the tokens among the sequences in order.
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
