//! Refuses graphs that choose by the length of a whole step, as LongRoPE does between two tables and dynamic NTK for its
//! base: a step has several sequences, and each one must get what it would get alone.
//!
//! ```text
//! position_ids -> ReduceMax -> Add, Cast, ..  -> Greater, Max, If, Pow, ..   refused
//!                                             -> Range, Slice, Reshape, ..    only sizes: kept
//! ```

use std::collections::HashSet;

use crate::error::{Error, Result};
use crate::find::unrecognised;
use crate::proto::{Graph, Node};

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

/// Fails if the length of the longest sequence of a step decides about something besides sizes. `graph` is sorted, and
/// `positions` is its input with positions. `O(nodes)`.
pub(super) fn check_lengths(graph: &Graph, positions: &str) -> Result<()> {
    let mut positions: HashSet<&str> = HashSet::from([positions]);
    let mut lengths: HashSet<&str> = HashSet::new();
    for node in graph.nodes.iter().filter(|node| node.domain.is_empty()) {
        let reads = |names: &HashSet<&str>| node.reads().any(|name| names.contains(name));
        let operator = node.operator.as_str();
        if reads(&lengths) && CHOOSES.contains(&operator) {
            return Err(refused(node));
        }
        if !CARRIES.contains(&operator) {
            continue;
        }
        let outputs = node.outputs.iter().map(String::as_str);
        if reads(&lengths) || (reads(&positions) && operator == "ReduceMax") {
            lengths.extend(outputs);
        } else if reads(&positions) {
            positions.extend(outputs);
        }
    }
    Ok(())
}

fn refused(node: &Node) -> Error {
    unrecognised(node, "it depends on the length of the longest sequence in a step, so other sequences would change it")
}
