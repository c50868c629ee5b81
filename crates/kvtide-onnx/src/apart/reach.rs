//! The tokens that the elements of a tensor depend on.

use super::step::Step;

/// The tokens along one axis of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// All elements along the axis are equal.
    Same,
    /// The element at a place is the same in every step that has the place.
    Index,
    /// A place on the axis belongs to a token.
    Tokens(Tokens),
}

/// An axis of `outer * tokens * inner` places: place `(a * tokens + token) * inner + b` belongs to `token`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tokens {
    /// The set that the tokens are of.
    pub set: usize,
    pub outer: usize,
    pub inner: usize,
}

impl Tokens {
    pub fn of(set: usize) -> Self {
        Self { set, outer: 1, inner: 1 }
    }

    /// True if each place is a token.
    pub fn is_pure(self) -> bool {
        self.outer == 1 && self.inner == 1
    }
}

/// The tokens that a tensor depends on.
#[derive(Clone, Debug)]
pub(super) enum Reach<'a> {
    /// No token. The axes are not known.
    Fixed,
    /// At most one token for each element, by its place on these axes. At most one axis has tokens.
    Apart(Vec<Axis>),
    /// More than that.
    Step(Step<'a>),
}

impl Reach<'_> {
    /// The axis of tokens, and its tokens.
    pub fn tokens(&self) -> Option<(usize, Tokens)> {
        let Self::Apart(axes) = self else { return None };
        axes.iter().enumerate().find_map(|(at, axis)| match axis {
            Axis::Tokens(tokens) => Some((at, *tokens)),
            _ => None,
        })
    }

    /// True if no element depends on a token or on the step.
    pub fn is_fixed(&self) -> bool {
        match self {
            Self::Fixed => true,
            Self::Apart(_) => self.tokens().is_none(),
            Self::Step(_) => false,
        }
    }
}
