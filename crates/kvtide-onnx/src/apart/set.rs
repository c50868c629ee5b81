//! Sets of tokens: those of a step, rows of the head, and the tokens that a node routes to an expert.
//!
//! ```text
//! NonZero(mask [experts, tokens])   -> [axes, routed]     a set: each column belongs to one token
//! Gather(hidden, row 1 of these)    -> [routed, width]    rows of that set
//! ScatterElements(zeros, .., rows)  -> [tokens, width]    rows of tokens again
//! ```
//! An evaluation uses a sample of each set, so indices are recognised by their numbers, after any nodes that move them.

use crate::eval::Known;

/// Tokens that are elements of another set.
#[derive(Clone, Debug)]
pub(super) struct Set {
    /// The set that the tokens are taken from; the tokens of a step are taken from themselves.
    pub parent: usize,
    /// The sample for each evaluation: the place in the parent of each token.
    pub places: [Vec<usize>; 2],
}

impl Set {
    /// The number of tokens in each evaluation.
    pub fn counts(&self) -> [usize; 2] {
        [self.places[0].len(), self.places[1].len()]
    }

    /// A sample of a set with `counts` tokens. Places repeat and are in no order, unlike those of any other list.
    pub fn sample(parent: usize, counts: [usize; 2]) -> Self {
        let places = |count: usize, length: usize| -> Vec<usize> {
            [count.saturating_sub(1), 1, count.saturating_sub(2), 1]
                .iter()
                .take(length)
                .map(|&at| at % count.max(1))
                .collect()
        };
        Self { parent, places: [places(counts[0], 3), places(counts[1], 4)] }
    }

    /// True if a tensor holds, along an axis of a set's tokens, the places of these tokens on another axis, each of which
    /// has `inner` elements for a token of the parent, of which there are `counts`.
    pub fn is_own(&self, values: [&Known; 2], axis: usize, inner: usize, counts: [usize; 2]) -> bool {
        values.into_iter().zip(&self.places).zip(counts).all(|((value, places), count)| {
            let (Some(dims), Some(data)) = (&value.dims, &value.data) else { return false };
            let stride: usize = dims.iter().skip(axis + 1).product();
            let at = |index: usize| places.get(index / stride.max(1) % places.len().max(1));
            let of = |number: f64| (number >= 0.).then_some(number as usize / inner.max(1) % count.max(1));
            data.iter().enumerate().all(|(index, &number)| at(index).is_some_and(|&place| of(number) == Some(place)))
        })
    }
}
