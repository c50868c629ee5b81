//! The context length of a graph: the number of rows in its tables of positions. For a token behind the last row, the
//! runtime would fail in the middle of a call.
//!
//! ```text
//! GroupQueryAttention, SparseAttention, RotaryEmbedding   cos_cache                        [positions, elements]
//! Gather                                                  weights, by the input of positions [positions, elements]
//! ```
//! A table may be a weight, a constant, or an output of an `If`: models with two contexts have a small and a large
//! table. A table that the graph computes has no limit, and is skipped.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::proto::{AttributeValue, Graph, Model, Node, Tensor};

/// The name of the input with positions.
const POSITIONS: &str = "position_ids";

/// The most nodes that are followed from a table to its weight. Graphs have one or two.
const LOOK_MAX: usize = 16;

/// A graph and the graphs around it. Names are looked up from the innermost graph outwards.
struct Scope<'a> {
    graph: &'a Graph,
    weights: HashMap<&'a str, &'a Tensor>,
    makers: HashMap<&'a str, &'a Node>,
    outer: Option<&'a Scope<'a>>,
    /// The results of [`Scope::rows`], by name and nodes left: branches of many nodes may lead to one tensor.
    found: RefCell<HashMap<(String, usize), Option<u64>>>,
}

impl Model {
    /// The most tokens for which the graph has positions; [`None`] if no table limits them. `O(graph)`.
    #[must_use]
    pub fn context_length(&self) -> Option<u64> {
        Scope::new(&self.graph, None).shortest()
    }
}

impl<'a> Scope<'a> {
    fn new(graph: &'a Graph, outer: Option<&'a Scope<'a>>) -> Self {
        let weights = graph.initializers.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let outputs = |node: &'a Node| node.outputs.iter().map(move |name| (name.as_str(), node));
        let makers = graph.nodes.iter().flat_map(outputs).collect();
        Self { graph, weights, makers, outer, found: RefCell::default() }
    }

    /// The number of rows in the shortest table of this graph and of those inside it.
    fn shortest(&self) -> Option<u64> {
        let own = self.graph.nodes.iter().filter_map(|node| self.rows(table(node)?, LOOK_MAX));
        let learned = self.graph.nodes.iter().filter_map(|node| self.learned(node));
        let inside = self.graph.nodes.iter().flat_map(Node::graphs);
        own.chain(learned).chain(inside.filter_map(|graph| Scope::new(graph, Some(self)).shortest())).min()
    }

    /// The number of rows of a table that is indexed by the input of positions.
    fn learned(&self, node: &Node) -> Option<u64> {
        let is_rows = node.is("", "Gather") && node.int("axis").unwrap_or(0) == 0;
        let (table, index) = (node.input(0)?, node.input(1)?);
        (is_rows && self.is_positions(index, LOOK_MAX)).then(|| self.rows(table, LOOK_MAX)).flatten()
    }

    fn is_positions(&self, name: &str, left: usize) -> bool {
        let Some(node) = self.makers.get(name) else {
            return match self.outer {
                Some(outer) => self.graph.input(name).is_none() && outer.is_positions(name, left),
                None => name == POSITIONS && self.graph.input(name).is_some(),
            };
        };
        let is_same = ["Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze"].iter().any(|same| node.is("", same));
        is_same && left > 0 && node.input(0).is_some_and(|name| self.is_positions(name, left - 1))
    }

    /// The number of rows of a table with two dimensions. Each name is followed once for each number of nodes left.
    fn rows(&self, name: &str, left: usize) -> Option<u64> {
        let key = (name.to_owned(), left);
        if let Some(&found) = self.found.borrow().get(&key) {
            return found;
        }
        let found = self.followed(name, left);
        self.found.borrow_mut().insert(key, found);
        found
    }

    fn followed(&self, name: &str, left: usize) -> Option<u64> {
        if let Some(tensor) = self.weights.get(name) {
            return rows_of(tensor);
        }
        let Some(node) = self.makers.get(name) else { return self.outer?.rows(name, left) };
        let left = left.checked_sub(1)?;
        match node.operator.as_str() {
            "Constant" => match node.attribute("value")? {
                AttributeValue::Tensor(tensor) => rows_of(tensor),
                _ => None,
            },
            "Identity" | "Cast" => self.rows(node.input(0)?, left),
            "If" => {
                let place = node.outputs.iter().position(|output| output == name)?;
                let branch = |graph| Scope::new(graph, Some(self)).rows(&graph.outputs.get(place)?.name, left);
                // The longer table is for sequences that exceed the shorter one.
                node.graphs().map(branch).collect::<Option<Vec<_>>>()?.into_iter().max()
            }
            _ => None,
        }
    }
}

/// The table of cosines that a node indexes by positions.
fn table(node: &Node) -> Option<&str> {
    let turns = node.int("do_rotary") == Some(1);
    match (node.domain.as_str(), node.operator.as_str()) {
        ("com.microsoft", "GroupQueryAttention") if turns => node.input(7),
        ("com.microsoft", "SparseAttention") if turns => node.input(9),
        ("com.microsoft", "RotaryEmbedding") => node.input(2),
        ("", "RotaryEmbedding") => node.input(1),
        _ => None,
    }
}

fn rows_of(tensor: &Tensor) -> Option<u64> {
    match tensor.dims.as_slice() {
        &[rows, _] if rows > 0 => Some(rows),
        _ => None,
    }
}
