//! A layer with a state that was found: the call of kvtide's operator that replaces it.

use super::State;
use crate::proto::Attribute;

/// An input of the operator.
#[derive(Clone, Debug)]
pub(crate) struct StateInput {
    pub name: String,
    /// True if the elements of a token are on several axes, which the rewrite merges.
    pub is_apart: bool,
}

impl StateInput {
    pub fn of(name: &str) -> Option<Self> {
        Some(Self { name: name.into(), is_apart: false })
    }

    pub fn apart(name: &str) -> Option<Self> {
        Some(Self { name: name.into(), is_apart: true })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct FoundState {
    pub state: State,
    /// The operator, of the domain `kvtide`.
    pub operator: &'static str,
    pub attributes: Vec<Attribute>,
    /// The inputs in the operator's order; [`None`] for one that is left out.
    pub inputs: Vec<Option<StateInput>>,
    pub output: String,
    /// Heads and their elements, if the output has an axis for each.
    pub heads: Option<[u32; 2]>,
    /// The index of the node that computes the output and is replaced.
    pub index: usize,
}
