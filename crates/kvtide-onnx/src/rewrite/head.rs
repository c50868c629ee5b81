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
        let before = self.graph.nodes.clone();
        let nodes = Nodes::of(self, &before)?;
        let mut chosen = dependents(&before, &HashSet::from([CHOSEN.to_owned()]));
        chosen.insert(CHOSEN.to_owned());
        for (place, node) in before.iter().enumerate().rev() {
            let rows = node.input(0).filter(|rows| chosen.contains(*rows));
            let Some((rows, weight)) = rows.and_then(|rows| Some((rows, self.weight(&nodes, node)?))) else { continue };
            let Some(output) = node.output(0) else { continue };
            let bias = node.input(2).map(|bias| (bias, format!("{output} without bias")));
            let product = bias.as_ref().map_or(output, |(_, product)| product);
            let made = Node::new("MatMul", DOMAIN, &node.name, &[rows, weight.name], &[product]);
            let made = made.with(Attribute::int("transB", weight.is_transposed.into()));
            let sum = bias.as_ref().map(|(bias, _)| Node::new("Add", "", product, &[product, bias], &[output]));
            self.graph.nodes.splice(place..=place, std::iter::once(made).chain(sum));
        }
        Ok(())
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
