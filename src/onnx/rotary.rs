//! The rotary embedding of queries and keys, and the copy of packed values, in one pass over the tokens of a step.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use crate::border::refusal::Outcome;

use super::kernel::wrong;

/// Elements that one thread moves before a second one helps.
const SHARED_FROM: usize = 1 << 15;

/// Heads inside a tensor of a step, in any layout.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub from: &'a [f32],
    pub start: usize,
    /// Elements from a token to the next one, and from a head to the next one.
    pub steps: [usize; 2],
    pub count: usize,
    pub dim: usize,
}

impl<'a> Heads<'a> {
    fn row(&self, token: usize, head: usize) -> &'a [f32] {
        let at = self.start + token * self.steps[0] + head * self.steps[1];
        &self.from[at..at + self.dim]
    }

    fn width(&self) -> usize {
        self.count * self.dim
    }
}

/// Cosines and sines.
pub(super) struct Tables<'a> {
    /// The row of each token, which has a cosine for each pair of elements. Without positions, each token has a row of its
    /// own, with a cosine for each element.
    pub positions: Option<&'a [i64]>,
    pub cos: Cow<'a, [f32]>,
    pub sin: Cow<'a, [f32]>,
    /// Elements of a head that are rotated.
    pub dims: usize,
    /// True if neighbours are a pair, instead of the same elements of both halves.
    pub interleaved: bool,
}

impl Tables<'_> {
    pub fn check(&self, dim: usize, tokens: usize) -> Outcome<()> {
        let width = if self.positions.is_some() { self.dims / 2 } else { self.dims };
        let rows = self.cos.len().checked_div(width).unwrap_or(0);
        if self.dims > dim || self.dims % 2 == 1 || rows == 0 || self.sin.len() != self.cos.len() {
            let sizes = format!("{} cosines and {} sines", self.cos.len(), self.sin.len());
            return Err(wrong(format!("its tables have {sizes}, expected rows of {width} for heads of {dim}")));
        }
        let count = self.positions.map_or(rows, <[i64]>::len);
        if count != tokens {
            return Err(wrong(format!("its rotation has {count} positions, expected {tokens}")));
        }
        let is_inside = |position: i64| usize::try_from(position).is_ok_and(|at| at < rows);
        match self.positions.and_then(|positions| positions.iter().find(|&&position| !is_inside(position))) {
            None => Ok(()),
            Some(position) => Err(wrong(format!("position {position} is outside its tables of {rows} rows"))),
        }
    }

    fn turn(&self, token: usize, from: &[f32], to: &mut [f32]) {
        let (dims, half) = (self.dims, self.dims / 2);
        to[dims..].copy_from_slice(&from[dims..]);
        let (from, to) = (&from[..dims], &mut to[..dims]);
        // The first and the second element of a pair may have factors of their own.
        let (at, other) = match self.positions {
            Some(positions) => (positions[token] as usize * half, 0),
            None => (token * dims, half),
        };
        let of = |table| [at, at + other].map(|at| &<[f32]>::as_ref(table)[at..at + half]);
        let ([cos, cosines], [sin, sines]) = (of(&self.cos), of(&self.sin));
        if self.interleaved {
            for (place, (from, to)) in from.chunks_exact(2).zip(to.chunks_exact_mut(2)).enumerate() {
                to[0] = from[0] * cos[place] - from[1] * sin[place];
                to[1] = from[1] * cosines[place] + from[0] * sines[place];
            }
            return;
        }
        let ((low, high), (first, second)) = (from.split_at(half), to.split_at_mut(half));
        for place in 0..half {
            first[place] = low[place] * cos[place] - high[place] * sin[place];
            second[place] = high[place] * cosines[place] + low[place] * sines[place];
        }
    }
}

/// Writes heads token by token: `[tokens, heads, dim]`, rotated if there are tables. `share` calls a job with each number
/// below a count, on any threads.
pub(super) fn lay(
    heads: Heads<'_>,
    tables: Option<&Tables<'_>>,
    to: &mut [f32],
    threads: usize,
    share: impl Fn(usize, &(dyn Fn(usize) + Sync)),
) {
    let width = heads.width();
    let part = |first: usize, to: &mut [f32]| {
        for (place, row) in to.chunks_exact_mut(width).enumerate() {
            for (head, to) in row.chunks_exact_mut(heads.dim).enumerate() {
                let from = heads.row(first + place, head);
                match tables {
                    Some(tables) => tables.turn(first + place, from, to),
                    None => to.copy_from_slice(from),
                }
            }
        }
    };
    if threads == 1 || to.len() < SHARED_FROM {
        return part(0, to);
    }
    let each = (to.len() / width).div_ceil(threads);
    let parts: Vec<_> = to.chunks_mut(each * width).map(|part| Mutex::new(Some(part))).collect();
    let job = |place: usize| {
        let taken = parts[place].lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(to) = taken {
            part(place * each, to);
        }
    };
    share(parts.len(), &job);
    // The library may skip a number.
    (0..parts.len()).for_each(job);
}
