//! Values that depend on more of a step than one token, and the node to blame for that.

use crate::error::{Error, RefusalKind};
use crate::find::unrecognised;
use crate::proto::Node;

/// The reason that a tensor depends on a whole step.
#[derive(Clone, Debug)]
pub(super) enum Cause {
    /// A node reads several tokens to compute an element.
    Mixed,
    /// A node chooses tokens by their place.
    Chosen,
    /// A node computes with the places of tokens.
    Numbered,
    /// The length of the longest sequence. It may be a size.
    Longest,
    /// The number of tokens. It may be a size.
    Count,
    /// The operator is not known.
    Unknown,
    /// The dimensions of a tensor are not known.
    Sizes(String),
}

/// A dependence on a whole step.
#[derive(Clone, Debug)]
pub(super) struct Step<'a> {
    pub cause: Cause,
    /// The node that an error names.
    pub node: &'a Node,
    /// True if the node is the one by which a size changes other numbers than sizes.
    is_met: bool,
}

impl<'a> Step<'a> {
    pub fn new(cause: Cause, node: &'a Node) -> Self {
        Self { cause, node, is_met: false }
    }

    /// True for a number that may serve as a size.
    pub fn is_size(&self) -> bool {
        matches!(self.cause, Cause::Count | Cause::Longest)
    }

    /// True for a size that is a sum of multiples of numbers of tokens: it is the same for all steps if it is for two.
    pub fn is_plain_size(&self) -> bool {
        self.is_size() && !self.is_met
    }

    /// The same dependence behind a node: an error names the first one that compares a size, or that computes with it and
    /// with tokens (`is_met`).
    pub fn behind(mut self, node: &'a Node, is_met: bool) -> Self {
        if self.is_plain_size() && is_met {
            (self.node, self.is_met) = (node, true);
        }
        self
    }

    /// The one of two dependences that an error describes: the one that cannot be a size.
    pub fn and(self, other: Self) -> Self {
        if self.is_size() && !other.is_size() { other } else { self }
    }

    /// The error that names the node. In a graph with states, a mixture of tokens is an unknown layer with a state.
    pub fn error(&self, has_states: bool) -> Error {
        let reason = match &self.cause {
            Cause::Mixed => {
                "it mixes tokens, which are those of several sequences in a step: only layers with a known state may"
                    .into()
            }
            Cause::Chosen => {
                "it mixes tokens: it reads some of them by their place in a step, which has those of several sequences"
                    .into()
            }
            Cause::Numbered => {
                "it counts the tokens of a step, which has those of several sequences, instead of reading positions"
                    .into()
            }
            Cause::Longest => {
                "it depends on the length of the longest sequence in a step, so other sequences would change it".into()
            }
            Cause::Count => "it depends on the number of tokens in a step, so other sequences would change it".into(),
            Cause::Unknown => {
                "it may mix tokens, which are those of several sequences in a step: its operator is not known".into()
            }
            Cause::Sizes(name) => format!(
                "it may mix tokens, which are those of several sequences in a step: the dimensions of {} are not known",
                short(name)
            ),
        };
        let error = unrecognised(self.node, reason);
        if has_states && !self.is_size() { error.of(RefusalKind::State) } else { error }
    }
}

/// The start of a long name.
fn short(name: &str) -> String {
    name.chars().take(60).collect()
}
