//! Drops everything that no output needs: nodes, weights, inputs, and declarations of tensors.

use std::collections::{HashMap, HashSet};

use crate::proto::{Graph, Node};

/// Keeps the input of tokens in any case.
pub(super) fn prune(graph: &mut Graph, tokens: &str) {
    let nodes = std::mem::take(&mut graph.nodes);
    let makers: HashMap<&str, usize> = nodes
        .iter()
        .enumerate()
        .flat_map(|(index, node)| node.outputs.iter().map(move |name| (name.as_str(), index)))
        .collect();
    let mut alive = vec![false; nodes.len()];
    let mut names: HashSet<String> = HashSet::new();
    let mut todo: Vec<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
    while let Some(name) = todo.pop() {
        if !names.insert(name.to_owned()) {
            continue;
        }
        if let Some(&index) = makers.get(name) {
            alive[index] = true;
            todo.extend(nodes[index].reads());
        }
    }
    let kept = |(node, alive): (Node, bool)| alive.then_some(node);
    graph.nodes = nodes.into_iter().zip(alive).filter_map(kept).collect();
    let made: HashSet<&str> = graph.nodes.iter().flat_map(|node| &node.outputs).map(String::as_str).collect();
    graph.initializers.retain(|tensor| names.contains(&tensor.name));
    graph.inputs.retain(|input| names.contains(&input.name) || input.name == tokens);
    graph.values.retain(|value| made.contains(value.name.as_str()));
}
