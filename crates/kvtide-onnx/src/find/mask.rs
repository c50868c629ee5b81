//! Determines by evaluation which keys a mask hides.
//!
//! A mask is accepted if it is causal, with or without a window. It is evaluated for several sizes, one of them with a
//! long past, so the nodes that it is made of do not matter. Masks that depend on more than sizes (slopes of ALiBi, a
//! prefix with bidirectional attention) are an error.

use super::lookup::{Lookup, SIZES, unrecognised};
use crate::error::Result;
use crate::eval::{Evaluation, Known, Sizes};
use crate::proto::Node;

/// Windows are found up to this length; a longer one must be declared.
const TOKENS: usize = 1 << 16;
/// A prompt without a past, and one token with a past.
const ALONE: [Sizes; 2] = [Sizes { batch: 2, past: 0, new: 5 }, Sizes { batch: 3, past: 7, new: 1 }];
/// The largest number that hides a score when it is added to it.
const HIDDEN: f64 = -1e4;

/// One tensor that hides scores.
#[derive(Clone, Copy, Debug)]
pub(super) enum Term<'a> {
    /// Added to scores: 0 or a large negative number.
    Added(&'a str),
    /// Keeps scores at which the tensor has this truth value.
    Kept(&'a str, bool),
}

impl Term<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Added(name) | Self::Kept(name, _) => name,
        }
    }

    fn shows(&self, number: f64) -> Option<bool> {
        match self {
            Self::Added(_) if number == 0. => Some(true),
            Self::Added(_) => (number <= HIDDEN).then_some(false),
            Self::Kept(_, when) => Some((number != 0.) == *when),
        }
    }
}

/// The keys that each query attends to, `[batch * new][total]`; the same for all heads. The error is a reason.
fn visible(evaluation: &Evaluation, terms: &[Term<'_>], causal: bool) -> Result<Vec<Vec<bool>>, String> {
    let Sizes { batch, new, .. } = evaluation.sizes;
    let total = evaluation.sizes.total();
    let shown = |row: usize, key: usize| !causal || key <= evaluation.sizes.past + row % new;
    let mut rows: Vec<Vec<bool>> =
        (0..batch * new).map(|row| (0..total).map(|key| shown(row, key)).collect()).collect();
    for term in terms {
        let Known { dims: Some(dims), data: Some(data), .. } = evaluation.get(term.name()) else {
            return Err(format!("the mask {} depends on more than sizes", term.name()));
        };
        let mut shape = vec![1; 4usize.saturating_sub(dims.len())];
        shape.extend(dims);
        let &[sequences, heads, queries, keys] = shape.as_slice() else {
            return Err(format!("{} has more than 4 axes", term.name()));
        };
        let fits =
            (sequences == 1 || sequences == batch) && (queries == 1 || queries == new) && (keys == 1 || keys == total);
        if !fits || data.is_empty() {
            return Err(format!("the mask {} has dimensions {dims:?}", term.name()));
        }
        for (row, seen) in rows.iter_mut().enumerate() {
            let (sequence, query) = ((row / new) % sequences, (row % new) % queries);
            for (key, seen) in seen.iter_mut().enumerate() {
                for head in 0..heads {
                    let number = data[((sequence * heads + head) * queries + query) * keys + key % keys];
                    let shows = term.shows(number);
                    *seen &= shows.ok_or_else(|| format!("{} adds {number} to scores", term.name()))?;
                }
            }
        }
    }
    Ok(rows)
}

fn is_causal(rows: &[Vec<bool>], sizes: Sizes, window: usize) -> bool {
    rows.iter().enumerate().all(|(row, seen)| {
        let query = sizes.past + row % sizes.new;
        seen.iter().enumerate().all(|(key, &seen)| seen == (key <= query && query - key < window))
    })
}

/// The window of a causal mask; [`None`] if it has none. With `causal`, later keys are hidden in addition to the terms.
pub(super) fn window(lookup: &Lookup<'_>, node: &Node, terms: &[Term<'_>], causal: bool) -> Result<Option<u32>> {
    if causal && terms.is_empty() {
        return Ok(None);
    }
    let rows = |sizes| visible(&*lookup.at(sizes)?, terms, causal).map_err(|reason| unrecognised(node, reason));
    let long = Sizes { batch: 1, past: TOKENS - 1, new: 1 };
    let seen = rows(long)?.concat();
    let window = seen.iter().rev().take_while(|&&seen| seen).count();
    if !is_causal(&[seen], long, window) {
        return Err(unrecognised(node, "its mask hides keys between visible ones"));
    }
    // Some graphs can take several tokens only without a past: then such calls are tried instead.
    let alone = rows(SIZES[0]).is_err();
    let mut tried = if alone { ALONE.to_vec() } else { SIZES.to_vec() };
    if window < TOKENS {
        tried.push(Sizes { batch: 1, past: window, new: if alone { 1 } else { 4 } });
    }
    for sizes in tried {
        if !is_causal(&rows(sizes)?, sizes, window) {
            return Err(unrecognised(
                node,
                "its mask is not causal: each token must attend to itself and to earlier tokens",
            ));
        }
    }
    Ok((window < TOKENS).then_some(window as u32))
}
