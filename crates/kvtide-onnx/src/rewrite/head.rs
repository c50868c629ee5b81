//! Multiplies the rows of the head with its weight where the graph has it, by kvtide's operator.
//!
//! ```text
//! MatMul(rows, weight)                    -> kvtide::MatMul(rows, weight)
//! MatMul(rows, Transpose(weight))         -> kvtide::MatMul(rows, weight, transB)
//! Gemm(rows, weight, bias)                -> kvtide::MatMul(rows, weight), Add(bias)
//! ```
//! A runtime packs the weight for many rows when it loads the graph, and keeps what it packed beside the weight if
//! embeddings are read from it too, or if it is transposed: 671 MB more for 262,144 tokens of 640 floats. A step
//! multiplies few rows, and reading the weight as it is takes no longer.

use std::collections::HashSet;

use super::GraphEdit;
use super::attention::DOMAIN;
use super::blocks::biased;
use super::fuse::Nodes;
use super::logits::CHOSEN;
use super::positions::dependents;
use crate::error::Result;
use crate::proto::{Attribute, ElementType, Node};

/// The weight of a product.
struct Weight<'a> {
    name: &'a str,
    /// True if its rows are the columns of the product.
    is_transposed: bool,
}

impl GraphEdit<'_> {
    /// Replaces the products of chosen rows with weights of floats. O(graph).
    pub(super) fn multiply_in_place(&mut self) -> Result<()> {
        let nodes = Nodes::of(self, &self.graph.nodes)?;
        let mut chosen = dependents(&self.graph.nodes, &HashSet::from([CHOSEN.to_owned()]));
        chosen.insert(CHOSEN.to_owned());
        let is_chosen = |node: &Node| node.input(0).is_some_and(|rows| chosen.contains(rows));
        let products = self.graph.nodes.iter().enumerate().filter(|(_, node)| is_chosen(node));
        let found: Vec<_> = products.filter_map(|(place, node)| Some((place, self.in_place(&nodes, node)?))).collect();
        self.replace_nodes(found);
        Ok(())
    }

    /// The nodes that give the same as a product with a weight.
    fn in_place(&self, nodes: &Nodes<'_>, node: &Node) -> Option<Vec<Node>> {
        let (rows, weight, output) = (node.input(0)?, self.weight(nodes, node)?, node.output(0)?);
        let product = |output: &str| {
            let made = Node::new("MatMul", DOMAIN, &node.name, &[rows, weight.name], &[output]);
            made.with(Attribute::int("transB", weight.is_transposed.into()))
        };
        Some(biased(output, node.input(2), product))
    }

    /// The weight of a product that kvtide computes.
    fn weight<'a>(&self, nodes: &Nodes<'a>, node: &'a Node) -> Option<Weight<'a>> {
        let is_set = |name: &str| node.int(name) == Some(1);
        let is_one = |name: &str| node.float(name).is_none_or(|factor| factor == 1.);
        let is_gemm = node.is("", "Gemm") && !is_set("transA") && is_one("alpha") && is_one("beta");
        if !is_gemm && !node.is("", "MatMul") {
            return None;
        }
        let (mut name, mut is_transposed) = (node.input(1)?, is_gemm && is_set("transB"));
        if let Some(turn) = nodes.maker(name, "", "Transpose")
            && turn.ints("perm").is_none_or(|perm| perm == [1, 0])
        {
            (name, is_transposed) = (turn.input(0)?, !is_transposed);
        }
        let weight = self.graph.initializers.iter().find(|weight| weight.name == name)?;
        let is_float = [ElementType::F32, ElementType::F16, ElementType::BF16].contains(&weight.element);
        (is_float && weight.dims.len() == 2).then_some(Weight { name, is_transposed })
    }
}
