//! What is to be written, checked: by whom, in which sequences, at which positions.

use super::copying::Target;
use super::sequence::Sequence;
use super::sequences::PagedPlanner;
use crate::count::{COUNT_MAX, count};
use crate::drafts::TransactionId;
use crate::error::{Error, Result};

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

impl PagedPlanner {
    /// What [`PagedPlanner::plan_tokens`] will write, for the copies before it.
    pub fn tokens_target(&self, sequence: u64, layer: u32, position: u32, tokens: u32) -> Result<Target> {
        self.check_layer(layer)?;
        if position >= COUNT_MAX {
            return Err(Error::argument("pos", position, format!("below {COUNT_MAX}")));
        }
        let target = Target { sequence, position, tokens };
        self.check_target(&target, Writer::Direct)?;
        Ok(target)
    }

    /// What [`PagedPlanner::plan_append`] will write, for the copies before it.
    pub fn append_targets(&self, append: &Append<'_>) -> Result<Vec<Target>> {
        let mut targets = Vec::new();
        reserve(&mut targets, append.sequences.len())?;
        self.each_target(append, |_, target| targets.push(target))?;
        Ok(targets)
    }

    /// Checks an append, and gives its targets with the slots of their sequences. O(sequences), and a bit for each sequence there
    /// is.
    pub(super) fn each_target(&self, append: &Append<'_>, mut each: impl FnMut(u32, Target)) -> Result<()> {
        let &Append { sequences, offsets, parents, writer } = append;
        count("sequences.length", sequences.len() as u64)?;
        check_offsets(sequences.len(), offsets)?;
        let all = offsets.map_or(sequences.len() as u32, |offsets| offsets[sequences.len()]);
        if let Some(parents) = parents
            && parents.len() != all as usize
        {
            let expected = format!("{all}, one for each token");
            return Err(Error::argument("parents.length", parents.len(), expected));
        }
        let mut named = Named::of(if sequences.len() > 1 { self.sequences.len() } else { 0 })?;
        for (place, &sequence) in (0..).zip(sequences) {
            let Ok(slot) = self.slot(sequence) else {
                // One that is named twice is refused as such, whether it is there or not.
                check_once(sequences)?;
                return Err(Error::SequenceNotFound { sequence });
            };
            if sequences.len() > 1 && !named.insert(slot) {
                return Err(Error::argument("sequences", sequence, "each sequence once"));
            }
            let tokens = offsets.map_or(place..place + 1, |of| of[place as usize]..of[place as usize + 1]);
            let of = self.at(slot);
            let target = Target { sequence, position: of.end(), tokens: tokens.end - tokens.start };
            self.check_target_of(of, &target, writer)?;
            if let Some(parents) = parents {
                of.drafts.check_parents(&parents[tokens.start as usize..tokens.end as usize])?;
            }
            each(slot, target);
        }
        Ok(())
    }

    fn check_target(&self, target: &Target, writer: Writer) -> Result<()> {
        self.check_target_of(self.sequence(target.sequence)?, target, writer)
    }

    fn check_target_of(&self, of: &Sequence, target: &Target, writer: Writer) -> Result<()> {
        let object = "sequence";
        match writer {
            _ if of.stepping.is_some() => return Err(Error::StepOpen { object }),
            Writer::Direct if of.drafts.depth() > 0 => return Err(Error::TransactionOpen { object }),
            Writer::Draft(id) => of.drafts.check(id)?,
            Writer::Direct | Writer::Step => {}
        }
        let most = COUNT_MAX - target.position;
        if target.tokens > most {
            let expected = format!("at most {most} from position {} on", target.position);
            return Err(Error::argument("tokens", target.tokens, expected));
        }
        let block_size = self.store.block_size;
        let last = (target.position + target.tokens).div_ceil(block_size).min(of.content.cleared);
        match (target.position / block_size..last).find(|&place| self.chunks.get(&of.content.table, place).is_none()) {
            Some(place) => Err(Error::PositionOutOfRange {
                sequence: target.sequence,
                layer: 0,
                position: (place * block_size).max(target.position).into(),
                length: of.content.length.into(),
            }),
            None => Ok(()),
        }
    }
}

/// The sequences that were named, by their slots.
pub(super) struct Named(Vec<u64>);

impl Named {
    pub(super) fn of(slots: usize) -> Result<Self> {
        let mut words = Vec::new();
        reserve(&mut words, slots.div_ceil(64))?;
        words.resize(slots.div_ceil(64), 0);
        Ok(Named(words))
    }

    /// False for one that was named before.
    pub(super) fn insert(&mut self, slot: u32) -> bool {
        let (word, bit) = (&mut self.0[slot as usize / 64], 1 << (slot % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

/// Makes room in what is written down of a call.
pub(super) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    list.try_reserve(more)
        .map_err(|_| Error::OutOfMemory { count: more as u64, what: "sequences and blocks of a call" })
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
