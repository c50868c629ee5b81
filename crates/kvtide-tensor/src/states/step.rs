//! The sequences of a step, and their division into units of work.
//!
//! ```text
//! tokens   a a a b c c         offsets 0 3 4 4 6:  the third sequence has no token
//! heads    0 1 2 3 | 4 5 6 7   a unit: one sequence, and heads of one group, at most some
//! ```
//!
//! A unit has its rows of the output, and its part of the states, to itself. Making units takes a pointer for each token and
//! block of heads.

use std::ops::Range;

use super::rows::{check_floats, floats_of};
use crate::base::error::{Error, Result};
use crate::base::memory::reserved;
use crate::base::threads::{threads, try_share_all};
use crate::device::form::{Form, Kernels};
use crate::kernels::tile::TileKernels;

/// The state of one sequence of a step.
#[derive(Debug)]
pub struct StepState<'a> {
    /// The state before the step; `None` for zeros.
    pub source: Option<&'a [f32]>,
    /// Memory for the state after the step.
    pub target: &'a mut [f32],
    /// Memory for the state after each token but the last, or empty: a draft keeps them, because any of its tokens may become
    /// the last one.
    pub drafted: Vec<&'a mut [f32]>,
}

impl<'a> StepState<'a> {
    /// A state before a step, or zeros, and memory for that after the step.
    pub fn new(source: Option<&'a [f32]>, target: &'a mut [f32]) -> Self {
        StepState { source, target, drafted: Vec::new() }
    }
}

/// The number of multiplications below which waking another thread does not pay.
const ALONE_MAX: usize = 1 << 18;

/// The sizes of a step's heads, or channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pub heads: usize,
    /// The number of heads that may be in one unit: units don't cross a group.
    pub group: usize,
    /// The most heads of a unit.
    pub most: usize,
    /// The floats of one head in a state.
    pub state: usize,
    /// The floats of one head in a row of the output.
    pub out: usize,
}

/// One sequence and some heads.
pub(super) struct Unit<'a> {
    /// The sequence's rows.
    pub tokens: Range<usize>,
    pub heads: Range<usize>,
    /// The state before the step; `None` if that is in `target`.
    pub source: Option<&'a [f32]>,
    pub target: &'a mut [f32],
    /// The unit's part of the state after each token but the last, or empty.
    pub drafted: Vec<&'a mut [f32]>,
    /// The unit's part of the output, for each token.
    pub out: Vec<&'a mut [f32]>,
}

impl Unit<'_> {
    /// Keeps the state after a token, by its index, if it is to be kept.
    pub fn keep(&mut self, index: usize) {
        if let Some(drafted) = self.drafted.get_mut(index) {
            drafted.copy_from_slice(self.target);
        }
    }
}

impl Division {
    /// The heads of each unit of a sequence.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (group, most) = (self.group, self.most);
        (0..self.heads).step_by(group).flat_map(move |first| {
            (first..first + group).step_by(most).map(move |start| start..(start + most).min(first + group))
        })
    }

    /// Fails unless offsets, states and output fit `tokens` rows.
    pub fn check(&self, offsets: &[usize], states: &[StepState<'_>], out: &[f32], tokens: usize) -> Result<()> {
        check_offsets(offsets, states.len(), tokens)?;
        check_floats("out", out, &[tokens, self.heads, self.out])?;
        let floats = floats_of(&[self.heads, self.state]);
        check_states(offsets, states, floats)
    }

    /// The units of a step that was checked.
    fn units<'a>(
        &self,
        offsets: &[usize],
        states: &'a mut [StepState<'_>],
        mut out: &'a mut [f32],
    ) -> Result<Vec<Unit<'a>>> {
        let blocks = self.blocks().count();
        let mut units = reserved(states.len() * blocks)?;
        for (state, offsets) in states.iter_mut().zip(offsets.windows(2)) {
            let (tokens, first) = (offsets[0]..offsets[1], units.len());
            let (mut source, mut target) = (state.source, &mut *state.target);
            let mut left: Vec<&'a mut [f32]> = reserved(state.drafted.len())?;
            left.extend(state.drafted.iter_mut().map(|drafted| &mut **drafted));
            if source.is_none() {
                target.fill(0.0);
            }
            for heads in self.blocks() {
                let floats = heads.len() * self.state;
                let (part, rest) = target.split_at_mut(floats);
                target = rest;
                let source = source.as_mut().map(|source| source.split_off(..floats).unwrap_or_default());
                let mut drafted = reserved(left.len())?;
                drafted.extend(left.iter_mut().map(|left| left.split_off_mut(..floats).unwrap_or_default()));
                let out = reserved(tokens.len())?;
                units.push(Unit { tokens: tokens.clone(), heads, source, target: part, drafted, out });
            }
            for _ in tokens {
                for unit in &mut units[first..] {
                    let row: &'a mut [f32] = out.split_off_mut(..unit.heads.len() * self.out).unwrap_or_default();
                    unit.out.push(row);
                }
            }
        }
        Ok(units)
    }

    /// Calls `work` with each unit, on all threads if `products` are many. Units without tokens get their states copied.
    pub fn run(
        &self,
        offsets: &[usize],
        states: &mut [StepState<'_>],
        out: &mut [f32],
        products: usize,
        work: impl Fn(Unit<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let units = self.units(offsets, states, out)?;
        let limit = if products < ALONE_MAX { 1 } else { threads()? };
        try_share_all(units, limit, |unit| {
            if !unit.tokens.is_empty() {
                return work(unit);
            }
            if let Some(source) = unit.source {
                unit.target.copy_from_slice(source);
            }
            Ok(())
        })
    }
}

/// Fails unless `offsets` divide `tokens` rows among `sequences` sequences.
pub(super) fn check_offsets(offsets: &[usize], sequences: usize, tokens: usize) -> Result<()> {
    let fits = offsets.len() == sequences + 1
        && offsets.first() == Some(&0)
        && offsets.last() == Some(&tokens)
        && offsets.is_sorted();
    if fits {
        return Ok(());
    }
    let expected = format!("{} ascending numbers from 0 to {tokens}, for {sequences} states", sequences + 1);
    Err(Error::ShapeMismatch { argument: "offsets", value: offsets.to_vec(), expected })
}

/// Fails unless each state has this many floats, and each sequence no states between its tokens or all of them.
pub(super) fn check_states(offsets: &[usize], states: &[StepState<'_>], floats: usize) -> Result<()> {
    for (state, span) in states.iter().zip(offsets.windows(2)) {
        check_floats("target", state.target, &[floats])?;
        state.source.map_or(Ok(()), |source| check_floats("source", source, &[floats]))?;
        state.drafted.iter().try_for_each(|drafted| check_floats("drafted", drafted, &[floats]))?;
        let (found, between) = (state.drafted.len(), (span[1] - span[0]).saturating_sub(1));
        if found != 0 && found != between {
            return Err(Error::argument("drafted", found, format!("0 or {between} states")));
        }
    }
    Ok(())
}

/// The kernels of this call, also for its other threads.
pub(super) fn kernels() -> Result<(Kernels, Option<&'static TileKernels>)> {
    Ok(match Form::of_host()? {
        ref form @ Form::Bytes(kernels) => (kernels, TileKernels::of(form)),
        _ => (Kernels::Portable, None),
    })
}

/// `count` zeros.
pub(crate) fn zeros(count: usize) -> Result<Vec<f32>> {
    let mut floats = reserved(count)?;
    floats.resize(count, 0.0);
    Ok(floats)
}
