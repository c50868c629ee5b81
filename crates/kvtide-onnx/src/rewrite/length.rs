//! Refuses graphs that choose by the length of a whole step, as LongRoPE does between two tables and dynamic NTK for its
//! base: a step has several sequences, and each one must get what it would get alone.
//!
//! ```text
//! position_ids -> ReduceMax -> Add, Cast, ..  -> Greater, Max, If, Pow, ..   refused
//!                                             -> Range, Slice, Reshape, ..    only sizes: kept
//! ```

use std::collections::HashSet;

use super::GraphEdit;
use crate::error::Result;
use crate::find::unrecognised;
use crate::proto::Node;

/// Operators whose output is the same number, or one computed from it alone.
const CARRIES: [&str; 14] = [
    "Identity",
    "Cast",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Gather",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Neg",
    "Ceil",
    "Floor",
    "ReduceMax",
];

/// Operators by which a length changes other numbers than sizes.
const CHOOSES: [&str; 13] = [
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Equal",
    "Max",
    "Min",
    "Clip",
    "Pow",
    "Log",
    "Sqrt",
    "If",
    "Where",
];

impl GraphEdit<'_> {
    /// Fails if the length of the longest sequence of a step decides about something besides sizes.
    pub(super) fn check_lengths(&self) -> Result<()> {
        let mut positions: HashSet<&str> = HashSet::from([self.positions.as_str()]);
        let mut lengths: HashSet<&str> = HashSet::new();
        // Nodes may be in any order: passes until nothing is new.
        loop {
            let before = positions.len() + lengths.len();
            for node in &self.graph.nodes {
                let reads = |names: &HashSet<&str>| node.reads().any(|name| names.contains(name));
                let is_own = node.domain.is_empty() || node.domain == "ai.onnx";
                if reads(&lengths) && is_own && CHOOSES.contains(&node.operator.as_str()) {
                    return Err(refused(node));
                }
                let carries = is_own && CARRIES.contains(&node.operator.as_str());
                let is_length = reads(&lengths) || (reads(&positions) && node.operator == "ReduceMax");
                if carries && is_length {
                    lengths.extend(node.outputs.iter().map(String::as_str));
                } else if carries && reads(&positions) {
                    positions.extend(node.outputs.iter().map(String::as_str));
                }
            }
            if positions.len() + lengths.len() == before {
                return Ok(());
            }
        }
    }
}

fn refused(node: &Node) -> crate::error::Error {
    unrecognised(node, "it depends on the length of the longest sequence in a step, so other sequences would change it")
}
