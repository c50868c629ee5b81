//! What a mask hides, found by computing it.
//!
//! A mask is accepted where it is causal, with or without a window. It is computed for several sizes, one of them with a
//! long past, so it does not matter which nodes it is made of. What depends on more than sizes (slopes of ALiBi, a prefix
//! that sees itself) is refused.

use super::lookup::{Lookup, SIZES, unrecognised};
use crate::error::Result;
use crate::eval::{Evaluation, Known, Sizes};
use crate::proto::Node;

/// Windows are found up to this length; a longer one has to be declared.
const TOKENS: usize = 1 << 16;
/// A prompt without a past, and one token behind one.
const ALONE: [Sizes; 2] = [Sizes { batch: 2, past: 0, new: 5 }, Sizes { batch: 3, past: 7, new: 1 }];
/// What is added to a score that is hidden.
const HIDDEN: f64 = -1e4;

/// One thing that hides scores.
#[derive(Clone, Copy, Debug)]
pub(super) enum Term<'a> {
    /// Added to scores: 0 or very little.
    Added(&'a str),
    /// Scores stay where this is so.
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

/// Which keys each query sees, `[batch * new][total]`; the same for all heads. The error is a reason.
fn visible(evaluation: &Evaluation, terms: &[Term<'_>], causal: bool) -> Result<Vec<Vec<bool>>, String> {
    let Sizes { batch, new, .. } = evaluation.sizes;
    let total = evaluation.sizes.total();
    let shown = |row: usize, key: usize| !causal || key <= evaluation.sizes.past + row % new;
    let mut rows: Vec<Vec<bool>> =
        (0..batch * new).map(|row| (0..total).map(|key| shown(row, key)).collect()).collect();
    for term in terms {
        let Known { dims: Some(dims), data: Some(data), .. } = evaluation.get(term.name()) else {
            return Err(format!("the mask {} is not made of sizes alone", term.name()));
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

/// The window of a causal mask, or nothing where it has none. With `causal` later keys are hidden whatever terms say.
pub(super) fn window(lookup: &Lookup<'_>, node: &Node, terms: &[Term<'_>], causal: bool) -> Result<Option<u32>> {
    if causal && terms.is_empty() {
        return Ok(None);
    }
    let rows = |sizes| visible(&*lookup.at(sizes)?, terms, causal).map_err(|reason| unrecognised(node, reason));
    let long = Sizes { batch: 1, past: TOKENS - 1, new: 1 };
    let seen = rows(long)?.concat();
    let window = seen.iter().rev().take_while(|&&seen| seen).count();
    if !is_causal(&[seen], long, window) {
        return Err(unrecognised(node, "its mask hides keys between others that it shows"));
    }
    // Some graphs can take several tokens only without a past: then those calls say what they can.
    let alone = rows(SIZES[0]).is_err();
    let mut tried = if alone { ALONE.to_vec() } else { SIZES.to_vec() };
    if window < TOKENS {
        tried.push(Sizes { batch: 1, past: window, new: if alone { 1 } else { 4 } });
    }
    for sizes in tried {
        if !is_causal(&rows(sizes)?, sizes, window) {
            return Err(unrecognised(node, "its mask is not causal: each token has to see itself and those before it"));
        }
    }
    Ok((window < TOKENS).then_some(window as u32))
}
