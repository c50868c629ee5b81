//! Drops everything that no output needs: nodes, weights, inputs, and declarations of tensors.

use std::collections::{HashMap, HashSet};

use super::GraphEdit;
use crate::proto::Node;

impl GraphEdit<'_> {
    pub(super) fn prune(&mut self) {
        let nodes = std::mem::take(&mut self.graph.nodes);
        let makers: HashMap<&str, usize> = nodes
            .iter()
            .enumerate()
            .flat_map(|(index, node)| node.outputs.iter().map(move |name| (name.as_str(), index)))
            .collect();
        let mut alive = vec![false; nodes.len()];
        let mut names: HashSet<String> = HashSet::new();
        let mut todo: Vec<&str> = self.graph.outputs.iter().map(|output| output.name.as_str()).collect();
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
        self.graph.nodes = nodes.into_iter().zip(alive).filter_map(kept).collect();
        let made: HashSet<&str> = self.graph.nodes.iter().flat_map(|node| &node.outputs).map(String::as_str).collect();
        let tokens = &self.lookup.roles.tokens;
        self.graph.initializers.retain(|tensor| names.contains(&tensor.name));
        self.graph.inputs.retain(|input| names.contains(&input.name) || input.name == *tokens);
        self.graph.values.retain(|value| made.contains(value.name.as_str()));
    }
}
