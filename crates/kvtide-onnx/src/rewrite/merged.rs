//! Handles merged decoders: one decoder with a past and one without, as the branches of an `If` on `use_cache_branch`.
//!
//! The branch with a past replaces the node: with an empty past, it equals the other branch.

use std::collections::{HashMap, HashSet};

use crate::error::Result;
use crate::find::unrecognised;
use crate::proto::{AttributeValue, Graph, Model, Node, checked};

/// The input that selects the branch with a past.
const HAS_PAST: &str = "use_cache_branch";

/// Returns the decoder with a past; [`None`] if the model is not merged. `O(nodes)`.
pub(super) fn unmerged(model: &Model) -> Result<Option<Model>> {
    let is_merged = |node: &Node| node.is("", "If") && node.input(0) == Some(HAS_PAST);
    let Some(at) = model.graph.nodes.iter().position(is_merged) else { return Ok(None) };
    let node = &model.graph.nodes[at];
    let branch = match node.attribute("then_branch") {
        Some(AttributeValue::Graphs(graphs)) if graphs[0].outputs.len() == node.outputs.len() => &graphs[0],
        _ => return Err(unrecognised(node, "its then_branch does not have the outputs of the node")),
    };
    let mut alone = model.clone();
    let graph = &mut alone.graph;
    graph.nodes.splice(at..=at, inlined(node, branch));
    graph.initializers.extend(branch.initializers.iter().cloned());
    graph.values.extend(branch.values.iter().cloned());
    alone.graph = checked(alone.graph)?;
    Ok(Some(alone))
}

/// Returns the nodes of a branch, with outputs renamed to the names of the node's outputs.
pub(super) fn inlined(node: &Node, branch: &Graph) -> Vec<Node> {
    let made: HashSet<&str> = branch.nodes.iter().flat_map(|inner| &inner.outputs).map(String::as_str).collect();
    // Names inside inner graphs stay unchanged.
    let captured: HashSet<&String> =
        branch.nodes.iter().flat_map(Node::graphs).flat_map(|graph| &graph.captured).collect();
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut copies = Vec::new();
    for (inner, outer) in branch.outputs.iter().zip(&node.outputs).filter(|(_, outer)| !outer.is_empty()) {
        let name = inner.name.as_str();
        if made.contains(name) && !captured.contains(&inner.name) && !names.contains_key(name) {
            names.insert(name, outer);
        } else {
            let from = names.get(name).copied().unwrap_or(name);
            copies.push(Node::new("Identity", "", &format!("{outer} of {}", node.called()), &[from], &[outer]));
        }
    }
    let mut nodes = branch.nodes.clone();
    nodes.iter_mut().for_each(|inner| inner.rename(&names));
    nodes.extend(copies);
    nodes
}
