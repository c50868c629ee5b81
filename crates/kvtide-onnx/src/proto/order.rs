//! The order of a graph's nodes: each comes after the nodes that it reads, and each name is defined once.

use std::collections::{HashMap, HashSet};

use super::{Graph, Node};
use crate::error::{Error, Result};

/// The error of a node.
fn graph_error(node: &Node, expected: String) -> Error {
    Error::Graph { node: node.called().into(), operator: node.full_operator(), expected }
}

/// Checks a graph and sorts its nodes so that each comes after the nodes that it reads. `O(nodes + edges)`; a valid
/// order is kept.
pub(crate) fn checked(mut graph: Graph) -> Result<Graph> {
    let mut makers: HashMap<&str, usize> = HashMap::new();
    let inputs: HashSet<&str> = graph.given().collect();
    for (index, node) in graph.nodes.iter().enumerate() {
        for output in node.outputs.iter().filter(|name| !name.is_empty()) {
            if inputs.contains(output.as_str()) || makers.insert(output, index).is_some() {
                return Err(graph_error(node, format!("{output} to be the output of one node and of nothing else")));
            }
        }
    }
    check_names(&graph)?;
    let mut waits = vec![0usize; graph.nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for name in node.reads() {
            match makers.get(name) {
                Some(&maker) => {
                    readers[maker].push(index);
                    waits[index] += 1;
                }
                None if inputs.contains(name) => (),
                None => {
                    return Err(graph_error(
                        node,
                        format!("{name} to be an input, an initializer or the output of a node"),
                    ));
                }
            }
        }
    }
    for output in &graph.outputs {
        if !makers.contains_key(output.name.as_str()) && !inputs.contains(output.name.as_str()) {
            let expected = "a node that makes this output of the graph".into();
            return Err(Error::Graph { node: output.name.clone(), operator: "output".into(), expected });
        }
    }
    let mut ready: std::collections::BinaryHeap<_> =
        (0..waits.len()).filter(|&index| waits[index] == 0).map(std::cmp::Reverse).collect();
    let mut order = Vec::with_capacity(waits.len());
    while let Some(std::cmp::Reverse(index)) = ready.pop() {
        order.push(index);
        for &reader in &readers[index] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.push(std::cmp::Reverse(reader));
            }
        }
    }
    if let Some(stuck) = waits.iter().position(|&count| count > 0) {
        return Err(graph_error(&graph.nodes[stuck], "inputs that do not depend on its own outputs".into()));
    }
    if !order.is_sorted() {
        let mut nodes: Vec<Option<Node>> = std::mem::take(&mut graph.nodes).into_iter().map(Some).collect();
        graph.nodes = order.into_iter().filter_map(|index| nodes[index].take()).collect();
    }
    Ok(graph)
}

/// Checks that no two inputs, and no two initializers, share a name. An input and its default value may.
fn check_names(graph: &Graph) -> Result<()> {
    let inputs = graph.inputs.iter().map(|input| (&input.name, "input"));
    let outputs = graph.outputs.iter().map(|output| (&output.name, "output"));
    let initializers = graph.initializers.iter().map(|tensor| (&tensor.name, "initializer"));
    let mut seen = HashSet::new();
    for (name, kind) in inputs.chain(outputs).chain(initializers) {
        if name.is_empty() || !seen.insert((kind, name)) {
            let expected = format!("a name that no other {kind} has");
            return Err(Error::Graph { node: name.clone(), operator: kind.into(), expected });
        }
    }
    Ok(())
}
