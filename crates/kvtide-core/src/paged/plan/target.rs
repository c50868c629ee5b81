//! What is to be written, checked: by whom, in which sequences, at which positions.

use super::state::PlannerState;
use crate::count::{COUNT_MAX, count};
use crate::drafts::TransactionId;
use crate::error::{Error, Result};
use crate::paged::sequence::{NamedSeats, Sequence};

/// Tokens that are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTarget {
    /// The sequence.
    pub sequence: u64,
    /// The first position.
    pub position: u32,
    /// How many.
    pub tokens: u32,
}

/// Tokens of all layers that are to be appended.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The sequences, each once.
    pub sequences: &'a [u64],
    /// Sequence i gets the tokens `offsets[i]..offsets[i + 1]`; without offsets one each.
    pub offsets: Option<&'a [u32]>,
    /// For each token the one of its sequence's draft that it follows, -1 for the one before the draft; without, a chain.
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
    /// A step, which writes into the innermost transaction if there is one.
    Step,
}

impl Append<'_> {
    /// Checks an append, and gives its targets with their sequences and the seats of those. O(sequences), and a bit for each seat.
    pub(in crate::paged) fn each_target(
        &self,
        state: PlannerState<'_>,
        mut each: impl FnMut(u32, &Sequence, WriteTarget),
    ) -> Result<()> {
        let &Append { sequences, offsets, parents, writer } = self;
        count("sequences.length", sequences.len() as u64)?;
        check_offsets(sequences.len(), offsets)?;
        let all = offsets.map_or(sequences.len() as u32, |offsets| offsets[sequences.len()]);
        if let Some(parents) = parents
            && parents.len() != all as usize
        {
            let expected = format!("{all}, one for each token");
            return Err(Error::argument("parents.length", parents.len(), expected));
        }
        let mut named = NamedSeats::of(if sequences.len() > 1 { state.sequences.num_seats() } else { 0 })?;
        for (place, &sequence) in (0..).zip(sequences) {
            let Ok(seat) = state.sequences.seat(sequence) else {
                // One that is named twice is refused as such, whether it is there or not.
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
            each(seat, of, target);
        }
        Ok(())
    }
}

impl WriteTarget {
    /// Refuses tokens that may not be written to their sequence now, or that do not fit there.
    pub(in crate::paged) fn check(&self, of: &Sequence, writer: Writer, state: PlannerState<'_>) -> Result<()> {
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

/// Refuses offsets that do not cut the tokens in one piece for each sequence.
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

/// Refuses a sequence that is named twice.
fn check_once(sequences: &[u64]) -> Result<()> {
    let mut sorted = sequences.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::argument("sequences", pair[0], "each sequence once")),
        None => Ok(()),
    }
}
