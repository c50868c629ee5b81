//! Handles merged decoders: one decoder with a past and one without, as the branches of an `If` on `use_cache_branch`.
//!
//! The branch with a past replaces the node: with an empty past, it equals the other branch. A decoder with an encoder computes the
//! keys and values of the encoder's states in that other branch.

use std::collections::{HashMap, HashSet};

use super::prune::prune;
use crate::cross_names::{ENCODER_MASK, ENCODER_STATES, present_of};
use crate::error::{Error, RefusalKind, Result};
use crate::find::{Layer, unrecognised};
use crate::proto::{AttributeValue, Graph, Model, Node, checked};

/// The input that selects the branch with a past.
const HAS_PAST: &str = "use_cache_branch";

/// Returns the decoder with a past; [`None`] if the model is not merged. `O(nodes)`.
pub(super) fn unmerged(model: &Model) -> Result<Option<Model>> {
    branch_of(model, "then_branch")
}

/// Returns the part of the decoder without a past that computes the keys and values that these attentions read. [`None`] if the
/// encoder gives them. `O(nodes)`.
pub(super) fn crossing(model: &Model, tokens: &str, crossed: &[Layer]) -> Result<Option<Model>> {
    let outputs = crossed.iter().flat_map(|layer| &layer.pasts).filter_map(|past| present_of(past));
    let outputs: Vec<String> = outputs.collect();
    let Some(first) = outputs.first() else { return Ok(None) };
    let missing = || Error::unrecognised(RefusalKind::Form, first, "output", "no branch of the graph computes it");
    let mut alone = branch_of(model, "else_branch")?.ok_or_else(missing)?;
    let graph = &mut alone.graph;
    let output = |name: &String| {
        let found = graph.outputs.iter().find(|output| output.name == *name).cloned();
        let missing = || Error::unrecognised(RefusalKind::Form, name, "output", "it is missing");
        found.ok_or_else(missing)
    };
    graph.outputs = outputs.iter().map(output).collect::<Result<_>>()?;
    prune(graph, ENCODER_STATES);
    // Some exporters take the batch size from the tokens, and other sizes from the mask.
    match graph.inputs.iter().find(|input| ![ENCODER_STATES, ENCODER_MASK, tokens].contains(&input.name.as_str())) {
        Some(other) => {
            let reason = "keys and values of the states of the encoder depend on it";
            Err(Error::unrecognised(RefusalKind::Form, &other.name, "input", reason))
        }
        None => Ok(Some(alone)),
    }
}

/// The model with a branch in place of its node.
fn branch_of(model: &Model, name: &str) -> Result<Option<Model>> {
    let is_merged = |node: &Node| node.is("", "If") && node.input(0) == Some(HAS_PAST);
    let Some(at) = model.graph.nodes.iter().position(is_merged) else { return Ok(None) };
    let node = &model.graph.nodes[at];
    let branch = match node.attribute(name) {
        Some(AttributeValue::Graphs(graphs)) if graphs[0].outputs.len() == node.outputs.len() => &graphs[0],
        _ => return Err(unrecognised(node, format!("its {name} does not have the outputs of the node"))),
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
