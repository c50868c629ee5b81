//! Multiplies with weights of 4 bits by kvtide's operator.
//!
//! ```text
//! MatMulNBits(rows, codes, scales, zero points, bias)   -> kvtide::MatMulNBits(rows, codes, scales, zero points), Add(bias)
//! ```
//! `accuracy_level` 4 says that rows may be quantised to bytes, with a scale for each block of the weights. Both operators do
//! so, with the same scales and bytes. Otherwise both multiply floats.

use super::GraphEdit;
use super::attention::DOMAIN;
use crate::proto::{Attribute, ElementType, Node};

impl GraphEdit<'_> {
    /// Replaces the products. O(graph).
    pub(super) fn multiply_blocks(&mut self) {
        let products = self.graph.nodes.iter().enumerate();
        let found: Vec<_> = products.filter_map(|(place, node)| Some((place, self.of_blocks(node)?))).collect();
        self.replace_nodes(found);
    }

    /// The nodes that give the same as a product.
    fn of_blocks(&self, node: &Node) -> Option<Vec<Node>> {
        let (rows, codes, scales) = (node.input(0)?, node.input(1)?, node.input(2)?);
        let is_form = node.is("com.microsoft", "MatMulNBits") && node.int("bits") == Some(4);
        let block = node.int("block_size").filter(|&block| block >= 16 && block % 8 == 0)?;
        let is_weight = |name: &str, element: ElementType| {
            self.graph.initializers.iter().any(|weight| weight.name == name && weight.element == element)
        };
        let zeros = node.input(3);
        let are_weights = is_weight(codes, ElementType::U8)
            && is_weight(scales, ElementType::F32)
            && zeros.is_none_or(|zeros| is_weight(zeros, ElementType::U8));
        let is_ordered = node.input(4).is_none();
        // Packed weights have a multiple of 16 columns.
        let columns = node.int("N").filter(|&columns| columns >= 16)?;
        if !is_form || !are_weights || !is_ordered {
            return None;
        }
        let level = node.int("accuracy_level").unwrap_or_default();
        let attributes = [("K", node.int("K")?), ("N", columns), ("block_size", block), ("accuracy_level", level)];
        let inputs: Vec<&str> = [rows, codes, scales].into_iter().chain(zeros).collect();
        let product = |output: &str| {
            let made = Node::new("MatMulNBits", DOMAIN, &node.name, &inputs, &[output]);
            attributes.iter().fold(made, |made, (name, value)| made.with(Attribute::int(name, *value)))
        };
        Some(biased(node.output(0)?, node.input(5), product))
    }
}

/// A product, and the sum with its bias if it has one.
pub(super) fn biased(output: &str, bias: Option<&str>, product: impl Fn(&str) -> Node) -> Vec<Node> {
    let Some(bias) = bias else { return vec![product(output)] };
    let unbiased = format!("{output} without bias");
    let sum = Node::new("Add", "", &unbiased, &[&unbiased, bias], &[output]);
    vec![product(&unbiased), sum]
}
